"""asrpt-admin retrain and models: learn a model, list the stored ones, choose the active one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.help import App
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import Column, safe, show_table
from slurm_asrpt_cli.admin.access import of_asrptd

from slurm_asrpt.errors import AsrptError
from slurm_asrpt.text import UNKNOWN, counted

if TYPE_CHECKING:
    from slurm_asrpt.predict.model_store import ListedModel, Model, ModelInfo
    from slurm_asrpt.predict.retrain import RetrainReport

app = App(
    help="List the stored models, activate one, or roll back to the last good one.",
    epilog="""\b
Examples:
  asrpt-admin models list
  asrpt-admin models rollback""",
    no_args_is_help=True,
)


def retrain_command(
    force: Annotated[bool, typer.Option("--force", help="Activate the new model even if it is worse.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn predictions for new jobs from completed ones.

    Replaces the table that the job_submit hook reads. A model
    that predicts recent jobs worse than the active one is
    stored, but not activated.

    \b
    Examples:
      asrpt-admin retrain --json
      asrpt-admin retrain --force
    """
    from slurm_asrpt.predict.retrain import retrain as learn

    settings = of_asrptd(config, trusted=True)
    with progress("learning", settings.predict.trees) as advance:
        report = learn(settings, time.time(), advance, force)
    if as_json:
        print(json.dumps(asdict(report), default=str))
    else:
        _tell(report)
    if report.refused:
        raise AsrptError(f"not activated: {report.refused}; see asrpt-admin models list, or use retrain --force")


def _tell(report: RetrainReport) -> None:
    if report.rows == 0:
        print("the history has no completed run with known iterations yet: all jobs count as unseen")
    print(f"learned from {_amount(report)} in {report.seconds:.1f} s")
    if report.verdict.new is not None:
        runs = counted(report.verdict.runs, "later run")
        print(f"error on {runs}: {report.verdict.new:.0%} of the mean{_active(report)}")
    if report.unjudged:
        print(safe(report.unjudged))
    print(f"model {report.model}")
    if not report.refused:
        print(f"table {report.table}")


def _active(report: RetrainReport) -> str:
    """How the model that it was compared with did on the same runs; "" if there was none."""
    verdict = report.verdict
    return f"; {verdict.reference} had {verdict.old:.0%}" if verdict.reference and verdict.old is not None else ""


@app.command("list")
def list_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the stored models, the oldest first.

    \b
    Example:
      asrpt-admin models list
    """
    from slurm_asrpt.predict.model_store import list_models
    from slurm_asrpt.predict.retrain import models_folder

    found = list_models(models_folder(of_asrptd(config)))
    if as_json:
        print(json.dumps([asdict(listed) for listed in found]))
    elif not found:
        print("no models yet; asrpt-admin retrain creates one")
    else:
        show_table(_columns(found))


def _columns(found: Sequence[ListedModel]) -> list[Column]:
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


def _state(listed: ListedModel) -> str:
    if listed.info is None:
        return "unusable"
    return "active" if listed.active else "refused" if listed.info.refused else "kept"


@app.command("activate")
def activate_command(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A name from models list.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Activate a stored model.

    Checks its owner, permissions and checksum first. The next
    retraining compares its model with this one.

    \b
    Example:
      asrpt-admin models activate 20261121T081502.120000Z
    """
    from slurm_asrpt.predict.retrain import activate

    _announce(activate(of_asrptd(config, trusted=True), name), as_json)


@app.command("rollback")
def rollback_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Roll back to the last good model before the active one.

    Run it again to go back further. Models that were refused
    are skipped.

    \b
    Example:
      asrpt-admin models rollback
    """
    from slurm_asrpt.predict.retrain import rollback

    _announce(rollback(of_asrptd(config, trusted=True)), as_json)


def _announce(model: Model, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {"active": model.name, **asdict(model.info)}
        print(json.dumps(document))
    else:
        print(f"{model.name} is active: {model.info.predictor}, {_amount(model.info)}")


def _amount(learned: RetrainReport | ModelInfo) -> str:
    return f"{counted(learned.rows, 'run')} in {counted(learned.groups, 'group')}"
