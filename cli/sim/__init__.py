"""asrpt-sim: replay traces through the policies that asrptd runs, compare them, and draw what comes out."""

from __future__ import annotations

import io
import sys

from slurm_asrpt_cli._app.loading import Tools
from slurm_asrpt_cli._app.options import run_app

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
    help="Replay traces of jobs through asrptd's very policies, and compare them.",
    epilog="""\b
Examples:
  asrpt-sim run pai-like:2000 --policy asrpt -o out
  asrpt-sim COMMAND --help""",
)


def main() -> None:
    """Entry point of asrpt-sim."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may not fit a terminal's encoding
    if sys.argv[1:2] == ["reproduce"]:
        from slurm_asrpt_cli.sim.reproduce import reproduce  # has moved: hidden for one release

        reproduce()
    run_app(app)
