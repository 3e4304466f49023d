"""asrptd: the scheduling daemon."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Tool

from slurm_asrpt import __version__
from slurm_asrpt.audit.trail import FILE_NAME as AUDIT_FILE
from slurm_asrpt.config.mode import Mode
from slurm_asrpt.daemon.guard import Guard
from slurm_asrpt.daemon.leader import wait_to_lead
from slurm_asrpt.errors import AsrptError, InputError, printable

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.daemon.main import Daemon

app = Tool()

LOG = logging.getLogger("asrptd")

EPILOG = """\b
Examples:
  asrptd --mode shadow
  asrptd --config /etc/slurm/asrpt.toml --once --log-level debug"""


class OneLine(logging.Formatter):
    """A line a message, and the lines of a traceback indented: no text of a user's looks like a line of ours."""

    def format(self, record: logging.LogRecord) -> str:
        first, *more = super().format(record).split("\n")
        return "\n".join([printable(first), *(f"    {printable(line)}" for line in more)])


@app.command(epilog=EPILOG)
def asrptd(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings file; else $ASRPT_CONFIG.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Overrides daemon.mode of the settings.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="POLICY", help="Overrides policy.name of the settings.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One cycle, then leave.")] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Order the queue and place jobs on GPUs in the partitions of asrpt.toml. Stops cleanly on SIGTERM.

    A second one on the same state directory stands by, and takes over when the first is gone.
    """
    from slurm_asrpt.daemon import main as daemon  # takes a second, which --help need not

    levels = logging.getLevelNamesMapping()
    if log_level.upper() not in levels:
        raise InputError(f"--log-level: {log_level!r} is no level; use debug, info, warning or error")
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=levels[log_level.upper()], handlers=[handler])
    settings = _settings(config, mode, policy)
    LOG.info("release %s", __version__)
    stopping = Event()
    daemon.stop_on_signals(stopping)
    leader = wait_to_lead(settings.paths.state, stopping, once)
    if leader is not None:
        guard = None if once or settings.daemon.mode is Mode.SHADOW else Guard(_release_command(config))
        _run(daemon.Daemon(settings, leader, stopping), once)
        if guard is not None:
            guard.dismiss()  # after an error it releases the waiting jobs


def _settings(config: Path | None, mode: Mode | None, policy: str | None) -> Settings:
    """The settings with those of the command line, checked. Raises InputError."""
    from slurm_asrpt.config.settings import load_settings
    from slurm_asrpt.daemon.setup import prepare

    settings = load_settings(config, trusted=True)
    if mode is not None:
        settings = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"mode": mode})})
    if policy is not None:
        settings = settings.model_copy(update={"policy": settings.policy.model_copy(update={"name": policy})})
    prepare(settings)
    return settings


def _release_command(config: Path | None) -> list[str]:
    """asrpt-admin release, with the same settings."""
    program = str(Path(sys.argv[0]).absolute().with_name("asrpt-admin"))
    return [program, "release", *(["--config", str(config.absolute())] if config else [])]


def _run(daemon: Daemon, once: bool) -> None:
    _announce(daemon.settings)
    try:
        daemon.run(once)
    except AsrptError:
        raise
    except Exception:
        LOG.exception("a bug has ended asrptd")  # what users are spared, the log is not
        raise
    finally:
        daemon.close()
    LOG.info("stopped%s", _AFTERWARDS[daemon.settings.daemon.mode])


_AFTERWARDS = {
    Mode.SHADOW: "",
    Mode.ORDER: "; waiting jobs keep the order that was written last",
    Mode.ENFORCE: "; Slurm schedules waiting jobs by itself as their leases run out",
}


def _announce(settings: Settings) -> None:
    daemon, paths = settings.daemon, settings.paths
    partitions = ",".join(settings.slurm.partitions)
    LOG.info("mode %s, policy %s, partitions %s", daemon.mode, settings.policy.name, printable(partitions))
    if daemon.mode is Mode.SHADOW:
        LOG.info("shadow: decisions are recorded, nothing is written to Slurm; asrptd --mode enforce schedules")
    LOG.info("asrpt-status shows the queue; every decision is in %s", paths.state / AUDIT_FILE)


def main() -> NoReturn:
    run_app(app)
