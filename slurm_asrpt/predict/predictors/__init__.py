"""Predictors by name, and the one that fits them to a history."""

from slurm_asrpt.history.store import TEACHING
from slurm_asrpt.predict.predictors import (
    backoff,  # noqa: F401  (they register themselves)
    by_group,  # noqa: F401  (they register themselves)
)
from slurm_asrpt.predict.predictors.base import (
    Chain,
    Features,
    Lesson,
    Predictor,
    make_predictor,
    predictor_names,
    register,
)
from slurm_asrpt.predict.predictors.fitting import fit, lessons_of, teaching

__all__ = [
    "TEACHING",
    "Chain",
    "Features",
    "Lesson",
    "Predictor",
    "fit",
    "lessons_of",
    "make_predictor",
    "predictor_names",
    "register",
    "teaching",
]
