"""Predicted iterations for a simulation, learned from a history that ended before the simulation begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slurm_asrpt.predict.forest import fit_table
from slurm_asrpt.predict.history import Sample

Floats = NDArray[np.float64]

PREDICTORS = ("perfect", "forest", "mean", "median")
TREES = 100


def predict(name: str, past: pd.DataFrame, groups: Sequence[str], truth: Floats, seed: int = 0) -> Floats:
    """ñ for each job of ``groups``; 0 for a group that the past does not hold.

    past: columns group, user, iterations. truth: n_i, which only "perfect" looks at.
    Raises ValueError for an unknown predictor.
    """
    if name == "perfect":
        return truth
    if name not in _LEARNED:
        raise ValueError(f"no predictor is called {name!r}; known: {', '.join(PREDICTORS)}")
    table = _LEARNED[name](past[past["group"] != ""], seed)
    return np.array([table.get(group, 0.0) for group in groups], dtype=np.float64)


def _forest(past: pd.DataFrame, seed: int) -> Mapping[str, float]:
    rows = zip(past["group"], past["user"], past["iterations"], strict=True)
    return fit_table([Sample(group, user, iterations) for group, user, iterations in rows], TREES, seed)


def _mean(past: pd.DataFrame, seed: int) -> Mapping[str, float]:
    return dict(past.groupby("group")["iterations"].mean())


def _median(past: pd.DataFrame, seed: int) -> Mapping[str, float]:
    return dict(past.groupby("group")["iterations"].median())


_LEARNED: Mapping[str, Callable[[pd.DataFrame, int], Mapping[str, float]]] = {
    "forest": _forest,
    "mean": _mean,
    "median": _median,
}
