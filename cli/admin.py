"""asrpt-admin: the administrator's tools."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli.common import run_app
from slurm_asrpt_cli.loading import Tools

MODULES = {
    "doctor": "admin_doctor",
    "install": "admin_install",
    "disable": "admin_switch",
    "enable": "admin_switch",
    "audit": "admin_audit",
    "snapshot": "admin_replay",
    "replay": "admin_replay",
    "shadow-report": "admin_shadow",
    "calibrate": "admin_calibrate",
    "calibration": "admin_calibration",
    "retrain": "admin_models",
    "predict": "admin_predict",
    "explain-prediction": "admin_predict",
    "evaluate": "admin_evaluate",
    "group": "admin_group",
    "models": "admin_models",
    "history": "admin_history",
}

SELDOM = frozenset(("snapshot", "replay", "calibrate", "explain-prediction", "predict", "evaluate", "group", "models"))

app = Tools(
    MODULES,
    SELDOM,
    help="Administrate slurm-asrpt: find trouble, see what it did and why.",
    epilog="""\b
Examples:
  asrpt-admin doctor
  asrpt-admin COMMAND --help""",
)


def main() -> NoReturn:
    run_app(app)
