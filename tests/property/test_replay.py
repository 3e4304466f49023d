"""Replaying a decision offline gives the same result byte for byte, for any cluster and policy."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.audit.inputs import canonical, from_document
from slurm_asrpt.audit.snapshot import difference, from_bytes, replay, to_bytes
from slurm_asrpt.slurm.preemption import PreemptionDefaults, PreemptionKind, PreemptionRules
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm
from tests.examples import examples

SIZES = (4, 4, 2, 8)
PAUSES = st.sampled_from([0.0, 1.0, 1.0, 7.0, 30.0, 400.0, 7 * 86400.0, 0.123])
PROFILES = {6: "tail", 4: "flat", 8: "sliced"}
NORMAL_FIRST = PreemptionRules(
    {
        "normal": PreemptionKind(frozenset({"scavenger"}), "REQUEUE", 1),
        "scavenger": PreemptionKind(frozenset(), "REQUEUE", 0, grace_s=3.0, exempt_s=2.0),
    },
    PreemptionDefaults("qos", "REQUEUE"),
)
LEVELS = {"n1": ("leaf1", "top"), "n2": ("leaf2", "top"), "n3": ("leaf1", "top"), "n4": ("leaf2", "top")}
submissions = st.tuples(
    st.just("submit"), st.sampled_from([1, 1, 2, 3, 4, 6, 8, 10, 40]), st.sampled_from([0, 0, 5, 100, 10**6])
)
events = submissions | st.tuples(
    st.sampled_from(["end", "end", "cancel", "requeue", "node", "restart", "stuck"]), st.integers(0, 99), st.just(0)
)


def bench_of(folder: Path, policy: str, preempt: PreemptionRules, levels: bool) -> Bench:
    """levels: whether the nodes are under two switches, with a slower one above, and have several NVLink domains."""
    slurm = FakeSlurm(SIZES, preempt=preempt, switches=dict(LEVELS) if levels else {})
    domains = {"nvlink_domain": 2, "across_bytes_per_s": 2e8}
    fabric = {"inter_bytes_per_s": 1.25e9, "beyond_bytes_per_s": [1e8], **domains} if levels else {}
    if levels:
        slurm.table = [replace(node, gres={"nvme": 2}) for node in slurm.table]
    return Bench(folder, slurm, policy=policy, tau=20.0, tables={"fabric": fabric})


def happens(bench: Bench, what: str, pick: int, more: int) -> None:
    slurm = bench.slurm
    if what == "submit":
        qos = "normal" if more == 5 or pick == 3 else "scavenger"
        disk = "gres:nvme:1" if more == 5 and slurm.table[0].gres else ""
        profile = PROFILES.get(pick, "") if more else ""
        slurm.submit(pick, more, profile, time_limit=float(more % 7 * 600), qos=qos, tres_per_node=disk)
    elif what == "node":
        slurm.node_state(f"n{pick % 4 + 1}", "IDLE+DRAIN" if pick % 8 < 4 else "IDLE")
    elif what == "restart":
        bench.restart()
    elif what == "stuck":
        slurm.starts_jobs = not slurm.starts_jobs
    else:
        wanted = "PENDING" if what == "cancel" else "RUNNING"
        found = [job_id for job_id, record in slurm.records.items() if record.state == wanted]
        if found and what == "requeue":
            slurm.requeue(found[pick % len(found)])
        elif found:
            slurm.end(found[pick % len(found)], "CANCELLED" if what == "cancel" else "COMPLETED")


def check_replay(bench: Bench) -> None:
    decided = bench.scheduler.decider.decided
    assert decided is not None
    snapshot = from_bytes(to_bytes(decided.document, decided.answer), "it")
    decisions, others = replay(snapshot, "it")
    assert difference(snapshot.decisions, decisions) == []
    assert sorted(each["job"] for each in (*decisions, *others)) == sorted(job.id for job in decided.inputs.jobs)
    assert snapshot.digest == decided.digest
    assert from_document(json.loads(canonical(decided.document))) == decided.inputs


@pytest.mark.parametrize("preempt", [PreemptionRules(), NORMAL_FIRST], ids=["", "preempting"])
@pytest.mark.parametrize("policy", ["asrpt", "asrpt-gated", "easy-backfill", "wcs-duration"])
@settings(max_examples=examples(25), deadline=None)
@given(levels=st.booleans(), walk=st.lists(st.tuples(st.lists(events, max_size=4), PAUSES), min_size=1, max_size=12))
def test_every_decision_is_replayed_byte_for_byte(
    policy: str, preempt: PreemptionRules, levels: bool, walk: list[tuple[list[Any], float]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="asrpt-replay-") as folder:
        bench = bench_of(Path(folder), policy, preempt, levels)
        try:
            for happenings, pause in walk:
                for happening in happenings:
                    happens(bench, *happening)
                bench.cycle(seconds=pause)
                check_replay(bench)
        finally:
            bench.close()
