"""asrpt-profile: from a model to its blocks, figures, stages and plan."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli.common import run_app
from slurm_asrpt_cli.loading import Tools

MODULES = {
    "run": "profile_run",
    "plan": "profile_plan",
    "attach": "profile_attach",
    "list": "profile_files",
    "show": "profile_files",
    "diff": "profile_files",
    "validate": "profile_files",
    "convert": "profile_files",
}

app = Tools(
    MODULES,
    help="Measure models, plan how GPUs share them, and say which jobs train which.",
    epilog="""\b
Examples:
  asrpt-profile list
  asrpt-profile plan gpt-13b --gpus 16""",
)


def main() -> NoReturn:
    run_app(app)
