"""What the commands import before they know what is asked for: --help and completion must not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from slurm_asrpt_cli import admin, pool, profile, sim
from slurm_asrpt_cli._app import start
from slurm_asrpt_cli.sim import options, traces

from slurm_asrpt.predict.predictors import predictor_names
from slurm_asrpt.sim.description import PERFECT, PREDICTORS
from slurm_asrpt.traces import AUTO
from slurm_asrpt.traces.sources import GENERATED_JOBS
from slurm_asrpt.traces.synthetic import DAYS

TOOLS = ("asrptd", "lab", "report", "status.command", "admin", "pool", "profile", "sim")
TABLES = {"admin": admin.COMMANDS, "pool": pool.COMMANDS, "profile": profile.COMMANDS, "sim": sim.COMMANDS}
COMMANDS = sorted({each.module for table in TABLES.values() for each in table.values()})

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


def test_defaults_that_help_shows_are_those_of_what_it_does_not_import() -> None:
    assert sorted(PREDICTORS) == sorted([PERFECT, *predictor_names()])
    assert options.AUTO == AUTO
    assert (traces.GENERATED_JOBS, traces.DAYS) == (GENERATED_JOBS, DAYS)


@pytest.mark.parametrize(
    ("tool", "given", "threads"), [(start.sim, "", "1"), (start.sim, "4", "4"), (start.profile, "", None)]
)
def test_numpy_starts_no_threads_unless_the_user_wants_them_or_trainings_are_measured(
    tool: Callable[[], int | None], given: str, threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    monkeypatch.setattr(sys, "argv", ["tool", "--version"])
    with pytest.raises(SystemExit):
        tool()
    assert os.environ.get("OPENBLAS_NUM_THREADS") == threads
