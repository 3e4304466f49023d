"""Parsing of columns of job logs: times, durations, and job names.

Job names serve logs that have no recurrence key. The group is ``user/name`` without a counter at the end of the name:
digits after a separator, or four and more digits without one (``train_17`` and ``train_18``, ``sweep 3-12``,
``job20240131`` have counters; ``resnet50`` and ``resnet101`` are names of models and stay apart). Jobs without a name
belong to no group.
"""

from __future__ import annotations

import re

import numpy as np

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.slurm.notation import parse_duration
from slurm_asrpt.traces.trace import numbers

_ZONE = r"(?:[Zz]|[+-]\d\d:?\d\d)$"


def instants(texts: pd.Series) -> tuple[pd.Series, bool]:
    """Seconds from numbers (unchanged) or dates, nan for neither; and whether multiples of 86400 are local
    midnights.

    Dates are ISO 8601, with a blank or a T. Dates without a zone are read as local time, which skips or repeats an
    hour when clocks change. Numbers, and dates with a zone, do not tell where midnight was.
    """
    seconds = numbers(texts)
    dates = texts[seconds.isna() & (texts != "")]
    if not len(dates):
        return seconds, False
    zoned = dates.astype(str).str.contains(_ZONE, regex=True)
    seconds.loc[dates.index] = _epoch(dates)
    return seconds, not zoned.any() and bool(seconds.loc[dates.index].notna().any())


def _epoch(dates: pd.Series) -> pd.Series:
    parsed = pd.to_datetime(dates, format="ISO8601", errors="coerce", utc=True)
    seconds = parsed.dt.as_unit("ms").astype("int64") / 1e3
    return seconds.where(parsed.notna(), np.nan)


def durations(texts: pd.Series) -> pd.Series:
    """Seconds from numbers (unchanged) or ``[D-][HH:]MM:SS``, nan for neither."""
    seconds = numbers(texts)
    left = texts[seconds.isna() & (texts != "")]
    if len(left):
        codes, kinds = pd.factorize(left)
        seconds.loc[left.index] = np.array([_duration(str(kind)) for kind in kinds])[codes]
    return seconds


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        return float("nan")


_COUNTER = re.compile(r"(?<=.)(?:[-_.:#+@/ ]+[0-9]+|[0-9]{4,}|[-_ ]*\([0-9]+\)|[-_ ]*\[[0-9]+\])$")


def normal_name(name: str) -> str:
    """``name`` without counters at its end: ``lr_0.1_run-7`` -> ``lr_0.1_run``."""
    shorter = _COUNTER.sub("", name)
    while shorter != name:
        name, shorter = shorter, _COUNTER.sub("", shorter)
    return name


def recurrent_names(user: pd.Series, name: pd.Series) -> pd.Series:
    """The group of each job, empty if it has no name. user, name: text, with the same index."""
    codes, kinds = pd.factorize(name)
    plain = np.array([normal_name(str(kind)) for kind in kinds], dtype=object)[codes]
    joined = user.astype(str).to_numpy(dtype=object) + "/" + plain
    return pd.Series(np.where(plain == "", "", joined), index=name.index, dtype=object)
