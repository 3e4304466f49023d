"""The scripts and figures of benchmarks.hook; the measuring itself needs a lab."""

from __future__ import annotations

import random

import pytest

from benchmarks.hook import figures, script


@pytest.mark.parametrize("size", [100, 65536])
def test_scripts_have_their_size_and_differ(size: int) -> None:
    draw = random.Random(1)
    one, two = script(size, draw), script(size, draw)
    assert len(one) == len(two) == size
    assert one != two
    assert one.startswith("#!/bin/bash\n")


def test_figures() -> None:
    found = figures([(12.0, 10.0), (10.5, 10.0), (11.0, 20.0)], list(range(1, 101)), list(range(11, 111)))
    assert (found["sbatch_ms"], found["sbatch_more_ms"], found["sbatch_overhead_pct"]) == (10.0, 0.5, 5.0)
    assert found["p50_us"] == pytest.approx(50.5, abs=0.5)
    assert (found["p99_us"], found["max_us"], found["pairs"]) == (99, 100, 3)
    assert (found["control_p50_us"], found["control_p99_us"]) == (60, 109)
