"""A policy in its own package (tests/plugin_policy), installed with pip, in the simulator and in asrptd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "tests" / "plugin_policy"
NAME = "users-in-turn"
CONFIG = f"""
[policy]
name = "{NAME}"
jobs_per_turn = 3
"""
MAKE = """
from pathlib import Path
from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.daemon import setup
policy = setup.configured_policy(load_settings(Path("asrpt.toml")))
print(type(policy).__module__, policy.options.jobs_per_turn)
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory where pip installed the package; no network is needed."""
    place = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PACKAGE, place / "source")  # setuptools builds next to the sources
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", place / "site", source], check=True)
    return place / "site"


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run a command of this package with the plugin installed."""

    def call(program: str, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable] if program == "python" else [Path(sys.executable).with_name(program)]
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        return subprocess.run([*command, *args], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return call


def test_the_simulator_runs_the_plugin(run: Run) -> None:
    found = run("asrpt-sim", "run", "pai-like:200", "--servers", "4", "--policy", f"{NAME}:jobs_per_turn=2", "--json")
    assert found.returncode == 0, found.stderr
    summary = json.loads(found.stdout)["summary"]
    assert summary["ended"] == summary["jobs"] > 0


def test_a_policy_that_does_not_load_is_a_warning(run: Run) -> None:
    found = run("asrpt-sim", "run", "pai-like:100", "--policy", "fifo", "--json")
    assert found.returncode == 0
    assert "policy unfinished of asrpt-users-in-turn (users_in_turn:Unfinished) is not available" in found.stderr


def test_its_options_are_validated_and_unknown_policy_errors_list_it(run: Run) -> None:
    wrong = run("asrpt-sim", "run", "pai-like:100", "--policy", f"{NAME}:jobs_per_turn=0")
    assert (wrong.returncode, "greater than or equal to 1" in wrong.stderr) == (2, True)
    unknown = run("asrpt-sim", "run", "pai-like:100", "--policy", "nobody")
    assert (unknown.returncode, NAME in unknown.stderr, "unfinished" in unknown.stderr.splitlines()[-1]) == (
        2,
        True,
        False,
    )


def test_asrptd_passes_its_settings_to_the_plugin(run: Run, tmp_path: Path) -> None:
    (tmp_path / "asrpt.toml").write_text(CONFIG)
    found = run("python", "-c", MAKE)
    assert found.stdout.split() == ["users_in_turn", "3"], found.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("jobs_per_turn = 0", "policy.jobs_per_turn: Input should be greater than or equal to 1"),
        ("jobs_per_trun = 3", "unknown setting policy.jobs_per_trun"),
        ("tau = -1", "policy.tau: Input should be greater than or equal to 0"),
    ],
)
def test_its_settings_are_checked_like_others(run: Run, tmp_path: Path, change: str, says: str) -> None:
    (tmp_path / "asrpt.toml").write_text(CONFIG.replace("jobs_per_turn = 3", change))
    found = run("python", "-c", MAKE)
    assert found.returncode != 0
    assert says in found.stderr
