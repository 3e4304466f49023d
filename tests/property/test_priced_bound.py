"""The bound from prices against the true optimum of tiny instances, and against the policies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.priced_bound import priced_bound
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import unprofiled
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable
from tests.examples import examples
from tests.reference.exact import optimum

FABRIC = Fabric(1.25e9, 300e9)
NODES = [Node("n0", 4), Node("n1", 4)]


def tables(most: int) -> st.SearchStrategy[JobTable]:
    job = st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 30))
    return st.lists(job, min_size=1, max_size=most).map(_table)


def _table(rows: list[tuple[int, int, int]]) -> JobTable:
    submit, gpus, seconds = (np.array(column, dtype=float) for column in zip(*sorted(rows), strict=True))
    profiles = tuple(map(unprofiled, range(1, 9)))
    return JobTable(profiles, submit, gpus.astype(np.int64) - 1, seconds, seconds)


@settings(max_examples=examples(60), deadline=None)
@given(tables(4), st.floats(0.5, 3))
def test_no_schedule_is_below_the_bound(table: JobTable, factor: float) -> None:
    """Whatever the bound is told to be possible."""
    best = optimum(table, NODES, FABRIC)
    assert priced_bound(table, NODES, FABRIC, factor * best) <= best * (1 + 1e-9)


@pytest.mark.parametrize("name", ["asrpt-gated", "spjf", "easy-backfill"])
@settings(max_examples=examples(20), deadline=None)
@given(table=tables(30))
def test_no_policy_is_below_the_bound(name: str, table: JobTable) -> None:
    found = float(simulate_named(name, NODES, table, FABRIC).end.sum())
    assert priced_bound(table, NODES, FABRIC, found) <= found * (1 + 1e-9)
