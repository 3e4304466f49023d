"""asrpt-admin models: which model predicts, and which could."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from slurm_asrpt_cli.admin_options import ConfigOption, JsonOption, show_table
from slurm_asrpt_cli.tables import UNKNOWN, Column, safe

from slurm_asrpt.config import load_settings
from slurm_asrpt.predict.model import Listed, Model, ModelInfo, list_models
from slurm_asrpt.predict.retrain import activate, models_folder, rollback

models_app = typer.Typer(
    help="List the stored models, activate one of them, or go back to the last good one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@models_app.command("list")
def list_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the stored models, the oldest first.

    \b
    Example:
      asrpt-admin models list
    """
    found = list_models(models_folder(load_settings(config)))
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


@models_app.command("activate")
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
    _tell(activate(load_settings(config), name), as_json)


@models_app.command("rollback")
def rollback_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Go back to the latest good model older than the active one.

    Again: one further back. A model that was refused when it was made is left out.

    \b
    Example:
      asrpt-admin models rollback
    """
    _tell(rollback(load_settings(config)), as_json)


def _tell(model: Model, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {"active": model.name, **asdict(model.info)}
        print(json.dumps(document))
    else:
        print(f"{model.name} is active: {model.info.predictor}, {model.info.rows} runs, {model.info.groups} groups")
