"""asrptd: the scheduling daemon."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from slurm_asrpt_cli.common import run_app

from slurm_asrpt.config import Mode, load_settings
from slurm_asrpt.daemon.loop import Daemon

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

EPILOG = "Examples: asrptd --mode shadow; asrptd --config /etc/slurm/asrpt.toml --once --log-level debug"


@app.command(epilog=EPILOG)
def asrptd(
    config: Annotated[
        Path | None, typer.Option(help="Settings file; default $ASRPT_CONFIG, /etc/slurm/asrpt.toml.")
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="Overrides daemon.mode of the settings.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One cycle, then leave.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Order the queue and place jobs on GPUs in the partitions of asrpt.toml. Stops cleanly on SIGTERM."""
    levels = logging.getLevelNamesMapping()
    if log_level.upper() not in levels:
        raise typer.BadParameter(
            f"{log_level!r} is no level; use debug, info, warning or error", param_hint="--log-level"
        )
    logging.basicConfig(level=levels[log_level.upper()], format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = load_settings(config)
    if mode is not None:
        settings = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"mode": mode})})
    daemon = Daemon(settings)
    daemon.stop_on_signals()
    logging.getLogger("asrptd").info("mode %s, policy %s", settings.daemon.mode, settings.policy.name)
    try:
        daemon.run(once)
    finally:
        daemon.close()


def main() -> NoReturn:
    run_app(app)
