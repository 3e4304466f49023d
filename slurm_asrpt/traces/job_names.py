"""Which job names are runs of one program: a rule for logs that give names but no recurrence key.

The group is ``user/name`` with a counter at the end of the name taken off: digits after a separator, or four and more
digits without one (``train_17`` and ``train_18``, ``sweep 3-12``, ``job20240131`` are counted, ``resnet50`` and
``resnet101`` are names of models and stay apart). Jobs without a name belong to no group.
"""

from __future__ import annotations

import re

import numpy as np

from slurm_asrpt.lazy_pandas import pd

_COUNTER = re.compile(r"(?<=.)(?:[-_.:#+@/ ]+[0-9]+|[0-9]{4,}|[-_ ]*\([0-9]+\)|[-_ ]*\[[0-9]+\])$")


def normal_name(name: str) -> str:
    """``name`` without counters at its end: ``lr_0.1_run-7`` -> ``lr_0.1_run``."""
    shorter = _COUNTER.sub("", name)
    while shorter != name:
        name, shorter = shorter, _COUNTER.sub("", shorter)
    return name


def recurrent_names(user: pd.Series, name: pd.Series) -> pd.Series:
    """The group of each job, empty for one without a name; both of the same index, text."""
    codes, kinds = pd.factorize(name)
    plain = np.array([normal_name(str(kind)) for kind in kinds], dtype=object)[codes]
    joined = user.astype(str).to_numpy(dtype=object) + "/" + plain
    return pd.Series(np.where(plain == "", "", joined), index=name.index, dtype=object)
