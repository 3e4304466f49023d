"""The baselines step by step: orders, backfill, reasons, restarts."""

import json

import pytest

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Phase, Start, Wait, reason
from slurm_asrpt.core.policies.easy_backfill import ANY
from slurm_asrpt.core.policies.limit_tree import LimitTree
from slurm_asrpt.status.reason_texts import text_of

FABRIC = Fabric(1.25e9, 300e9)
NAMES = ["fifo", "spjf", "spwf", "wcs-duration", "wcs-workload", "wcs-subtime", "easy-backfill"]
ROWS = {1: (3, 10), 2: (2, 40), 3: (1, 25), 4: (1, 300)}  # GPUs, predicted seconds: submitted in this order


def cluster(*free, gpus=4):
    nodes = [Node(f"n{i}", gpus, i) for i in range(1, len(free) + 1)]
    return ClusterView(nodes, {n.name: f for n, f in zip(nodes, free, strict=True)})


def policy(name, view, **settings):
    made = make_policy(name, fabric=FABRIC, **settings)
    made.cluster_changed(view.nodes, 0.0)
    return made


def job(number, gpus=1, iterations=0.0, **more):
    return Job(JobId(str(number)), "ann", gpus, unprofiled(gpus), iterations, submit_time=float(number), **more)


def started(decisions):
    return [d.job.id for d in decisions if isinstance(d, Start)]


def full(name, view, **settings):
    made = policy(name, view, **settings)
    for number, (gpus, seconds) in ROWS.items():
        made.submitted(job(number, gpus, seconds), float(number))
    return made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fifo", []),
        ("spjf", []),
        ("spwf", ["3"]),  # 25, 30, 80, 300 GPU-seconds: job 1 blocks then
        ("wcs-duration", ["3", "4"]),  # 10 does not fit; 25; 40 no longer; 300
        ("wcs-workload", ["3", "4"]),
        ("wcs-subtime", ["2"]),
        ("easy-backfill", []),  # without time limits no job may pass the head
    ],
)
def test_each_order(name, expected):
    view = cluster(2, gpus=4)
    made = full(name, view)
    decisions = made.decide(view, 5.0)
    assert started(decisions) == expected
    assert view.total_free == 2
    waits = [d for d in decisions if isinstance(d, Wait)]
    assert [(w.job.id, w.reason.kind) for w in waits] == [("1", "gpus")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("spjf", "12"), ("wcs-duration", "12"), ("spwf", "21"), ("wcs-workload", "21")],
)
def test_a_workload_is_a_duration_times_gpus(name, expected):
    """Job 1: 3 GPUs for 20 s, job 2: 1 GPU for 40 s; one of them is in the way of the other."""
    view = cluster(3, gpus=4)
    made = policy(name, view)
    for number, gpus, seconds in ((1, 3, 20.0), (2, 1, 40.0)):
        made.submitted(job(number, gpus, seconds), 0.0)
    assert started(made.decide(view, 1.0)) == [expected[0]]
    assert [job_id for job_id, _ in made.queue(1.0)] == [expected[1]]


@pytest.mark.parametrize("name", NAMES)
def test_jobs_go_to_the_servers_with_the_most_free_gpus(name):
    view = cluster(2, 3, 4, 1)
    made = policy(name, view)
    made.submitted(job(1, 2, 10), 0.0)
    (start,) = made.decide(view, 0.0)
    assert dict(start.placement.gpus) == {"n3": 2}


@pytest.mark.parametrize("name", NAMES)
def test_a_returned_job_stays_first_when_the_nodes_change(name):
    view = cluster(0)
    made = full(name, view)
    made.returned(job(9, 1, 1000), 6.0)
    assert made.queue(7.0)[0][0] == "9"
    made.cluster_changed(cluster(0, 0).nodes, 8.0)
    assert made.queue(9.0)[0][0] == "9"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("wcs")])
def test_a_job_passes_one_of_its_size_that_needs_other_nodes(name):
    view = cluster(1, 1)
    made = policy(name, view)
    made.submitted(job(1, 2, 10, request=Request(max_nodes=1)), 0.0)
    made.submitted(job(2, 2, 20, request=Request(per_node=1)), 1.0)
    assert started(made.decide(view, 2.0)) == ["2"]


@pytest.mark.parametrize("name", NAMES)
def test_jobs_over_a_limit_are_considered_anew_when_the_nodes_change(name):
    view = cluster(4)
    made = policy(name, view)
    for number, limit in ((1, "a"), (2, "b")):
        made.submitted(job(number, charges=((limit, 1.0),)), 0.0)
    view.headroom = Headroom({"a": 0.0, "b": 0.0})
    assert started(made.decide(view, 1.0)) == []
    made.cluster_changed(view.nodes, 2.0)
    view.headroom = Headroom({"a": 1.0, "b": 0.0})
    assert started(made.decide(view, 3.0)) == ["1"]
    assert started(made.decide(view, 4.0)) == []
    view.headroom = Headroom({"a": 1.0, "b": 1.0})
    assert started(made.decide(view, 5.0)) == ["2"]


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_changes_nothing(name):
    view = cluster(0)
    first = full(name, view)
    first.finished(JobId("3"), 5.0)
    back = job(9)
    first.returned(back, 6.0)
    state = json.loads(json.dumps(first.dump()))
    second = policy(name, view)
    second.load(state, {j.id: j for j in (back, *(job(n, *row) for n, row in ROWS.items()))})
    assert [row[0] for row in second.queue(7.0)] == [row[0] for row in first.queue(7.0)]
    assert second.queue(7.0)[0][0] == "9"
    assert started(second.decide(cluster(4), 8.0)) == started(first.decide(cluster(4), 8.0))
    for broken in ({}, {"order": [["1"]], "returns": 0}, {"seats": [], "running": 0}):
        with pytest.raises(ValueError, match="not a state"):
            second.load(broken, {})


@pytest.mark.parametrize("name", NAMES)
def test_cancelled_changed_and_oversized_jobs(name):
    view = cluster(1, gpus=1)
    made = policy(name, view)
    made.submitted(job(1, 5), 1.0)  # does not fit on the cluster
    made.submitted(job(2, 1), 2.0)
    made.submitted(job(3, 1), 3.0)
    made.submitted(job(4, 1), 4.0)
    made.finished(JobId("2"), 5.0)
    made.finished(JobId("77"), 5.0)
    made.changed(job(77), 5.0)
    made.changed(job(3, 5), 5.0)
    assert started(made.decide(view, 6.0)) == ["4"]
    kinds = {job_id: why.kind for job_id, why in made.queue(6.0)}
    assert kinds == {"1": "capacity", "3": "capacity"}
    made.changed(job(3, 1), 7.0)
    assert started(made.decide(view, 7.0)) == ["3"]
    made.cluster_changed(cluster(5, gpus=5).nodes, 8.0)
    assert started(made.decide(cluster(5, gpus=5), 8.0)) == ["1"]
    assert made.queue(9.0) == []
    assert made.next_wakeup(9.0) is None


def test_reasons_that_users_see():
    view = cluster(2)
    texts = [text_of(why) for _, why in full("fifo", view).queue(5.0)]
    assert texts[1] == "1 job ahead; job 1 is next"
    made = full("wcs-subtime", view)
    made.decide(view, 5.0)
    assert text_of(dict(made.queue(5.0))["1"]) == "needs 3 GPUs, 0 free for it"
    assert text_of(dict(made.queue(5.0))["4"]) == "needs 1 GPU, 0 free for it"


def test_a_job_whose_request_does_not_fit_does_not_block():
    view = cluster(2, 1)
    made = policy("wcs-subtime", view)
    made.submitted(job(1, 2, request=Request(max_nodes=1)), 1.0)
    made.submitted(job(2, 2, request=Request(per_node=2, candidates=frozenset({"n2"}))), 2.0)
    made.submitted(job(3, 3, request=Request(min_nodes=3)), 3.0)
    made.submitted(job(4, 1), 4.0)
    decisions = made.decide(view, 5.0)
    assert started(decisions) == ["1", "4"]
    assert decisions[-1].reason.kind == "gpus"


def test_backfill_starts_jobs_that_end_before_the_reservation_or_leave_room():
    view = cluster(4, 4)
    made = policy("easy-backfill", view)
    made.submitted(job(1, 6, time_limit=100), 0.0)
    (start,) = made.decide(view, 0.0)
    view.take(start.placement.gpus)
    made.submitted(job(2, 7), 1.0)  # fits at 100, and leaves one GPU then
    made.submitted(job(3, 2, time_limit=101), 1.0)  # one second too long, and too many GPUs
    made.submitted(job(4, 1, time_limit=99), 1.0)  # ends in time
    made.submitted(job(5, 1, time_limit=1000), 1.0)  # too long, but one GPU beside the head is free
    made.submitted(job(6, 1, time_limit=1000), 1.0)
    decisions = made.decide(view, 1.0)
    assert started(decisions) == ["4", "5"]
    assert decisions[-1].until == 100.0
    assert made.reservation.time == 100.0
    made.finished(JobId("1"), 50.0)
    view.give(start.placement.gpus)
    view.take({"n1": 2})  # jobs 4 and 5
    assert started(made.decide(view, 50.0)) == []
    assert made.reservation.time == 100.0  # when job 4 ends


def test_backfill_keeps_a_reservation_of_whole_servers():
    view = cluster(4, 4)
    made = policy("easy-backfill", view)
    made.submitted(job(1, 1, time_limit=100), 0.0)
    (start,) = made.decide(view, 0.0)
    view.take(start.placement.gpus)
    made.submitted(job(2, 8, request=Request(per_node=4)), 1.0)
    made.submitted(job(3, 1, time_limit=1000), 1.0)
    made.submitted(job(4, 3, request=Request(max_nodes=1), time_limit=50), 1.0)
    decisions = made.decide(view, 1.0)
    assert started(decisions) == ["4"]
    assert made.reservation.time == 100.0


def test_jobs_delayed_by_the_reservation_have_that_reason():
    view = cluster(4, 4)
    made = policy("easy-backfill", view)
    made.submitted(job(1, 3, request=Request(candidates=frozenset({"n1"})), time_limit=100), 0.0)
    made.submitted(job(2, 2, request=Request(candidates=frozenset({"n2"})), time_limit=1000), 0.0)
    for start in made.decide(view, 0.0):
        view.take(start.placement.gpus)
    made.submitted(job(3, 4, request=Request(per_node=4)), 1.0)  # on n1 at 100; two GPUs are left beside it then
    made.submitted(job(4, 2, request=Request(min_nodes=2), time_limit=500), 1.0)  # would take one of n1
    made.submitted(job(5, 3, time_limit=500), 1.0)
    made.submitted(job(6, 1, time_limit=50), 1.0)
    decisions = made.decide(view, 1.0)
    assert started(decisions) == ["6"]
    wait = decisions[1]
    assert (wait.job.id, wait.reason.kind) == ("4", "reservation")
    assert wait.reason.facts == {"head": "3", "need": 4, "in_s": 99.0}
    assert text_of(wait.reason) == "would delay job 3, which has 4 GPUs reserved about 00:01:39 from now"
    kinds = {job_id: why.kind for job_id, why in made.queue(1.0)}
    assert kinds == {"3": "gpus", "4": "reservation", "5": "behind"}  # job 5 does not fit on the free GPUs


@pytest.mark.parametrize("in_s", [None, float("inf")])
def test_a_reservation_of_unknown_time_has_a_reason_text(in_s):
    why = reason(Phase.WAITING, "reservation", head=JobId("7"), need=8, in_s=in_s)
    assert text_of(why).startswith("would delay job 7, which has 8 GPUs reserved as soon as they are free (")
    assert text_of(why).endswith("has no time limit or no GPUs, so the time is unknown)")


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_an_invalid_time_limit_is_rejected(limit):
    with pytest.raises(ValueError, match="time limit"):
        job(1, time_limit=limit)


def test_the_limit_tree_finds_the_first_under_a_bound():
    tree = LimitTree()
    for seat, limit in enumerate([9.0, 3.0, 7.0, 3.0, ANY]):
        tree.add(seat, JobId(str(seat)), limit)
    assert [tree.first(b) for b in (2.0, 3.0, 8.0, 9.0, ANY)] == [None, (1, "1"), (1, "1"), (0, "0"), (0, "0")]
    tree.remove(JobId("1"))
    tree.remove(JobId("77"))
    assert tree.first(8.0) == (2, "2")
    tree.add(-1, JobId("front"), 5.0)
    assert tree.first(8.0) == (-1, "front")
    for seat in range(5, 40):
        tree.add(seat, JobId(str(seat)), 1.0 + (seat != 33))
    assert tree.first(1.5) == (33, "33")
    assert len(tree) == 40


@pytest.mark.parametrize("name", ["fifo", "spwf", "wcs-workload", "hlas"])
def test_changes_that_do_not_move_a_job_leave_nothing_behind(name):
    """Weights change with the age of each job, once a minute, behind a head that waits for days."""
    view = cluster(0, 0)
    made = full(name, view)
    for minute in range(50):
        for number, (gpus, seconds) in ROWS.items():
            made.changed(job(number, gpus, seconds, weight=1.0 + minute), 10.0 + minute)
    assert sum(map(len, made._buckets.values())) == len(ROWS)
    assert [job_id for job_id, _ in made.queue(60.0)] == [job_id for job_id, _ in full(name, view).queue(60.0)]
