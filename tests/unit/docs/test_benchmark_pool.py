"""benchmarks.pool: its plain processes and its pools train the same; another seed is noticed."""

from __future__ import annotations

from benchmarks.pool import pool, processes, same, spec


def test_plain_processes_and_pools_give_equal_weights() -> None:
    specs = [spec(f"t{seed}", seed, tasks=2, rounds=3) for seed in range(2)]
    mean_s, plain = processes(specs, 2)
    ran = pool(specs, 2)
    assert same(ran.results, plain)
    assert 0 < ran.status.work_s < ran.slot_s
    assert mean_s > 0
    other = [spec(each.name, 7, tasks=2, rounds=3) for each in specs]
    assert not same(pool(other, 1).results, plain)
