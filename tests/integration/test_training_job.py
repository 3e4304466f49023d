"""Real trainings as jobs of a real Slurm: what they report is learned, and predicted for the next run."""

from __future__ import annotations

from argparse import Namespace

import pytest

pytest.importorskip("torch", reason="needs torch: make test-integrations")

from benchmarks.trainings import KINDS, in_a_lab, installed
from tests.e2e.conftest import BASE_PORT, can_run_slurm

pytestmark = pytest.mark.e2e
SECONDS = 4.0


def test_the_second_run_is_predicted_from_what_the_first_reported() -> None:
    """With a profile in iterations, without one in seconds. How near these are is for benchmarks.trainings to say."""
    if reason := can_run_slurm():
        pytest.skip(reason)
    kinds = installed(KINDS)
    options = Namespace(base_port=BASE_PORT + 700, seconds=SECONDS, device="cpu", on="text", profiled=False)
    rows = {(row["kind"], row["profile"]): row for row in in_a_lab(kinds, options)}
    assert rows.keys() == {(kind, profile) for kind in kinds for profile in (True, False)}
    for kind in kinds:
        row = rows[kind, True]
        assert (row["source"], row["iterations"]) == ("reported", row["reported_total"])
        assert row["predicted_iterations"] == row["iterations"]
        assert row["predicted_s"] == pytest.approx(row["iterations"] * row["alpha_s"])
        assert rows[kind, False]["predicted_s"] == rows[kind, False]["iterations"] == rows[kind, False]["first_s"]
