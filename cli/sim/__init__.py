"""asrpt-sim: replay traces with the policies that asrptd runs, compare the policies, and plot the results."""

from __future__ import annotations

import sys

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
}

app = Tools(
    MODULES,
    help="Replay traces of jobs with the policies of asrptd, and compare them.",
    epilog="""\b
Examples:
  asrpt-sim run pai-like:2000 --policy asrpt -o out
  asrpt-sim COMMAND --help""",
)


def main() -> None:
    """Entry point of asrpt-sim."""
    if sys.argv[1:2] == ["reproduce"]:
        from slurm_asrpt_cli.sim.reproduce import reproduce  # has moved: hidden for one release

        reproduce()
    run_app(app)
