"""Numeric hyper-parameters of a job as text: ``epochs:90,lr:0.1``, names in order, ten significant digits.

One spelling for tag, history and keys, so that a job has the same key wherever its features come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_BYTES = 100
"""What fits into a tag beside everything else."""

BOUND = 1e15
"""Values from here on, of either sign, are no hyper-parameters."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,24})?(e[-+][0-9]{2,3})?")


def spell(value: float) -> str:
    return f"{value:.10g}"


def render_features(features: Mapping[str, float]) -> str:
    return ",".join(f"{name}:{spell(features[name])}" for name in sorted(features))


def parse_features(text: str) -> dict[str, float]:
    """The features in ``text``. Raises ValueError for anything that render_features does not write."""
    features: dict[str, float] = {}
    for item in text.split(",") if text else []:
        name, _, number = item.partition(":")
        if name in features or not _NAME.fullmatch(name) or not _NUMBER.fullmatch(number):
            raise ValueError(f"{item!r} is no feature")
        features[name] = float(number)
    if render_features(features) != text or any(abs(value) >= BOUND for value in features.values()):
        raise ValueError(f"{text!r} is no list of features in order")
    return features
