"""asrpt-profile: measure models, plan how GPUs share them, and manage profile files."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Tools

MODULES = {
    "run": "profile.run",
    "plan": "profile.plan",
    "attach": "profile.attach",
    "list": "profile.files",
    "show": "profile.files",
    "diff": "profile.files",
    "validate": "profile.files",
    "convert": "profile.files",
}

app = Tools(
    MODULES,
    help="Measure models, plan how GPUs share them, and attach profiles to jobs.",
    epilog="""\b
Examples:
  asrpt-profile list
  asrpt-profile plan gpt-13b --gpus 16""",
)


def main() -> NoReturn:
    run_app(app)
