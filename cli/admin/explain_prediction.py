"""asrpt-admin explain-prediction: the past runs and the keys behind the prediction for a job or a job script."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption, with_options
from slurm_asrpt_cli._app.submission import AsSbatch, as_submitted
from slurm_asrpt_cli._app.tables import Column, safe, show_table
from slurm_asrpt_cli.admin.access import asking_slurm, history_path, of_asrptd, read_history
from slurm_asrpt_cli.admin.predict import as_sbatch, interval_text, iterations_text, unit_in_words

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

_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_TASKS = re.compile(r"(?<=[0-9])_\[[0-9,:%-]+\]$")
"""What squeue writes behind the ID of an array."""
SHOWN_RUNS = 20


@with_options(as_sbatch)
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

        figure = f"{iterations_text(found.answer.iterations)} {unit_in_words(found.answer, subject.profile)}"
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
    predicted = f"predicted {unit_in_words(found.answer, subject.profile)}:"
    print(f"{predicted:<21} {iterations_text(found.answer.iterations)}")
    if found.answer.mean:
        print(f"mean, for the order:  {found.answer.mean}")
    if found.answer.high:
        print(f"10-90% interval:      {interval_text(*found.adjusted)}{_moved_from(found)}")
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
    return (
        "" if found.adjusted == before else f" (table: {interval_text(*before)}, adjusted by the errors of recent runs)"
    )


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
