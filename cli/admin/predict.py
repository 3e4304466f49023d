"""asrpt-admin predict and explain-prediction: the prediction for a job script or job, and the runs behind it."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption, with_options
from slurm_asrpt_cli._app.submission import AsSbatch, Submission, as_submitted
from slurm_asrpt_cli._app.tables import Column, safe, show_table
from slurm_asrpt_cli.admin.access import asking_slurm, history_path, of_asrptd, read_history
from slurm_asrpt_cli.status.table import learned_from

from slurm_asrpt.core.units import Unit
from slurm_asrpt.errors import AsrptError, InputError, printable
from slurm_asrpt.history.store import Run
from slurm_asrpt.hook.tag import parse_tag, render_features
from slurm_asrpt.predict.conformal import RunConformal
from slurm_asrpt.slurm.notation import job_id_of
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.spool import read_losses, read_progress
from slurm_asrpt.status.learned_texts import communication_text
from slurm_asrpt.text import UNKNOWN, counted, slurm_time

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.core.convergence import Convergence
    from slurm_asrpt.hook import table
    from slurm_asrpt.predict.evidence import Evidence, Level, PredictionInput
    from slurm_asrpt.predict.sensitivity import Beliefs


def _as_sbatch(
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
    return AsSbatch(args or [], name, user, comment, gpus)


_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_TASKS = re.compile(r"(?<=[0-9])_\[[0-9,:%-]+\]$")
"""What squeue writes behind the ID of an array."""
SHOWN_RUNS = 20


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


@with_options(_as_sbatch)
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
        f"predicted {unit}": _iterations(prediction.predicted_iterations),
        "mean, for the order": _iterations(prediction.predicted_mean) if prediction.predicted_mean else "",
        "10-90% interval": _interval(prediction.predicted_low, prediction.predicted_high),
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


def _unit_in_words(found: table.Answer, profile: str) -> str:
    """Of figures for people: an iteration without a profile takes a second."""
    return found.unit if profile else Unit.SECONDS


def _iterations(predicted: int) -> str:
    return str(predicted) if predicted else "0 (unseen)"


def _interval(low: int, high: int) -> str:
    return f"{low} to {high}" if high else ""


@with_options(_as_sbatch)
def explain_command(
    given: AsSbatch,
    job: Annotated[str, typer.Argument(metavar="JOB|JOBSCRIPT", help="A job ID, or a job script as for sbatch.")],
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Plot it: .png, .svg or .pdf.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the past runs that a prediction is based on.

    Options go before a script; arguments after it are the
    script's.

    \b
    Examples:
      asrpt-admin explain-prediction 4711
      asrpt-admin explain-prediction --plot run.png train.sh
    """
    from slurm_asrpt.predict.evidence import evidence

    settings, job = of_asrptd(config), job_id_of(_TASKS.sub("", job))
    if _JOB_ID.fullmatch(job) and not Path(job).exists():
        _nothing_of_a_script(given)
        subject = _of_job(settings, job)
    else:
        subject = as_submitted(settings, Path(job), given).subject
        _note_misplaced(given)
    entries = _entries(settings)
    with read_history(settings) as history:
        found = evidence(subject, entries, history, RunConformal.of_history(history, time.time()), _beliefs(settings))
    loss = _reported(settings, job, found)
    if plot is not None:
        from slurm_asrpt.reporting import prediction_plot  # matplotlib takes a second to import

        figure = f"{_iterations(found.answer.iterations)} {_unit_in_words(found.answer, subject.profile)}"
        prediction_plot.draw(f"{job}: {figure} predicted", found, loss, plot)
    if as_json:
        print(json.dumps({**asdict(found), "loss": None if loss is None else asdict(loss)}))
    else:
        _show_evidence(subject, found)
        if loss is not None:
            _show_loss(loss)
        if plot is not None:
            print(f"\nWritten to {safe(str(plot))}")


def _note_misplaced(given: AsSbatch) -> None:
    for word in given.args:
        if word.partition("=")[0] in ("--plot", "--json"):
            print(
                f"note: {safe(word)} follows the script, so the script gets it; put it before",
                file=sys.stderr,
            )


def _reported(settings: Settings, job: str, found: Evidence) -> Convergence | None:
    """What the job's reported losses tell; None if there are none that we can read."""
    from slurm_asrpt.core.convergence import convergence

    if not _JOB_ID.fullmatch(job):
        return None
    number = _number(settings, job)
    progress, losses = read_progress(settings.paths.spool, number), read_losses(settings.paths.spool, number)
    return convergence(losses, progress.done if progress else 0, [run.iterations for run in found.runs])


def _number(settings: Settings, job_id: str) -> str:
    """Slurm's internal job ID: a task of an array has one of its own."""
    record = _record(settings, job_id) if "_" in job_id else None
    return str(record.number) if record else job_id


def _show_loss(loss: Convergence) -> None:
    from slurm_asrpt.core.convergence import STOP_SHARE

    (first, began), (last, now) = loss.points[0], loss.points[-1]
    print(f"\nloss: {began:.4g} at iteration {first}, {now:.4g} at {last} ({counted(len(loss.points), 'report')})")
    if loss.curve is None or loss.ends is None:
        print("no decreasing curve fits the loss yet")
        return
    print(
        f"the fitted curve falls to {loss.curve.floor:.4g} and within {STOP_SHARE:.0%} of it at iteration {loss.ends}"
    )
    print(f"expected, together with the past runs: {counted(round(loss.expected), 'more iteration')}")


def _nothing_of_a_script(given: AsSbatch) -> None:
    """Raises InputError for options that a job ID would ignore."""
    if given.args:
        raise InputError(f"{given.args[0]}: put options before the job ID; nothing may follow it")
    if given.gpus or any(value is not None for value in (given.name, given.user, given.comment)):
        raise InputError("--user, --job-name, --comment and --gpus need a job script")


def _entries(settings: Settings) -> dict[str, table.Entry]:
    """Raises AsrptError."""
    from slurm_asrpt.hook import table

    try:
        return table.read_table(settings.paths.hook / table.FILE_NAME)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise AsrptError(f"no prediction table ({why}); asrpt-admin retrain creates one") from None


def _beliefs(settings: Settings) -> Beliefs:
    """Those of the active model; none if it cannot be read."""
    from slurm_asrpt.predict.communication import from_bytes
    from slurm_asrpt.predict.model_store import ModelError, active_name, load_beliefs
    from slurm_asrpt.predict.retrain import models_folder
    from slurm_asrpt.predict.sensitivity import NOTHING

    models = models_folder(settings)
    try:
        data = load_beliefs(models, active_name(models)) if settings.predict.communication else b""
        return from_bytes(data) if data else NOTHING
    except (ModelError, ValueError) as error:
        print(f"note: communication of the active model: {printable(str(error))}", file=sys.stderr)
        return NOTHING


def _of_job(settings: Settings, job_id: str) -> PredictionInput:
    """Raises InputError for a job that neither the history nor Slurm knows, or without a tag."""
    from slurm_asrpt.predict.evidence import PredictionInput
    from slurm_asrpt.slurm.request import gpus_of

    runs: list[Run] = []
    if history_path(settings).exists():
        with read_history(settings) as history:
            runs = history.runs_where("job_id = ?", (job_id,), 1)
    if runs:
        run = runs[0]
        named = run.iterations_of or run.profile
        return PredictionInput(run.group_id, run.program, run.uid, run.gpus, run.features, named)
    record = _record(settings, job_id)
    tag = parse_tag(record.admin_comment) if record else None
    if record is None or tag is None:
        why = "the hook did not tag it" if record else "neither the history nor Slurm knows it"
        raise InputError(f"job {job_id}: {why}; give its job script instead")
    return PredictionInput(tag.group, tag.program, record.uid, gpus_of(record), tag.features, tag.profile)


def _record(settings: Settings, job_id: str) -> JobRecord | None:
    with asking_slurm(settings) as slurm:
        return next((record for record in slurm.jobs() if record.job_id == job_id), None)


def _show_evidence(subject: PredictionInput, found: Evidence) -> None:
    predicted = f"predicted {_unit_in_words(found.answer, subject.profile)}:"
    print(f"{predicted:<21} {_iterations(found.answer.iterations)}")
    if found.answer.mean:
        print(f"mean, for the order:  {found.answer.mean}")
    if found.answer.high:
        print(f"10-90% interval:      {_interval(*found.adjusted)}{_moved_from(found)}")
    if subject.features:
        print(f"features:             {printable(render_features(subject.features))}")
    print()
    show_table(
        [
            Column("KEY", [_key(level) for level in found.levels]),
            Column("ID", [level.key for level in found.levels]),
            Column("RUNS", [str(level.runs) for level in found.levels], right=True),
            Column("PREDICTS", [_entry(level) for level in found.levels], right=True),
            Column("", ["<- used" if level.answers else "" for level in found.levels]),
        ]
    )
    runs, where = found.runs[:SHOWN_RUNS], found.answer.level or "group"
    shown = next((level for level in found.levels if level.answers and level.runs), None) or next(
        level for level in reversed(found.levels) if level.name == where
    )
    key = f"{shown.name} key{' and profile' if shown.unit is Unit.ITERATIONS else ''}"
    print(f"\n{counted(shown.runs, 'past run')} with this {key} in the history" + (", the latest:" if runs else ""))
    if runs:
        _show_runs(runs)
    if len(found.placed) > 1 or found.communication:
        _show_communication(subject, found)


def _key(level: Level) -> str:
    """The name of a key; a job with a profile has more keys, whose entries are iterations of this profile."""
    return f"{level.name} with profile" if level.unit is Unit.ITERATIONS else level.name


def _show_communication(subject: PredictionInput, found: Evidence) -> None:
    """What is known about a job without a profile: how long its runs took by placement, and what follows."""
    known = found.communication
    if found.placed:
        print(f"\nits runs with {counted(subject.gpus, 'GPU')}, by placement:")
        show_table(
            [
                Column("NODES", [str(row.nodes) for row in found.placed], right=True),
                Column(
                    "SWITCHES", [str(row.switches) if row.switches else UNKNOWN for row in found.placed], right=True
                ),
                Column("RUNS", [str(row.runs) for row in found.placed], right=True),
                Column("TIME", [f"x {row.slower:.2f}" for row in found.placed], right=True),
            ]
        )
    if known is None:
        print("communication: not known to matter; all placements count as equal")
    else:
        told = communication_text(known.level, known.runs, known.apart, known.slower)
        print(f"communication: {known.rate:.3g} GB for each second of computation; {told}")


def _moved_from(found: Evidence) -> str:
    """The table's own interval, if the adjusted one differs."""
    before = found.answer.low, found.answer.high
    return "" if found.adjusted == before else f" (table: {_interval(*before)}, adjusted by the errors of recent runs)"


def _entry(level: Level) -> str:
    entry = level.entry
    if entry is None:
        return UNKNOWN
    unit = {"e": " per epoch", "s": " per step"}.get(entry.unit, "")
    seconds = " s" if level.unit is Unit.SECONDS else ""
    return f"{math.floor(entry.iterations + 0.5)}{seconds}{unit}"  # halves are rounded up, as in the hook


def _show_runs(runs: tuple[Run, ...]) -> None:
    show_table(
        [
            Column("JOBID", [safe(run.job_id) for run in runs]),
            Column("USER", [safe(run.user) for run in runs]),
            Column("GPUS", [str(run.gpus) for run in runs], right=True),
            Column("ITERATIONS", [str(run.iterations) for run in runs], right=True),
            Column("PREDICTED", [str(run.predicted_iterations or UNKNOWN) for run in runs], right=True),
            Column("ELAPSED", [slurm_time(run.end_time - run.start_time) for run in runs], right=True),
            Column("SOURCE", [run.iterations_source.value for run in runs]),
            Column("FEATURES", [safe(render_features(run.features)) for run in runs]),
        ]
    )
