"""asrpt-profile: from a model to its blocks, figures, stages and plan."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli import profile_attach, profile_files, profile_plan, profile_run
from slurm_asrpt_cli.common import run_app
from slurm_asrpt_cli.helping import Tools

app = Tools(
    help="Measure models, plan how GPUs share them, and say which jobs train which.",
    epilog="""\b
Examples:
  asrpt-profile list
  asrpt-profile plan gpt-13b --gpus 16""",
)

app.command("run")(profile_run.run_command)
app.command("plan")(profile_plan.plan_command)
app.command("attach")(profile_attach.attach_command)
app.command("list", short_help="List the profiles that can be named.")(profile_files.list_command)
app.command("show", short_help="Show a profile, and where the time goes.")(profile_files.show_command)
app.command("diff")(profile_files.diff_command)
app.command("validate")(profile_files.validate_command)
app.command("convert")(profile_files.convert_command)


def main() -> NoReturn:
    run_app(app)
