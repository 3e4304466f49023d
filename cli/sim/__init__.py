"""asrpt-sim: replay traces through the policies that asrptd runs, compare them, and draw what comes out."""

from __future__ import annotations

from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Tools

MODULES = {
    "run": "sim.runs",
    "compare": "sim.runs",
    "sweep": "sim.sweep",
    "report": "sim.sweep",
    "import": "sim.traces",
    "describe": "sim.traces",
    "generate": "sim.traces",
    "formats": "sim.traces",
    "what-if": "sim.what_if",
    "reproduce": "sim.reproduce",
}

app = Tools(
    MODULES,
    help="Replay traces of jobs through asrptd's very policies, and compare them.",
    epilog="""\b
Examples:
  asrpt-sim run pai-like:2000 --policy asrpt -o out
  asrpt-sim COMMAND --help""",
)


def main() -> None:
    """Entry point of asrpt-sim."""
    run_app(app)
