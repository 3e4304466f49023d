"""asrpt-admin: the administrator's tools."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from slurm_asrpt_cli import admin_group, admin_history
from slurm_asrpt_cli.admin_common import ConfigOption, JsonOption, find_user, progress, read_file
from slurm_asrpt_cli.common import run_app

from slurm_asrpt.config import Settings, load_settings
from slurm_asrpt.errors import AsrptError, printable
from slurm_asrpt.predict import table
from slurm_asrpt.predict.features import render_features
from slurm_asrpt.predict.group import describe, parse_comment
from slurm_asrpt.predict.jobscript import directives, gpus_asked, job_name
from slurm_asrpt.predict.keys import keys_of
from slurm_asrpt.predict.retrain import RetrainReport
from slurm_asrpt.predict.retrain import retrain as learn

app = typer.Typer(
    help="Administrate slurm-asrpt: learn from history, look up predictions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(admin_history.app, name="history")
app.command("group")(admin_group.group_command)


@app.callback()
def _several_commands() -> None:
    """Administrate slurm-asrpt: learn from history, look up predictions."""


@app.command("retrain")
def retrain_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Learn from finished jobs; new ones get the predictions.

    Replaces the table that the job_submit hook reads by one learned from the history.

    \b
    Example:
      asrpt-admin retrain --json
    """
    settings = load_settings(config)
    with progress("growing trees", settings.predict.trees) as advance:
        report = learn(settings, time.time(), advance)
    if as_json:
        print(json.dumps(_plain(asdict(report))))
        return
    _tell(report)


def _tell(report: RetrainReport) -> None:
    if report.rows == 0:
        print("the history holds no completed run with known iterations yet: every group predicts 0 (unseen)")
    print(f"learned from {report.rows} finished run(s) of {report.groups} group(s) in {report.seconds:.1f} s")
    print(f"model {report.model}")
    print(f"table {report.table}")


@dataclass(frozen=True)
class Prediction:
    """What the hook would find out about a submission. predicted_iterations 0: unseen group."""

    group: str
    predicted_iterations: int
    predicted_low: int
    predicted_high: int
    predicted_by: str
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


# Options end at JOBSCRIPT, as with sbatch: what follows belongs to the script.
@app.command("predict", context_settings={"allow_interspersed_args": False})
def predict_command(
    jobscript: Annotated[Path, typer.Argument(help="The script, as it would be given to sbatch.")],
    args: Annotated[list[str] | None, typer.Argument(help="The script's arguments.")] = None,
    name: Annotated[str | None, typer.Option("--job-name", "-J", help="As sbatch's; else as sbatch finds it.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="User name or id; else yours.")] = None,
    comment: Annotated[str | None, typer.Option("--comment", help="As sbatch's; else as in the script.")] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs in all; else as the script asks.")] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what would be predicted for a job script.

    That is: the recurrence group of the submission and its predicted iterations.

    \b
    Examples:
      asrpt-admin predict train.sh
      asrpt-admin predict --user alice --job-name bert train.sh --lr 0.1
    """
    settings = load_settings(config)
    script = read_file(jobscript)
    if comment is None:
        comment = directives(script).get("comment", "")
    uid, user_name = find_user(user)
    words = [os.fsencode(arg) for arg in args or []]
    name = name or job_name(script, jobscript)
    gpus = gpus or gpus_asked(script)
    prediction, trouble = _predict(settings, uid, user_name, name, script, words, comment, gpus)
    _show(prediction, as_json)
    if trouble:
        raise AsrptError(f"{trouble}; asrpt-admin retrain makes a new one")


def _predict(
    settings: Settings, uid: int, user: str, name: str, script: bytes, args: list[bytes], comment: str, gpus: int
) -> tuple[Prediction, str]:
    hints = parse_comment(os.fsencode(comment))
    job = describe(uid, os.fsencode(name), script, args, hints.dataset.encode(), settings.group)
    target = settings.paths.hook / table.FILE_NAME
    keys = keys_of(job.group, job.program, uid, gpus, job.features)
    found, trouble = table.lookup(target, keys, job.features)
    return (
        Prediction(
            group=job.group,
            predicted_iterations=found.iterations,
            predicted_low=found.low,
            predicted_high=found.high,
            predicted_by=found.level,
            features=job.features,
            gpus=gpus,
            job_name=name,
            user=user,
            uid=uid,
            profile=hints.profile,
            dataset=hints.dataset,
            off=hints.off,
            ignored_hints=[os.fsdecode(item) for item in hints.complaints],
            table=str(target),
        ),
        trouble,
    )


def _show(prediction: Prediction, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_plain(asdict(prediction))))
        return
    iterations = str(prediction.predicted_iterations) if prediction.predicted_iterations else "0 (unseen group)"
    interval = f"{prediction.predicted_low} to {prediction.predicted_high}" if prediction.predicted_high else ""
    rows = {
        "group": prediction.group,
        "predicted iterations": iterations,
        "10-90% interval": interval,
        "learned from": prediction.predicted_by,
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


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


def main() -> NoReturn:
    run_app(app)
