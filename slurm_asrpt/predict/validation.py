"""Is a new model as good as the one in use, and is the one in use as good as it was? Both asked of runs that it did not
learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_asrpt.history.store import Run, Sample
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.table import Entry, answer

ENOUGH = 20
"""Runs below which an error says nothing."""
LEARNED = 0.8
"""Where no other model says so, this share of the runs is learned from and the rest judged by."""
WORSE = 1.1
"""A new model is refused from this ratio of its error to the old one's."""
DRIFTED = 1.5
"""Predictions have drifted when the runs since are mispredicted by so many times what was measured before."""

Entries = Mapping[str, Entry]


@dataclass(frozen=True)
class Verdict:
    """runs: judged by. reference: the model compared with, "" if none could be.

    new, old: mean absolute error over mean iterations.
    """

    runs: int = 0
    reference: str = ""
    new: float | None = None
    old: float | None = None

    @property
    def refusal(self) -> str:
        """Why the new model should not be activated, in one line; "" if it should."""
        if self.new is None or self.old is None or self.new <= WORSE * self.old:
            return ""
        return f"on the last {self.runs} runs it errs by {self.new:.0%} of the mean, {self.reference} by {self.old:.0%}"


def relative_error(predicted: Sequence[float], runs: Sequence[Sample]) -> float | None:
    """Mean absolute error over mean iterations; None for too few runs to say."""
    if len(runs) < ENOUGH:
        return None
    errors = (abs(guess - run.iterations) for guess, run in zip(predicted, runs, strict=True))
    return sum(errors) / sum(run.iterations for run in runs)


def predicted(entries: Entries, runs: Sequence[Sample]) -> list[float]:
    """What the hook would predict for each run with these entries: 0 for one that no entry answers."""
    return [
        float(answer(keys_of(r.group, r.program, r.user, r.gpus, r.features), r.features, entries.get).iterations)
        for r in runs
    ]


def judge(
    fit: Callable[[Sequence[Sample]], Entries], samples: Sequence[Sample], name: str, entries: Entries, until: int
) -> Verdict:
    """A new model against an old one that has learned from runs up to ``until``, on the runs since.

    The new one is fitted for this to the runs up to then too: what is judged is how it learns, and from what. Runs from
    somebody's file are never judged by, or false ones would speak for themselves; they are what it learns from,
    whenever they are said to have ended.
    samples: in the order of their ends.
    """
    past = [sample for sample in samples if sample.end_time <= until or not sample.told]
    since = [sample for sample in samples if sample.end_time > until and sample.told]
    old = relative_error(predicted(entries, since), since)
    if old is None or len(past) < ENOUGH:  # what the old one learned from may have been forgotten since
        return Verdict(len(since))
    return Verdict(len(since), name, relative_error(predicted(fit(past), since), since), old)


def judge_imports(fit: Callable[[Sequence[Sample]], Entries], samples: Sequence[Sample]) -> Verdict:
    """A new model, where there is no other, against one that has learned from no file; on the latest runs of Slurm."""
    told = [sample for sample in samples if sample.told]
    if not told or len(told) == len(samples):
        return Verdict()
    until = told[int(LEARNED * (len(told) - 1))].end_time
    past = [sample for sample in told if sample.end_time <= until]
    return judge(fit, samples, "one without the imported files", fit(past), until)


@dataclass(frozen=True)
class Drift:
    """error: of what the hook really predicted lately, for ``runs`` runs. expected: of the model when it was judged.

    unseen: share of the latest runs that had no prediction; they count in ``expected``, not in ``error``: the first
    runs after an installation have none.
    """

    runs: int
    error: float | None
    expected: float | None
    unseen: float

    @property
    def warning(self) -> str:
        """In one line, "" if there is nothing to warn of."""
        if self.error is None or self.expected is None or self.error <= DRIFTED * self.expected:
            return ""
        return f"the last {self.runs} predictions err by {self.error:.0%} of the mean, {self.expected:.0%} was expected"


def drift(runs: Sequence[Run], expected: float | None) -> Drift:
    """runs: completed ones with known iterations, with what was predicted for them when they were submitted."""
    seen = [run for run in runs if run.predicted_iterations > 0]
    unseen = 1 - len(seen) / len(runs) if runs else 0.0
    if len(seen) < ENOUGH:
        return Drift(len(seen), None, expected, unseen)
    errors = sum(abs(run.predicted_iterations - run.iterations) for run in seen)
    return Drift(len(seen), errors / sum(run.iterations for run in seen), expected, unseen)
