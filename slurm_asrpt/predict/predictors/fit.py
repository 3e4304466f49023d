"""From runs to the hook's table: a predictor's figures under all keys, each with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_asrpt.history.store import TEACHING, Sample
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.table import Entry
from slurm_asrpt.predict.forest import Progress, fit_columns, fit_rows, silent
from slurm_asrpt.predict.predictors.base import Chain, Lesson, make_predictor
from slurm_asrpt.predict.predictors.intervals import with_intervals

FORESTS = {"forest": fit_columns, "forest-sklearn": fit_rows}


def fit(name: str, lessons: Sequence[Lesson], trees: int, seed: int, progress: Progress = silent) -> dict[str, Entry]:
    """The entries of all keys that the predictor ``name`` answers under; same lessons and seed, same entries.

    lessons: in the order of the runs' ends. progress: called with the steps done, of ``trees`` in all.
    Raises ValueError for an unknown predictor.
    """
    if name in FORESTS:
        entries = _forest(name, lessons, trees, seed, progress)
    else:
        entries = _others(name, lessons, trees, progress)
    return with_intervals(entries, lessons)


def _forest(name: str, lessons: Sequence[Lesson], trees: int, seed: int, progress: Progress) -> dict[str, Entry]:
    """The paper's forest with its bootstraps, on group and user."""
    keys = [dict(lesson.chain) for lesson in lessons]
    groups, users = [key["group"] for key in keys], [key["user"] for key in keys]
    table = FORESTS[name](groups, users, [lesson.iterations for lesson in lessons], trees, seed, progress)
    return {group: Entry.plain(iterations) for group, iterations in table.items()}


def _others(name: str, lessons: Sequence[Lesson], steps: int, progress: Progress) -> dict[str, Entry]:
    predictor = make_predictor(name)
    for place, lesson in enumerate(lessons, start=1):
        predictor.learn(lesson.chain, lesson.iterations, lesson.features)
        if place * steps // len(lessons) > (place - 1) * steps // len(lessons):
            progress(place * steps // len(lessons))
    return predictor.entries()


def teaching(samples: Sequence[Sample]) -> list[Sample]:
    """Those that something can be learned from: not the cancelled, preempted, requeued, or killed with their node."""
    return [sample for sample in samples if sample.state in TEACHING]


def lessons_of(samples: Sequence[Sample]) -> list[Lesson]:
    """What runs teach, each under its keys."""
    return [Lesson(chain, s.iterations, s.features) for chain, s in zip(_chains(samples), samples, strict=True)]


def _chains(samples: Sequence[Sample]) -> Iterator[Chain]:
    """The keys of each run. Most are their group's same again, and making keys costs more than remembering them."""
    known: dict[tuple[object, ...], Chain] = {}
    for s in samples:
        what = (s.group, s.program, s.user, s.gpus, *s.features.items())
        if what not in known:
            known[what] = keys_of(s.group, s.program, s.user, s.gpus, s.features)
        yield known[what]
