"""asrpt-admin retrain and models: which model predicts, and which could."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from slurm_asrpt_cli._app.help import App
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import Column, safe, show_table
from slurm_asrpt_cli.admin.access import of_asrptd

from slurm_asrpt.core.durations import UNKNOWN
from slurm_asrpt.core.plurals import counted
from slurm_asrpt.errors import AsrptError
from slurm_asrpt.predict.model import Listed, Model, ModelInfo, list_models
from slurm_asrpt.predict.retrain import RetrainReport, activate, models_folder, rollback
from slurm_asrpt.predict.retrain import retrain as learn

app = App(
    help="List the stored models, activate one of them, or go back to the last good one.",
    epilog="""\b
Examples:
  asrpt-admin models list
  asrpt-admin models rollback""",
    no_args_is_help=True,
)


def add_commands(tool: typer.Typer) -> None:
    """Put retrain and models into asrpt-admin."""
    tool.command("retrain", short_help="Learn from finished jobs.")(retrain_command)
    tool.add_typer(app, name="models", short_help="List the stored models, go back to another.")


def retrain_command(
    force: Annotated[bool, typer.Option("--force", help="Activate the new model even if it is worse.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn from finished jobs; new ones get the predictions.

    Replaces the table that the job_submit hook reads by one learned from the history.
    A model that is worse on recent jobs than the active one is stored, but not activated.

    \b
    Examples:
      asrpt-admin retrain --json
      asrpt-admin retrain --force
    """
    settings = of_asrptd(config, trusted=True)
    with progress("learning", settings.predict.trees) as advance:
        report = learn(settings, time.time(), advance, force)
    if as_json:
        print(json.dumps(asdict(report), default=str))
    else:
        _tell(report)
    if report.refused:
        raise AsrptError(f"not activated: {report.refused}; see asrpt-admin models list, or retrain --force")


def _tell(report: RetrainReport) -> None:
    if report.rows == 0:
        print("the history holds no completed run with known iterations yet: every group predicts 0 (unseen)")
    print(f"learned from {_amount(report)} in {report.seconds:.1f} s")
    if report.verdict.new is not None:
        print(f"on {counted(report.verdict.runs, 'later run')} it errs by {report.verdict.new:.0%} of the mean")
    if report.unjudged:
        print(safe(report.unjudged))
    print(f"model {report.model}")
    if not report.refused:
        print(f"table {report.table}")


@app.command("list")
def list_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the stored models, the oldest first.

    \b
    Example:
      asrpt-admin models list
    """
    found = list_models(models_folder(of_asrptd(config)))
    if as_json:
        print(json.dumps([asdict(listed) for listed in found]))
    elif not found:
        print("no model is stored yet; asrpt-admin retrain makes one")
    else:
        show_table(_columns(found))


def _columns(found: Sequence[Listed]) -> list[Column]:
    infos = [listed.info for listed in found]
    return [
        Column("MODEL", [safe(listed.name) for listed in found]),
        Column("STATE", [_state(listed) for listed in found]),
        Column("PREDICTOR", [safe(info.predictor) if info else UNKNOWN for info in infos]),
        Column("RUNS", [str(info.rows) if info else UNKNOWN for info in infos], right=True),
        Column("GROUPS", [str(info.groups) if info else UNKNOWN for info in infos], right=True),
        Column("ERROR", [_error(info) for info in infos], right=True),
        Column("NOTE", [safe(listed.trouble or (listed.info.refused if listed.info else "")) for listed in found]),
    ]


def _error(info: ModelInfo | None) -> str:
    return UNKNOWN if info is None or info.error is None else f"{info.error:.0%}"


def _state(listed: Listed) -> str:
    if listed.info is None:
        return "unusable"
    return "active" if listed.active else "refused" if listed.info.refused else "kept"


@app.command("activate")
def activate_command(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="As models list shows it.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a stored model predict from now on.

    It is checked before: who owns it, who could write it, its check sum. The next
    retraining compares its own model with this one.

    \b
    Example:
      asrpt-admin models activate 20261121T081502.120000Z
    """
    _announce(activate(of_asrptd(config, trusted=True), name), as_json)


@app.command("rollback")
def rollback_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Go back to the latest good model older than the active one.

    Again: one further back. A model that was refused when it was made is left out.

    \b
    Example:
      asrpt-admin models rollback
    """
    _announce(rollback(of_asrptd(config, trusted=True)), as_json)


def _announce(model: Model, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {"active": model.name, **asdict(model.info)}
        print(json.dumps(document))
    else:
        print(f"{model.name} is active: {model.info.predictor}, {_amount(model.info)}")


def _amount(learned: RetrainReport | ModelInfo) -> str:
    return f"{counted(learned.rows, 'finished run')} of {counted(learned.groups, 'group')}"
