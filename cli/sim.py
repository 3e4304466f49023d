"""asrpt-sim: replay traces through the policies that asrptd runs, compare them, and draw what comes out."""

from __future__ import annotations

import io
import sys

from slurm_asrpt_cli import sim_reproduce, sim_runs, sim_sweep, sim_traces, sim_whatif
from slurm_asrpt_cli.common import run_app
from slurm_asrpt_cli.helping import Tools

app = Tools(
    help="Replay job traces through the very policies that asrptd runs, compare them, and draw what comes out.",
    epilog="""\b
Examples:
  asrpt-sim run pai-like:2000 --policy asrpt -o out
  asrpt-sim COMMAND --help""",
)

for _commands in (sim_runs, sim_sweep, sim_traces, sim_whatif, sim_reproduce):
    _commands.add_commands(app)


def main() -> None:
    """Entry point of asrpt-sim."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may not fit a terminal's encoding
    run_app(app)
