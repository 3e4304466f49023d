"""asrpt-admin: tools for administrators."""

from __future__ import annotations

from typing import NoReturn

from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Tools

MODULES = {
    "doctor": "admin.doctor",
    "install": "admin.install",
    "disable": "admin.switch",
    "release": "admin.switch",
    "enable": "admin.switch",
    "audit": "admin.audit",
    "snapshot": "admin.replay",
    "replay": "admin.replay",
    "shadow-report": "admin.shadow",
    "calibrate": "admin.calibration",
    "calibration": "admin.calibration",
    "retrain": "admin.models",
    "predict": "admin.predict",
    "explain-prediction": "admin.predict",
    "evaluate": "admin.evaluate",
    "group": "admin.group",
    "models": "admin.models",
    "history": "admin.history",
}

SELDOM = frozenset(
    ("release", "snapshot", "replay", "calibrate", "explain-prediction", "predict", "evaluate", "group", "models")
)

app = Tools(
    MODULES,
    SELDOM,
    help="Manage slurm-asrpt: find problems, see what it did and why.",
    epilog="""\b
Examples:
  asrpt-admin doctor
  asrpt-admin COMMAND --help""",
)


def main() -> NoReturn:
    run_app(app)
