"""asrpt-admin predict: the prediction for a job script, as the hook would find it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption, with_options
from slurm_asrpt_cli._app.submission import AsSbatch, Submission, as_submitted
from slurm_asrpt_cli.status.table import learned_from

from slurm_asrpt.core.units import Unit
from slurm_asrpt.errors import AsrptError, printable
from slurm_asrpt.hook.tag import render_features

if TYPE_CHECKING:
    from slurm_asrpt.hook import table


def as_sbatch(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="All arguments after the script are the script's.")
    ] = None,
    name: Annotated[str | None, typer.Option("--job-name", "-J", metavar="NAME", help="Same as sbatch's.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="User name or ID; default: you.")] = None,
    comment: Annotated[
        str | None, typer.Option("--comment", metavar="TEXT", help="Same as sbatch's; default: the script's.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=0, metavar="N", help="Total GPUs; default: the script's.")] = 0,
) -> AsSbatch:
    """The options of sbatch that a command about a job script takes."""
    return AsSbatch(args or [], name, user, comment, gpus)


@dataclass(frozen=True)
class Prediction:
    """What the hook would find for a submission. predicted_iterations 0: unseen.

    predicted_unit: of these figures. asrptd converts the seconds of a job with a profile into iterations.
    """

    group: str
    predicted_iterations: int
    predicted_low: int
    predicted_high: int
    predicted_mean: int
    predicted_by: str
    predicted_unit: str
    features: dict[str, float]
    gpus: int
    job_name: str
    user: str
    uid: int
    profile: str
    dataset: str
    off: bool
    ignored_hints: list[str]
    table: str


@with_options(as_sbatch)
def predict_command(
    given: AsSbatch,
    jobscript: Annotated[Path, typer.Argument(metavar="JOBSCRIPT", help="A job script, as for sbatch.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the prediction for a job script.

    Shows the group of the submission and its predicted
    iterations.

    \b
    Examples:
      asrpt-admin predict train.sh
      asrpt-admin predict --user alice --job-name bert \\
        train.sh --lr 0.1
    """
    from slurm_asrpt.config.settings import load_settings
    from slurm_asrpt.hook import table

    settings = load_settings(config)
    submission = as_submitted(settings, jobscript, given)
    target = settings.paths.hook / table.FILE_NAME
    subject = submission.subject
    found, trouble = table.lookup(target, subject.keys, subject.features, subject.profiled_keys)
    _show(_prediction(submission, found, target), as_json)
    if trouble:
        raise AsrptError(f"{trouble}; asrpt-admin retrain creates a new one")


def _prediction(submission: Submission, found: table.Answer, target: Path) -> Prediction:
    subject, hints = submission.subject, submission.hints
    return Prediction(
        group=subject.group,
        predicted_iterations=found.iterations,
        predicted_low=found.low,
        predicted_high=found.high,
        predicted_mean=found.order,
        predicted_by=found.level,
        predicted_unit=_unit(found, submission.profile),
        features=dict(subject.features),
        gpus=subject.gpus,
        job_name=submission.job_name,
        user=submission.user,
        uid=subject.uid,
        profile=submission.profile,
        dataset=hints.dataset,
        off=hints.off,
        ignored_hints=[os.fsdecode(item) for item in hints.complaints],
        table=str(target),
    )


def _show(prediction: Prediction, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(prediction)))
        return
    unit = prediction.predicted_unit if prediction.profile else Unit.SECONDS
    rows = {
        "group": prediction.group,
        f"predicted {unit}": iterations_text(prediction.predicted_iterations),
        "mean, for the order": iterations_text(prediction.predicted_mean) if prediction.predicted_mean else "",
        "10-90% interval": interval_text(prediction.predicted_low, prediction.predicted_high),
        "learned from": _source(prediction.predicted_by),
        "features": render_features(prediction.features),
        "job name": prediction.job_name,
        "user": f"{prediction.user} ({prediction.uid})",
        "profile": prediction.profile,
        "dataset": prediction.dataset,
        "left to Slurm": "asrpt:off" if prediction.off else "",
        "ignored hints": ", ".join(prediction.ignored_hints),
    }
    for key, value in rows.items():
        if value:
            print(f"{key + ':':<22}{printable(value)}")


def _source(level: str) -> str:
    """In the words of asrpt-status, with the key as explain-prediction names it."""
    return f"{learned_from(level).removeprefix('learned from ')}, key {level}" if level else ""


def _unit(found: table.Answer, profile: str) -> Unit:
    """As in JSON: without a profile, seconds are called iterations, as everywhere in the code."""
    return found.unit if profile else Unit.ITERATIONS


def unit_in_words(found: table.Answer, profile: str) -> str:
    """Of figures for people: an iteration without a profile takes a second."""
    return found.unit if profile else Unit.SECONDS


def iterations_text(predicted: int) -> str:
    """Predicted iterations, in words where there are none."""
    return str(predicted) if predicted else "0 (unseen)"


def interval_text(low: int, high: int) -> str:
    """An interval of iterations; "" for none."""
    return f"{low} to {high}" if high else ""
