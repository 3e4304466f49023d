"""From runs to the hook's table: a predictor's figures under all keys, each with its interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from slurm_asrpt.core.units import Iterations
from slurm_asrpt.history.store import TRAINING_STATES, Sample
from slurm_asrpt.hook.group import keys_of, profiled_keys_of
from slurm_asrpt.hook.table import Entry
from slurm_asrpt.predict.predictors.base import Chain, Example, make_predictor
from slurm_asrpt.predict.predictors.intervals import with_intervals

FORESTS = frozenset({"forest", "forest-sklearn"})
"""The predictors with trees and a seed."""
Progress = Callable[[int], None]


def silent(done: int) -> None:
    pass


def fit(name: str, examples: Sequence[Example], trees: int, seed: int, progress: Progress = silent) -> dict[str, Entry]:
    """Entries of all keys that the predictor ``name`` answers under; the same examples and seed give the same
    entries.

    examples: in the order of the runs' ends. progress: called with the steps done, of ``trees`` in total. Raises
    ValueError for an unknown predictor.
    """
    lessons = [lesson for example in examples for lesson in example.lessons]
    predictor = make_predictor(name, trees=trees, seed=seed) if name in FORESTS else make_predictor(name)
    for place, lesson in enumerate(lessons, start=1):
        predictor.learn(lesson.chain, lesson.figure, lesson.features)
        if place * trees // len(lessons) > (place - 1) * trees // len(lessons):
            progress(place * trees // len(lessons))
    return with_intervals(predictor.entries(), lessons)


def training_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The samples to learn from: not those canceled, preempted, requeued, or killed with their node."""
    return [sample for sample in samples if sample.state in TRAINING_STATES]


def examples_of(samples: Sequence[Sample]) -> list[Example]:
    """The training examples of these runs, with their keys."""
    keys = zip(_keys(samples), samples, strict=True)
    return [Example(chain, s.work, s.features, profiled, Iterations(s.iterations)) for (chain, profiled), s in keys]


def _keys(samples: Sequence[Sample]) -> Iterator[tuple[Chain, Chain]]:
    """The keys of each run: all jobs', its profile's. Most runs repeat their group, and a lookup is cheaper than
    computing keys."""
    known: dict[tuple[object, ...], tuple[Chain, Chain]] = {}
    for s in samples:
        what = (s.group, s.program, s.user, s.gpus, s.profile, *s.features.items())
        if what not in known:
            chain = keys_of(s.group, s.program, s.user, s.gpus, s.features)
            known[what] = chain, profiled_keys_of(s.group, s.user, s.gpus, s.features, s.profile)
        yield known[what]
