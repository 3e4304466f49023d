"""docs/security.md names existing tests and the figures of systemd-analyze."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted({*re.findall(r"`(test_\w+\.py)::(test_\w+)`", TEXT)})
UNITS = dict(zip(("asrptd", "asrpt-release", "asrpt-retrain"), re.findall(r"\*\*([0-9.]+)\*\*", TEXT), strict=True))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    there = [path.read_text() for path in (ROOT / "tests").rglob(file)]
    assert any(re.search(rf"^def {name}\(", text, flags=re.MULTILINE) for text in there)


def test_every_line_of_the_threat_model_names_a_test() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| What is tried")]
    assert len(lines) > 30
    assert [line for line in lines if "::test_" not in line.rpartition(" | ")[2]] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize(("unit", "figure"), UNITS.items())
def test_the_units_have_the_documented_exposure(unit: str, figure: str) -> None:
    """Other releases of systemd check other settings, and may compute slightly different figures."""
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--no-pager",
        ROOT / "etc" / "systemd" / f"{unit}.service",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert abs(float(found[1]) - float(figure)) <= 0.3
