"""asrpt-sim: replay traces with the policies that asrptd runs, compare the policies, and plot the results."""

from __future__ import annotations

import sys

from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Listed, Tools

COMMANDS = {
    "run": Listed("sim.runs:run", "Simulate one policy on a trace."),
    "compare": Listed("sim.runs:compare", "Simulate several policies on the same jobs and rank them."),
    "sweep": Listed("sim.sweep:sweep", "Simulate policies over a grid of workloads."),
    "report": Listed("sim.sweep:report", "Plot results into an HTML file, with PNG files beside it."),
    "import": Listed("sim.traces:import_", "Convert a trace to the CSV format that is read fastest."),
    "describe": Listed("sim.traces:describe", "Summarize a trace, and plot it."),
    "generate": Listed("sim.traces:generate", "Generate a trace like that of Alibaba's PAI."),
    "formats": Listed("sim.traces:formats", "List the trace formats that can be read."),
    "what-if": Listed("sim.what_if:what_if", "Replay past jobs of Slurm with other policies."),
}

app = Tools(
    COMMANDS,
    help="Replay traces of jobs with the policies of asrptd, and compare them.",
    epilog="""\b
Examples:
  asrpt-sim run pai-like:2000 --servers 8 --load 0.9 -o out
  asrpt-sim COMMAND --help""",
)


def main() -> None:
    """Entry point of asrpt-sim."""
    if sys.argv[1:2] == ["reproduce"]:
        from slurm_asrpt_cli.sim.reproduce import reproduce  # has moved: hidden for one release

        reproduce()
    run_app(app)
