"""What the commands import before they know what is asked for: --help and completion must not wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from slurm_asrpt_cli import admin, pool, profile

TOOLS = ("asrptd", "lab", "report", "status.command", "admin", "pool", "profile", "sim")
LATE = {"admin.evaluate"}
"""Its options, like those of asrpt-sim, show what only slow modules know: predictors, formats, defaults."""
TABLES = {"admin": admin.COMMANDS, "pool": pool.COMMANDS, "profile": profile.COMMANDS}
COMMANDS = sorted({each.module for table in TABLES.values() for each in table.values()} - LATE)

SLOW = (
    "numpy", "pandas", "scipy", "sklearn", "matplotlib", "pydantic", "ClusterShell", "jinja2", "networkx", "rich",
    "slurm_asrpt.config.settings", "slurm_asrpt.daemon.main", "slurm_asrpt.lab.cluster",
)  # fmt: skip


@pytest.mark.parametrize("module", [*TOOLS, *COMMANDS])
def test_a_command_imports_nothing_slow_before_it_runs(module: str) -> None:
    program = f"import sys, slurm_asrpt_cli.{module}; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(answer.stdout.split())
    assert f"slurm_asrpt_cli.{module}" in loaded
    assert sorted(loaded & set(SLOW)) == []
