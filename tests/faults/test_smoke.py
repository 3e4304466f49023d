"""One small round of some faults on one lab; the campaign (make test-faults) runs them repeatedly and at full size."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import can_run_slurm
from tests.faults import arena as module
from tests.faults.arena import Arena
from tests.faults.campaign import play
from tests.faults.faults import FAULTS

pytestmark = pytest.mark.e2e

SEED = os.environ.get("ASRPT_FAULT_SEED", "1")
SMOKE = ("sigkill", "disk-full", "answers-fail")
"""One fault of each kind; all of them would take minutes."""


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    why_not = can_run_slurm()
    if why_not:
        pytest.skip(why_not)
    with module.arena() as made:
        yield made


@pytest.mark.parametrize("name", SMOKE)
def test_no_job_is_lost_stuck_or_run_twice(arena: Arena, name: str) -> None:
    counts = play(arena, FAULTS[name], SEED, FAULTS[name].smoke)
    assert counts.failures == []
    assert counts.injected >= 1
    assert counts.submitted >= 3
