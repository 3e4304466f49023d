"""asrpt-profile: measure models, plan how GPUs share them, and manage profile files."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Listed, Tools

COMMANDS = {
    "run": Listed("profile.run:run_command", "Measure the time and bytes of each block of a model."),
    "plan": Listed("profile.plan:plan_command", "List the fastest ways to distribute a model over GPUs."),
    "attach": Listed("profile.attach:attach_command", "Attach a profile to jobs; without options, list them."),
    "list": Listed("profile.files:list_command", "List the available profiles."),
    "show": Listed("profile.files:show_command", "Show a profile and where the time goes."),
    "graph": Listed("profile.graph:graph_command", "Draw which GPUs communicate, and where Heavy-Edge puts them."),
    "diff": Listed("profile.files:diff_command", "Show how two profiles differ; exit status 1 if they do."),
    "validate": Listed("profile.files:validate_command", "Check profile files; print all errors, with line and fix."),
    "convert": Listed("profile.files:convert_command", "Write a profile as TOML or JSON, or a model cut into stages."),
}

app = Tools(
    COMMANDS,
    help="Measure models, plan how GPUs share them, and attach profiles to jobs.",
    epilog="""\b
Examples:
  asrpt-profile list
  asrpt-profile plan gpt-13b --gpus 16""",
)


def main() -> NoReturn:
    run_app(app)
