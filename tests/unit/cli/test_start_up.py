"""What the commands import before they know what is asked for: --help and completion must not wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOOLS = ("asrptd", "lab", "report", "status.command", "admin", "pool", "profile", "sim")
COMMANDS = ("profile.attach", "profile.files", "profile.plan", "profile.run")

SLOW = (
    "numpy", "pandas", "scipy", "sklearn", "matplotlib", "pydantic", "ClusterShell", "jinja2", "networkx", "rich",
    "slurm_asrpt.daemon.main", "slurm_asrpt.lab.cluster",
)  # fmt: skip


@pytest.mark.parametrize("module", TOOLS + COMMANDS)
def test_a_command_imports_nothing_slow_before_it_runs(module: str) -> None:
    program = f"import sys, slurm_asrpt_cli.{module}; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(answer.stdout.split())
    assert f"slurm_asrpt_cli.{module}" in loaded
    assert sorted(loaded & set(SLOW)) == []
