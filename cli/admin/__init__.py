"""asrpt-admin: tools for administrators."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Listed, Tools

COMMANDS = {
    "doctor": Listed("admin.doctor:doctor_command", "Find problems and say how to fix them."),
    "install": Listed("admin.install:install_command", "Install on the controller, or uninstall."),
    "disable": Listed("admin.switch:disable_command", "Hand all waiting jobs back to Slurm now."),
    "release": Listed(
        "admin.switch:release_command", "Hand all waiting jobs back to Slurm if asrptd is gone.", seldom=True
    ),
    "enable": Listed("admin.switch:enable_command", "Let asrptd schedule again, in its configured mode."),
    "boost": Listed("admin.boost:boost_command", "Put a pending job before all others."),
    "audit": Listed("admin.audit:audit_command", "Show what asrptd decided, and why."),
    "snapshot": Listed(
        "admin.replay:snapshot_command", "Save the inputs and decisions of asrptd's next cycle.", seldom=True
    ),
    "replay": Listed("admin.replay:replay_command", "Repeat the decisions of a snapshot offline.", seldom=True),
    "shadow-report": Listed("admin.shadow:shadow_command", "Show what mode enforce would have done last week."),
    "calibrate": Listed(
        "admin.calibration:calibrate_command", "Fit bandwidths to reported iteration times.", seldom=True
    ),
    "calibration": Listed(
        "admin.calibration:calibration_command", "Show how often jobs started when asrpt-status said.", seldom=True
    ),
    "retrain": Listed("admin.models:retrain_command", "Learn from completed jobs."),
    "predict": Listed(
        "admin.predict:predict_command", "Show the prediction for a job script.", seldom=True, up_to_script=True
    ),
    "explain-prediction": Listed(
        "admin.explain_prediction:explain_command",
        "Show the past runs that a prediction is based on.",
        seldom=True,
        up_to_script=True,
    ),
    "evaluate": Listed("admin.evaluate:evaluate", "Compare predictors on unseen jobs.", seldom=True),
    "group": Listed("admin.group:group_command", "Show the recurrence group of job scripts.", seldom=True),
    "models": Listed("admin.models:app", "List the stored models, activate one, roll back.", seldom=True),
    "history": Listed("admin.history:app", "Import, export and inspect past runs."),
}

app = Tools(
    COMMANDS,
    help="Manage slurm-asrpt: find problems, see what it did and why.",
    epilog="""\b
Examples:
  asrpt-admin doctor
  asrpt-admin COMMAND --help""",
)


def main() -> NoReturn:
    run_app(app)
