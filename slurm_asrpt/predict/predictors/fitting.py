"""From runs to the hook's table: a predictor's figures under all keys, each with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_asrpt.core.units import Iterations
from slurm_asrpt.history.store import TRAINING_STATES, Sample
from slurm_asrpt.hook.group import keys_of, profiled_keys_of
from slurm_asrpt.hook.table import Entry
from slurm_asrpt.predict.forest import Progress, fit_columns, fit_rows, silent
from slurm_asrpt.predict.predictors.base import Chain, Example, Lesson, make_predictor
from slurm_asrpt.predict.predictors.intervals import with_intervals

FORESTS = {"forest": fit_columns, "forest-sklearn": fit_rows}


def fit(name: str, examples: Sequence[Example], trees: int, seed: int, progress: Progress = silent) -> dict[str, Entry]:
    """Entries of all keys that the predictor ``name`` answers under; the same examples and seed give the same
    entries.

    examples: in the order of the runs' ends. progress: called with the steps done, of ``trees`` in total. Raises
    ValueError for an unknown predictor.
    """
    lessons = [lesson for example in examples for lesson in example.lessons]
    if name in FORESTS:
        entries = _forest(name, lessons, trees, seed, progress)
    else:
        entries = _others(name, lessons, trees, progress)
    return with_intervals(entries, lessons)


def _forest(name: str, lessons: Sequence[Lesson], trees: int, seed: int, progress: Progress) -> dict[str, Entry]:
    """The paper's forest with its bootstraps, on group and user. A profile's keys have no user, but the group has."""
    keys = [dict(lesson.chain) for lesson in lessons]
    groups, users = [key["group"] for key in keys], [key.get("user", "") for key in keys]
    table = FORESTS[name](groups, users, [lesson.figure for lesson in lessons], trees, seed, progress)
    return {group: Entry.plain(iterations) for group, iterations in table.items()}


def _others(name: str, lessons: Sequence[Lesson], steps: int, progress: Progress) -> dict[str, Entry]:
    predictor = make_predictor(name)
    for place, lesson in enumerate(lessons, start=1):
        predictor.learn(lesson.chain, lesson.figure, lesson.features)
        if place * steps // len(lessons) > (place - 1) * steps // len(lessons):
            progress(place * steps // len(lessons))
    return predictor.entries()


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
