"""From runs to the hook's table: a predictor's figures under all keys, each with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_asrpt.history.store import TRAINING_STATES, Sample
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.table import Entry
from slurm_asrpt.predict.forest import Progress, fit_columns, fit_rows, silent
from slurm_asrpt.predict.predictors.base import Chain, Example, make_predictor
from slurm_asrpt.predict.predictors.intervals import with_intervals

FORESTS = {"forest": fit_columns, "forest-sklearn": fit_rows}


def fit(name: str, examples: Sequence[Example], trees: int, seed: int, progress: Progress = silent) -> dict[str, Entry]:
    """Entries of all keys that the predictor ``name`` answers under; the same examples and seed give the same
    entries.

    examples: in the order of the runs' ends. progress: called with the steps done, of ``trees`` in total. Raises
    ValueError for an unknown predictor.
    """
    if name in FORESTS:
        entries = _forest(name, examples, trees, seed, progress)
    else:
        entries = _others(name, examples, trees, progress)
    return with_intervals(entries, examples)


def _forest(name: str, examples: Sequence[Example], trees: int, seed: int, progress: Progress) -> dict[str, Entry]:
    """The paper's forest with its bootstraps, on group and user."""
    keys = [dict(example.chain) for example in examples]
    groups, users = [key["group"] for key in keys], [key["user"] for key in keys]
    table = FORESTS[name](groups, users, [example.iterations for example in examples], trees, seed, progress)
    return {group: Entry.plain(iterations) for group, iterations in table.items()}


def _others(name: str, examples: Sequence[Example], steps: int, progress: Progress) -> dict[str, Entry]:
    predictor = make_predictor(name)
    for place, example in enumerate(examples, start=1):
        predictor.learn(example.chain, example.iterations, example.features)
        if place * steps // len(examples) > (place - 1) * steps // len(examples):
            progress(place * steps // len(examples))
    return predictor.entries()


def training_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The samples to learn from: not those canceled, preempted, requeued, or killed with their node."""
    return [sample for sample in samples if sample.state in TRAINING_STATES]


def examples_of(samples: Sequence[Sample]) -> list[Example]:
    """The training examples of these runs, with their keys."""
    return [Example(chain, s.iterations, s.features) for chain, s in zip(_chains(samples), samples, strict=True)]


def _chains(samples: Sequence[Sample]) -> Iterator[Chain]:
    """The keys of each run. Most runs repeat their group, and a lookup is cheaper than computing keys."""
    known: dict[tuple[object, ...], Chain] = {}
    for s in samples:
        what = (s.group, s.program, s.user, s.gpus, *s.features.items())
        if what not in known:
            known[what] = keys_of(s.group, s.program, s.user, s.gpus, s.features)
        yield known[what]
