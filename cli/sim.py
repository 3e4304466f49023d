"""asrpt-sim: replay traces through the policies that asrptd runs, compare them, and draw what comes out."""

from __future__ import annotations

import io
import sys

from slurm_asrpt_cli.common import run_app
from slurm_asrpt_cli.loading import Tools

MODULES = {
    "run": "sim_runs",
    "compare": "sim_runs",
    "sweep": "sim_sweep",
    "report": "sim_sweep",
    "import": "sim_traces",
    "describe": "sim_traces",
    "generate": "sim_traces",
    "formats": "sim_traces",
    "what-if": "sim_whatif",
    "reproduce": "sim_reproduce",
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
    run_app(app)
