"""Validation on held-out runs: is a new model as good as the active one, and is the active one as good as it was?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_asrpt.history.store import Run, Sample, sample_of
from slurm_asrpt.hook.group import keys_of, profiled_keys_of
from slurm_asrpt.hook.table import Answer, Entry, answer

MIN_RUNS = 20
"""Fewer runs give no meaningful error."""
TRAINING_SHARE = 0.8
"""Without another model to compare with: share of the runs to train on; the rest are held out."""
MAX_ERROR_RATIO = 1.1
"""A new model is refused if its error exceeds that of the old one by more than this factor."""
DRIFT_RATIO = 1.5
"""Predictions have drifted if the error on recent runs exceeds the one at validation by this factor."""

Entries = Mapping[str, Entry]


@dataclass(frozen=True)
class Comparison:
    """runs: number of held-out runs. reference: the model compared with; "" if there was none.

    new, old: mean absolute error over mean work.
    """

    runs: int = 0
    reference: str = ""
    new: float | None = None
    old: float | None = None

    @property
    def refusal(self) -> str:
        """Why the new model should not be activated, in one line; "" if it should."""
        if self.new is None or self.old is None or self.new <= MAX_ERROR_RATIO * self.old:
            return ""
        errors = f"its error is {self.new:.0%} of the mean, that of {self.reference} {self.old:.0%}"
        return f"on the last {self.runs} runs {errors}"


def relative_error(predicted: Sequence[float], runs: Sequence[Sample]) -> float | None:
    """Mean absolute error over mean work; None if there are too few runs. predicted: seconds."""
    if len(runs) < MIN_RUNS:
        return None
    errors = (abs(guess - run.work) for guess, run in zip(predicted, runs, strict=True))
    return sum(errors) / sum(run.work for run in runs)


def predicted(entries: Entries, runs: Sequence[Sample]) -> list[float]:
    """What the hook would predict for each run with these entries, seconds; 0 if no entry answers."""
    return [float(_answer(entries, run).in_seconds(run.alpha).iterations) for run in runs]


def _answer(entries: Entries, run: Sample) -> Answer:
    profiled = profiled_keys_of(run.group, run.user, run.gpus, run.features, run.profile)
    chain = keys_of(run.group, run.program, run.user, run.gpus, run.features)
    return answer(chain, run.features, entries.get, profiled)


def compare(
    fit: Callable[[Sequence[Sample]], Entries], samples: Sequence[Sample], name: str, entries: Entries, until: int
) -> Comparison:
    """Compare a new model with an old one that was trained on runs up to ``until``, on the runs since.

    For the comparison the new model, too, is fitted to the runs up to then: what is compared is how it learns, and
    from what. Runs from imported files are never held out, or false ones would vouch for themselves; they are
    training data, whatever their end.
    samples: in the order of their ends.
    """
    past = [sample for sample in samples if sample.end_time <= until or not sample.from_slurm]
    since = [sample for sample in samples if sample.end_time > until and sample.from_slurm]
    old = relative_error(predicted(entries, since), since)
    if old is None or len(past) < MIN_RUNS:  # the runs that the old one was trained on may have been pruned
        return Comparison(len(since))
    return Comparison(len(since), name, relative_error(predicted(fit(past), since), since), old)


def compare_without_imports(fit: Callable[[Sequence[Sample]], Entries], samples: Sequence[Sample]) -> Comparison:
    """Compare a new model, if there is no other, with one that is trained without imported files; on the latest
    runs of Slurm."""
    told = [sample for sample in samples if sample.from_slurm]
    if not told or len(told) == len(samples):
        return Comparison()
    until = told[int(TRAINING_SHARE * (len(told) - 1))].end_time
    past = [sample for sample in told if sample.end_time <= until]
    return compare(fit, samples, "a model without the imported files", fit(past), until)


@dataclass(frozen=True)
class Drift:
    """error: of the hook's actual predictions of the latest ``runs`` runs. expected: error of the model at
    validation.

    unseen: share of the latest runs without a prediction; they count in ``expected``, not in ``error``, since the
    first runs after an installation have none.
    """

    runs: int
    error: float | None
    expected: float | None
    unseen: float

    @property
    def warning(self) -> str:
        """In one line; "" if there is nothing to warn of."""
        if self.error is None or self.expected is None or self.error <= DRIFT_RATIO * self.expected:
            return ""
        errors = f"{self.error:.0%} of the mean; expected: {self.expected:.0%}"
        return f"the error of the last {self.runs} predictions is {errors}"


def drift(runs: Sequence[Run], expected: float | None) -> Drift:
    """runs: completed ones with known iterations, and with the predictions made at their submission."""
    seen = [(run, sample_of(run)) for run in runs if run.predicted_iterations > 0]
    unseen = 1 - len(seen) / len(runs) if runs else 0.0
    if len(seen) < MIN_RUNS:
        return Drift(len(seen), None, expected, unseen)
    errors = sum(abs(run.predicted_iterations - run.iterations) * sample.alpha for run, sample in seen)
    return Drift(len(seen), errors / sum(sample.work for _, sample in seen), expected, unseen)
