"""systemd: that our units run, start at boot and are those of their files. No findings where there is no systemd."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping

from slurm_asrpt.doctor.findings import Finding, failure, ok, warning

UNITS = ("asrptd.service", "asrpt-retrain.timer")
PROPERTIES = "Id,LoadState,ActiveState,Result,UnitFileState,NeedDaemonReload"
TIMEOUT_S = 10.0

Unit = Mapping[str, str]


def look_at_units() -> list[Unit]:
    """What systemd says of our units; nothing where none answers."""
    command = ["systemctl", "show", *UNITS, f"--property={PROPERTIES}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_units(done.stdout) if done.returncode == 0 else []


def parse_units(text: str) -> list[Unit]:
    """The answer of ``systemctl show``: a block a unit."""
    return [dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.split("\n\n") if block]


def units(found: list[Unit]) -> Iterator[Finding]:
    """One finding a unit that is not as it should be."""
    bad = [finding for unit in found for finding in _unit(unit)]
    yield from bad
    if found and not bad:
        yield ok("units", f"{' and '.join(UNITS)} run and start at boot")


def _unit(unit: Unit) -> Iterator[Finding]:
    name, active = unit.get("Id", ""), unit.get("ActiveState", "")
    if unit.get("LoadState") != "loaded":
        text = f"systemd has no {name} ({unit.get('LoadState', 'unknown')})"
        yield warning("units", text, "run this on the controller; there, asrpt-admin install --apply")
        return
    if active == "failed":
        yield failure(
            "units", f"{name} has failed ({unit.get('Result')})", f"journalctl -u {name}; then start it again"
        )
    elif active not in ("active", "activating", "reloading"):
        yield failure("units", f"{name} does not run ({active})", f"systemctl start {name}")
    if unit.get("UnitFileState") not in ("enabled", "enabled-runtime", "linked"):
        text = f"{name} does not start at boot ({unit.get('UnitFileState')})"
        yield warning("units", text, f"systemctl enable {name}")
    if unit.get("NeedDaemonReload") == "yes":
        text = f"{name} was changed and systemd has the one before"
        yield warning("units", text, f"systemctl daemon-reload; systemctl restart {name}")
