"""asrpt-pool: run many trainings on the slots of one job."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Listed, Tools

COMMANDS = {
    "run": Listed("pool.run:run_command", "Run the trainings of a sweep file on this job's slots."),
    "replay": Listed("pool.replay:replay_command", "Check that the simulator decides as a recorded pool did."),
    "status": Listed("pool.status:status_command", "Show how far a pool is."),
    "add": Listed("pool.control:add_command", "Add the trainings of another file to a pool."),
    "stop": Listed("pool.control:stop_command", "Write checkpoints and end a pool."),
}

app = Tools(
    COMMANDS,
    help="Run many trainings on the slots of one Slurm job, task by task.",
    epilog="""\b
Examples:
  sbatch -n8 --gpus-per-task=1 --wrap 'exec asrpt-pool run sweep.toml'
  asrpt-pool status sweep.toml""",
)


def main() -> NoReturn:
    run_app(app)
