"""sjf-bco-online on a small cluster: a plan in each cycle, from which the jobs that start now are started."""

import pytest

from slurm_asrpt.core.cluster import ClusterView, Node
from slurm_asrpt.core.job import JobId, JobProfile, Stage
from slurm_asrpt.core.policies.sjf_bco import policy
from tests.benches.gated import Bench as AnyBench
from tests.benches.gated import job, restarted

RING = JobProfile(
    "ring", (Stage(3, 0.5, 0.5, param_bytes=5e8),)
)  # 0.53 s longer with its own NIC, twice with half of one


def Bench(*sizes, **settings):  # noqa: N802
    return AnyBench(*sizes, policy="sjf-bco-online", **settings)


def test_the_smallest_jobs_start_first_and_the_others_get_a_start_time():
    bench = Bench(4).submit(job("big", 4, 100), job("mid", 2, 50), job("one", 1, 10), job("two", 1, 20))
    assert bench.decide() == {"mid": {"n0": 2}, "one": {"n0": 1}, "two": {"n0": 1}}
    assert bench.why() == [("big", "reserved")]
    bench.end("one", 10)
    bench.end("two", 20)
    assert bench.decide(20) == {}
    ((_, why),) = bench.policy.queue(20)
    assert why.facts["in_s"] == pytest.approx(30)
    bench.end("mid", 50)
    assert bench.decide(50) == {"big": {"n0": 4}}


def test_a_stream_of_small_jobs_does_not_starve_a_large_one():
    bench = Bench(2, patience_s=100.0).submit(job("first", 1, 60), job("large", 2, 10))
    assert list(bench.decide()) == ["first"]
    bench.submit(job("second", 1, 1000, submit=50.0), now=50.0)
    assert list(bench.decide(50)) == ["second"]
    bench.end("first", 60)
    bench.submit(job("third", 1, 60, submit=90.0), now=90.0)
    assert list(bench.decide(90)) == ["third"]
    bench.end("third", 150)
    assert bench.policy.next_wakeup(60) == 100
    bench.submit(job("fourth", 1, 60, submit=150.0), now=150.0)
    assert bench.decide(150) == {}
    assert [job_id for job_id, _ in bench.why(150)] == ["large", "fourth"]
    bench.end("second", 1050)
    assert bench.decide(1050) == {"large": {"n0": 2}}


def test_two_rings_do_not_share_servers():
    """Each needs two servers of two GPUs; on three servers they share one, on four they need not."""
    bench = Bench(2, 2, 2, 2).submit(*(job(name, iterations=100, profile=RING) for name in "ab"))
    started = bench.decide()
    assert set(started) == {"a", "b"}
    assert not set(started["a"]) & set(started["b"])


def test_requests_are_respected():
    bench = Bench(4, 4, 4).submit(
        job("even", 4, 10, per_node=2),
        job("there", 2, 10, candidates=frozenset({"n2"})),
        job("pairs", 4, 10, unit=2),
        job("never", 6, 10, per_node=6),
    )
    started = bench.decide()
    assert sorted(started["even"].values()) == [2, 2]
    assert started["there"] == {"n2": 2}
    assert all(count % 2 == 0 for count in started["pairs"].values())
    assert bench.why() == [("never", "capacity")]


def test_unmanaged_jobs_are_planned_around():
    bench = Bench(2, 2)
    bench.occupy("foreign", until=500.0, n0=2)
    bench.submit(job("wide", 4, 10), job("narrow", 2, 10))
    assert bench.decide() == {"narrow": {"n1": 2}}
    ((_, why),) = bench.policy.queue(0)
    assert why.facts["in_s"] == pytest.approx(500)
    bench.end("narrow", 10)
    assert bench.decide(10) == {}


def test_a_returned_job_is_first_among_jobs_of_its_size():
    bench = Bench(1).submit(job("a", 1, 10), job("b", 1, 10), job("c", 1, 10))
    assert list(bench.decide()) == ["a"]
    bench.view.give({"n0": 1})
    bench.policy.returned(bench.placed.pop("a").job, 1.0)
    assert list(bench.decide(1)) == ["a"]
    bench.policy.finished("b", 2.0)
    bench.end("a", 10)
    assert list(bench.decide(10)) == ["c"]


def test_a_changed_job_is_replanned():
    bench = Bench(2, 2).submit(job("a", 1, 10, candidates=frozenset({"n9"})))
    assert bench.decide() == {}
    bench.policy.changed(job("a", 1, 10, candidates=frozenset({"n1"})), 5.0)
    bench.policy.changed(job("gone", 1, 10), 5.0)
    assert bench.decide(5) == {"a": {"n1": 1}}


def test_a_restart_continues():
    waiting = [job("x", 2, 30), job("y", 2, 40), job("z", 1, 5)]
    bench = Bench(2).submit(*waiting)
    assert list(bench.decide()) == ["z"]
    after = restarted(bench, waiting[:2])
    assert after.decide(1) == {}
    assert [job_id for job_id, _ in after.why(1)] == ["x", "y"]
    after.end("z", 5)
    assert list(after.decide(5)) == ["x"]
    with pytest.raises(ValueError, match="not a state of policy sjf-bco-online"):
        after.policy.load({"order": [[1]]}, {})


def test_the_number_of_planned_jobs_is_limited(monkeypatch):
    monkeypatch.setattr(policy, "PLANNED", 3)
    bench = Bench(4).submit(*(job(f"j{i}", 1, 10) for i in range(6)))
    assert list(bench.decide()) == ["j0", "j1", "j2"]
    assert list(bench.decide(1)) == ["j3"]


def test_a_request_outside_the_plan_model_starts_with_slurms_split():
    """Groups of 2, but Slurm splits by single GPUs: it does not fit on servers of 1, but on the server of 2."""
    bench = Bench(1, 1, 2).submit(job("pair", 2, 10, unit=2, min_nodes=1))
    assert bench.decide() == {"pair": {"n2": 2}}


def test_new_nodes_make_room_for_jobs_that_were_too_large():
    bench = Bench(2).submit(job("wide", 4, 10))
    assert (bench.decide(), bench.why()) == ({}, [("wide", "capacity")])
    bench.view = ClusterView([Node(f"n{i}", 2, i) for i in range(2)])
    bench.policy.cluster_changed(bench.view.nodes, 1.0)
    assert bench.decide(1.0) == {"wide": {"n0": 2, "n1": 2}}


def test_after_a_cancellation_the_next_job_says_what_it_lacks():
    bench = Bench(2)
    bench.occupy("foreign", until=500.0, n0=2)
    bench.submit(job("first", 2, 100), job("second", 2, 200))
    assert (bench.decide(), bench.why()) == ({}, [("first", "gpus"), ("second", "behind")])
    bench.policy.finished(JobId("first"), 1.0)
    assert (bench.decide(), bench.why()) == ({}, [("second", "gpus")])
