"""benchmarks.audit: every part of the trail is timed in a scheduler as it is now."""

from __future__ import annotations

import pytest

from benchmarks import audit


def test_each_part_of_the_trail_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "NODES", 2)
    monkeypatch.setattr(audit, "CYCLES", 2)
    found = audit.measure(pending=4)
    assert set(found["busy"]) == {"whole_us", *(f"{name}_us" for name in audit.PARTS.values())}
    assert found["bytes_per_start"] > 0
