"""asrpt-admin: the administrator's tools."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli import (
    admin_audit,
    admin_calibrate,
    admin_calibration,
    admin_doctor,
    admin_evaluate,
    admin_group,
    admin_history,
    admin_install,
    admin_models,
    admin_predict,
    admin_replay,
    admin_shadow,
    admin_switch,
)
from slurm_asrpt_cli.common import run_app
from slurm_asrpt_cli.helping import Tools

app = Tools(
    help="Administrate slurm-asrpt: learn from history, look up predictions, find trouble.",
    epilog="""\b
Examples:
  asrpt-admin doctor
  asrpt-admin COMMAND --help""",
)

app.command("doctor")(admin_doctor.doctor_command)
app.command("install", short_help="Install on the controller, or take it away.")(admin_install.install_command)
app.command("disable")(admin_switch.disable_command)
app.command("enable")(admin_switch.enable_command)
app.command("audit")(admin_audit.audit_command)
app.command("snapshot")(admin_replay.snapshot_command)
app.command("replay")(admin_replay.replay_command)
app.command("shadow-report")(admin_shadow.shadow_command)
app.command("calibrate", short_help="Fit bandwidths to reported iteration times.")(admin_calibrate.calibrate_command)
app.command("calibration")(admin_calibration.calibration_command)
app.command("retrain", short_help="Learn from finished jobs.")(admin_models.retrain_command)
# Options end at the script, as with sbatch: what follows belongs to the script.
app.command("predict", context_settings={"allow_interspersed_args": False})(admin_predict.predict_command)
app.command("explain-prediction", context_settings={"allow_interspersed_args": False})(admin_predict.explain_command)
app.command("evaluate", short_help="Compare predictors on jobs that they have not seen.")(admin_evaluate.evaluate)
app.command("group", short_help="Show the group of job scripts, and why.")(admin_group.group_command)
app.add_typer(admin_models.app, name="models", short_help="List the stored models, go back to another.")
app.add_typer(admin_history.app, name="history")


def main() -> NoReturn:
    run_app(app)
