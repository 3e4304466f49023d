"""Reasons of jobs that do not fit: what they need, and what is free on nodes that they may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slurm_asrpt.core.job import GresAmounts, Request, gres_text
from tests.benches.daemon import Bench

POLICIES = ("asrpt-gated", "asrpt", "easy-backfill", "fifo", "hlas", "wcs-workload")
PER_JOB: dict[str, Any] = {"tres_per_task": "", "tres_per_job": "gres:gpu:8"}
PER_NODE: dict[str, Any] = {"tres_per_task": "", "tres_per_node": "gres:gpu:8", "min_nodes": 1, "max_nodes": 1}
ON_N2 = {**PER_JOB, "required_nodes": "n2", "min_nodes": 1, "max_nodes": 1}


def text_of(bench: Bench, job_id: str) -> str:
    return next(job.text for job in bench.status(bench.slurm.now).jobs if job.job_id == job_id)


def six_free_on_each(make_bench: Callable[..., Bench], policy: str) -> Bench:
    """Two nodes of eight GPUs."""
    bench = make_bench((8, 8), policy=policy, release_ahead=0)
    for node in ("n1", "n2"):
        bench.slurm.submit(2, 10, required_nodes=node, min_nodes=1, max_nodes=1)
    bench.cycle(8)
    assert {node.name: node.gpus_free for node in bench.status(bench.slurm.now).nodes} == {
        "n1": 6, "n2": 6,
    }  # fmt: skip
    return bench


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (ON_N2, "needs 8 GPUs, 6 free for it"),
        ({**PER_NODE, "required_nodes": "n2"}, "needs 8 GPUs, 6 free for it"),
        ({**PER_JOB, "excluded_nodes": "n1"}, "needs 8 GPUs, 6 free for it"),
        (PER_NODE, "needs 8 GPUs, all on one node; 12 free for it, at most 6 on one"),
        (
            {"tasks": 2, "tres_per_task": "gres:gpu:4", "cpus": 2, "min_nodes": 2, "max_nodes": 2, "exclusive": "node"},
            "needs 16 GPUs, 12 free for it",
        ),
        (
            {**PER_JOB, "exclusive": "node"},
            "needs 8 GPUs, all on one node; 12 free for it, at most 6 on one",
        ),
        (
            {**PER_JOB, "tasks": 1, "cpus": 8 * 60},
            "needs 8 GPUs, 12 free for it, but not enough CPUs or memory",
        ),
    ],
)
def test_the_reason_counts_free_gpus_where_the_job_may_run(
    make_bench: Callable[..., Bench], policy: str, fields: dict[str, Any], text: str
) -> None:
    bench = six_free_on_each(make_bench, policy)
    job_id = bench.slurm.submit(8, 10, **fields)
    bench.cycle(20)
    assert text_of(bench, job_id).startswith(text)


@pytest.mark.parametrize(
    ("request_", "gpus", "words"),
    [
        (Request(), 8, ""),
        (Request(max_nodes=1), 8, "all on one node"),
        (Request(per_node=8), 8, "all on one node"),
        (Request(unit=8), 8, "all on one node"),
        (Request(per_node=4), 8, "4 on each of 2 nodes"),
        (Request(unit=2), 8, "in groups of 2 that share a node"),
        (Request(unit=2, min_nodes=2, max_nodes=2), 8, "in groups of 2 that share a node, on 2 nodes"),
        (Request(min_nodes=2), 8, "on at least 2 nodes"),
        (Request(min_nodes=2, max_nodes=4), 8, "on 2 to 4 nodes"),
    ],
)
def test_a_request_as_text(request_: Request, gpus: int, words: str) -> None:
    assert request_.shape(gpus) == words


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        ((("nvme", 1), ("scratch", 100 * 2**30)), "nvme:1,scratch:100G"),
        ((("fpga", 2), ("fpga:a", 2), ("nic", 0), ("tmp", 1536)), "fpga:a:2,nic:0,tmp:1536"),
        ((("tmp", 2**50), ("xtmp", 3 * 2**10)), "tmp:1P,xtmp:3K"),
    ],
)
def test_other_generic_resources_are_shown_as_users_write_them(amounts: GresAmounts, text: str) -> None:
    assert gres_text(amounts) == text
