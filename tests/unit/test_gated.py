"""asrpt-gated rule by rule. Jobs without a profile take one second per iteration wherever they run."""

import json

import pytest

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, Stage, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import SeesRunning, Start, Wait

FABRIC = Fabric(1.25e9, 300e9)
HEAVY = JobProfile("heavy", (Stage(4, 0.5, 0.5, param_bytes=1e9),))  # on one server 1.005 s, on two 2.2 s and more
WIDE = JobProfile("wide", (Stage(8, 0.5, 0.5, param_bytes=1e9),))


class Bench:
    """A policy on a small cluster, to which jobs come and from which they go."""

    def __init__(self, *sizes, **settings):
        self.policy = make_policy("asrpt-gated", fabric=FABRIC, **settings)
        self.view = ClusterView([Node(f"n{i}", gpus, i) for i, gpus in enumerate(sizes)])
        self.policy.cluster_changed(self.view.nodes, 0.0)
        self.placed, self.decisions = {}, []

    def submit(self, *jobs, now=0.0):
        for job in jobs:
            self.policy.submitted(job, now)
        return self

    def decide(self, now=0.0):
        """What starts now: the nodes of each job."""
        self.decisions = self.policy.decide(self.view, now)
        started = {}
        for decision in self.decisions:
            if isinstance(decision, Start):
                assert decision.job.id not in started
                self.view.take(decision.placement.gpus, decision.job.request)
                self.placed[decision.job.id] = decision
                started[decision.job.id] = dict(decision.placement.gpus)
        return started

    def end(self, job_id, now):
        start = self.placed.pop(job_id)
        self.view.give(start.placement.gpus, start.job.request)
        self.policy.finished(job_id, now)

    def occupy(self, job_id, until, now=0.0, **gpus):
        """A foreign job."""
        self.view.take(gpus)
        self.policy.running(job_id, gpus, until, now)

    def why(self, now=0.0):
        """The reasons, as they come out of JSON and in words."""
        queue = self.policy.queue(now)
        assert all(why.text for _, why in queue)
        assert json.loads(json.dumps([why.facts for _, why in queue])) == [why.facts for _, why in queue]
        return [(job_id, why.kind) for job_id, why in queue]


def job(job_id, gpus=1, iterations=0.0, submit=0.0, profile=None, **request):
    profile = profile or unprofiled(gpus)
    return Job(JobId(job_id), "ann", profile.gpus, profile, iterations, submit, request=Request(**request))


# 1. order


def test_the_least_predicted_workload_goes_first():
    bench = Bench(4).submit(job("1", 4, 30), job("2", 1, 100), job("3", 2, 20))
    assert [job_id for job_id, _ in bench.policy.queue(0.0)] == ["3", "2", "1"]  # 40, 100 and 120 GPU-seconds
    assert bench.decide() == {"3": {"n0": 2}, "2": {"n0": 1}}


def test_ties_go_by_submission_then_by_number():
    bench = Bench(1).submit(job("10", 1, 5, 1.0), job("9", 1, 5, 1.0), job("11", 1, 5, 0.5))
    assert [job_id for job_id, _ in bench.policy.queue(2.0)] == ["11", "9", "10"]


def test_an_unseen_job_counts_as_long_as_unseen_jobs_have_lasted():
    bench = Bench(1).submit(job("1", 1))
    bench.decide(0.0)
    bench.end("1", 100.0)  # with the first guess of an hour: 1850 s on average
    bench.submit(job("2", 1, 1849), job("3", 1), job("4", 1, 1851), now=100.0)
    assert [job_id for job_id, _ in bench.policy.queue(100.0)] == ["2", "3", "4"]


def test_a_job_with_a_prediction_teaches_nothing_about_unseen_ones():
    bench = Bench(1).submit(job("1", 1, 50))
    bench.decide(0.0)
    bench.end("1", 100.0)
    bench.submit(job("2", 1), job("3", 1, 3599), now=100.0)
    assert [job_id for job_id, _ in bench.policy.queue(100.0)] == ["3", "2"]


# 2. gate


def test_a_job_waits_for_few_servers_rather_than_be_split():
    bench = Bench(4, 4)
    bench.occupy("a", 50.0, n0=2)
    bench.occupy("b", 90.0, n1=2)
    assert bench.submit(job("1", 4, 10, profile=HEAVY)).decide() == {}
    (wait,) = bench.decisions
    assert isinstance(wait, Wait)
    assert wait.reason.text == "4 GPUs are reserved for it at about 50 s from now"
    bench.view.give({"n0": 2})
    bench.policy.finished("a", 40.0)
    assert bench.decide(40.0) == {"1": {"n0": 4}}


def test_a_wide_job_takes_no_uneven_split_beyond_the_gate():
    """11 GPUs: two whole servers and a rest of three, and not 4+4 and three from a server where more is left."""
    bench = Bench(4, 4, 4)
    bench.occupy("a", 50.0, n0=1)
    assert bench.submit(job("1", 11, 10)).decide() == {"1": {"n0": 3, "n1": 4, "n2": 4}}


def test_a_single_server_is_chosen_by_when_it_will_be_free():
    bench = Bench(4, 4, 4)
    bench.occupy("a", 1000.0, n0=1)
    bench.occupy("b", 100.0, n1=1)
    bench.submit(job("1", 1, 900), job("2", 1, 90), job("3", 1, 2000))
    # 90 s: beside b; 900 s: beside a; 2000 s: a server in use, though it ends later than all there
    assert bench.decide() == {"2": {"n1": 1}, "1": {"n0": 1}, "3": {"n0": 1}}


def test_an_idle_server_is_used_if_no_other_has_room():
    bench = Bench(4, 4)
    bench.occupy("a", 1000.0, n0=3)
    assert bench.submit(job("1", 2, 9)).decide() == {"1": {"n1": 2}}


# 3. reservation


def blocked():
    """n0 free in 100 s, n1 in use for 1000 s with room for two; job 1 needs all of a server."""
    bench = Bench(4, 4)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 1000.0, n1=2)
    return bench.submit(job("1", 4, 0.001))


def test_the_first_that_cannot_start_gets_the_server_that_is_free_soonest():
    bench = blocked()
    assert bench.decide() == {}
    assert bench.policy.reservation.mask == 0b01
    assert bench.policy.reservation.time == 100.0
    assert bench.why() == [("1", "reserved")]


def test_others_use_reserved_servers_until_then_only():
    bench = blocked().submit(job("2", 1, 99), job("3", 2, 1500))
    assert bench.decide() == {"2": {"n0": 1}}  # 3 would put off the end on n1
    assert bench.why() == [("1", "reserved"), ("3", "reservation")]


def test_others_do_not_put_off_the_end_of_a_server_in_use():
    bench = blocked().submit(job("2", 1, 200), job("3", 1, 1001))
    assert bench.decide() == {"2": {"n1": 1}}


def test_an_idle_server_that_is_not_reserved_is_free_for_all():
    bench = Bench(4, 4, 4)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 100.0, n1=2)
    bench.submit(job("1", profile=WIDE, iterations=0.001), job("2", 1, 1e6), job("3", 2, 50))
    assert bench.decide() == {"3": {"n0": 2}}
    assert bench.policy.reservation.mask == 0b101
    bench = Bench(4, 4, 4, 4)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 100.0, n1=2)
    bench.occupy("c", 100.0, n2=2)
    bench.submit(job("1", 12, 0.001), job("2", 1, 1e6))
    assert bench.decide() == {}
    assert bench.policy.reservation.mask == 0b1011


def test_a_small_job_gets_the_server_that_has_room_first():
    bench = Bench(8, 8)
    bench.occupy("a", 500.0, n0=7)
    bench.occupy("b", 100.0, n1=1)
    bench.occupy("c", 900.0, n1=6)
    bench.submit(job("1", 3, 10))
    assert bench.decide() == {}
    assert (bench.policy.reservation.mask, bench.policy.reservation.time) == (0b01, 500.0)
    bench.occupy("d", 40.0, n0=1)
    bench.view.give({"n1": 1})
    bench.policy.finished("b", 10.0)
    bench.policy.running("e", {"n1": 1}, 20.0, 10.0)
    bench.view.take({"n1": 1})
    assert bench.decide(10.0) == {}
    assert bench.policy.reservation.time == 500.0


def test_a_job_that_outlives_its_prediction_is_expected_to_last_half_as_long_again():
    bench = blocked()
    bench.decide(0.0)
    bench.decide(200.0)
    assert bench.policy.reservation.time == pytest.approx(200 + 100 + 1)
    assert bench.decisions[-1].reason.facts["in_s"] == pytest.approx(101)


# 4. patience


def test_who_has_waited_too_long_goes_first_and_has_servers_for_himself_alone():
    bench = Bench(4, 4, patience_s=50.0)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 1000.0, n1=2)
    bench.submit(job("1", 4, 1e6))
    assert bench.policy.next_wakeup(0.0) == 50.0
    bench.submit(job("2", 1, 1, submit=1.0), now=1.0)
    assert bench.decide(1.0) == {"2": {"n0": 1}}
    bench.end("2", 2.0)
    bench.submit(job("3", 1, 1, submit=49.0), now=50.0)
    assert bench.decide(50.0) == {"3": {"n1": 1}}  # however short, not on n0
    assert bench.policy.reservation.alone
    assert bench.policy.next_wakeup(50.0) is None
    assert bench.policy.queue(50.0)[0][0] == "1"


def test_kept_servers_stay_kept_though_others_would_be_free_sooner():
    bench = Bench(4, 4, patience_s=0.0)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 200.0, n1=2)
    bench.submit(job("1", 4, 10)).decide()
    bench.policy.finished("b", 150.0)
    bench.policy.running("b", {"n1": 2}, 151.0, 150.0)
    bench.decide(150.0)
    held = bench.policy.reservation
    assert (held.mask, held.time) == (0b01, pytest.approx(150 + 75 + 1))  # never in the past
    bench.view.give({"n0": 2})
    bench.policy.finished("a", 160.0)
    assert bench.decide(160.0) == {"1": {"n0": 4}}


def test_the_time_in_which_a_job_was_held_counts_for_nothing():
    bench = Bench(4, patience_s=50.0)
    bench.occupy("a", 2000.0, n0=4)
    held = job("1", 4, 1e6, submit=0.0)
    bench.submit(held, now=1000.0).decide(1000.0)
    assert bench.policy.next_wakeup(1000.0) == 1050.0
    after = restarted(bench, [held])
    assert after.policy.next_wakeup(1000.0) == 1050.0
    after.decide(1050.0)
    assert after.policy.reservation.alone


def test_a_short_job_does_not_wait_for_an_impatient_one_of_its_kind():
    bench = Bench(4, 4, patience_s=50.0)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 400.0, n1=2)
    bench.submit(job("1", 4, 1e6), job("2", 2, 1e5), now=1.0).submit(job("3", 2, 10, submit=90.0), now=90.0)
    assert bench.decide(90.0) == {"3": {"n1": 2}}


def test_a_job_that_was_handed_back_is_first_and_started_once():
    bench = Bench(2, patience_s=10.0).submit(job("1", 1, 500))
    assert bench.decide(0.0) == {"1": {"n0": 1}}
    bench.view.give(bench.placed["1"].placement.gpus)
    bench.policy.returned(bench.placed["1"].job, 30.0)
    bench.submit(job("2", 1, 5, submit=29.0), now=30.0)
    assert [job_id for job_id, _ in bench.policy.queue(30.0)] == ["1", "2"]
    assert list(bench.decide(30.0)) == ["1", "2"]
    assert bench.decide(31.0) == {}


def test_a_long_job_that_was_handed_back_shuts_out_no_short_one():
    bench = blocked()
    bench.policy.finished("1", 0.0)
    bench.policy.returned(job("5", 4, 1e6), 0.0)
    assert bench.submit(job("6", 2, 50)).decide() == {"6": {"n0": 2}}


# events


def test_a_cancelled_job_gives_up_its_reservation():
    bench = blocked().submit(job("2", 2, 1e6))
    assert bench.decide() == {}
    bench.policy.finished("1", 1.0)
    assert bench.policy.reservation is None
    assert bench.why(1.0) == [("2", "behind")]
    assert bench.policy.queue(1.0)[0][1].text == "0 job(s) ahead; job 2 is next"
    assert bench.decide(1.0) == {"2": {"n1": 2}}


def test_a_changed_job_asks_for_something_else():
    bench = blocked()
    bench.decide()
    bench.policy.changed(job("1", 2, 10), 1.0)
    bench.policy.changed(job("unknown", 2, 10), 1.0)
    assert bench.decide(1.0) == {"1": {"n0": 2}}
    assert bench.policy.queue(1.0) == []


def test_a_requeued_job_runs_no_more():
    bench = Bench(4).submit(job("1", 4, 1000))
    bench.decide()
    bench.view.give({"n0": 4})
    bench.submit(job("1", 4, 1000), now=10.0)
    assert bench.policy.dump()["runs"] == {}
    assert bench.decide(10.0) == {"1": {"n0": 4}}


def test_what_slurm_starts_itself_waits_no_more():
    bench = blocked()
    assert isinstance(bench.policy, SeesRunning)
    bench.policy.running("1", {"n1": 2}, float("inf"), 5.0)
    assert bench.policy.queue(5.0) == []
    json.dumps(bench.policy.dump(), allow_nan=False)
    bench.policy.finished("1", 6.0)
    bench.policy.finished("never heard of", 6.0)


def test_the_gpus_that_a_job_really_has_count():
    bench = Bench(4, 4).submit(job("1", 2, 70))
    assert bench.decide() == {"1": {"n0": 2}}
    bench.policy.running("1", {"n1": 2}, float("inf"), 1.0)
    assert bench.policy.dump()["runs"]["1"] == [0.0, 70.0, {"n1": 2}]
    bench.policy.running("1", {"n1": 2}, 10.0, 2.0)  # its prediction says more than its limit
    assert bench.policy.dump()["runs"]["1"] == [0.0, 70.0, {"n1": 2}]


def test_jobs_that_the_cluster_cannot_hold_block_nobody():
    bench = Bench(4, 4, patience_s=0.0).submit(job("1", 9, 1), job("2", 8, 1, per_node=8), job("3", 1, 50))
    assert bench.decide() == {"3": {"n0": 1}}
    assert bench.why() == [("2", "capacity"), ("1", "capacity")]
    assert bench.policy.next_wakeup(0.0) is None


def test_a_server_may_vanish_while_it_is_reserved():
    bench = blocked()
    bench.decide()
    left = Bench.__new__(Bench)
    left.policy, left.placed = bench.policy, {}
    left.view = ClusterView(bench.view.nodes[1:], {"n1": 2})
    left.policy.cluster_changed(left.view.nodes, 1.0)
    assert left.decide(1.0) == {}
    assert (left.policy.reservation.mask, left.policy.reservation.time) == (0b1, 1000.0)
    left.policy.finished("a", 2.0)  # it ran on the server that is gone
    bench.policy.cluster_changed(bench.view.nodes, 3.0)
    bench.view.give({"n0": 2})
    assert bench.decide(3.0) == {"1": {"n0": 4}}


# requests and servers of every kind


def test_unequal_servers():
    bench = Bench(2, 4, 1).submit(job("1", 4, 1), job("2", 2, 100), job("3", 1, 1000))
    assert bench.decide() == {"1": {"n1": 4}, "2": {"n0": 2}, "3": {"n2": 1}}


def test_a_job_that_needs_unequal_servers_starts_on_an_idle_cluster():
    """Slurm fills in node-table order: 4+6 instead of 8+2, however bad."""
    profile = JobProfile("wide", (Stage(10, 0.5, 0.5, param_bytes=1e9),))
    bench = Bench(4, 8, gate=1.0).submit(job("1", profile=profile, iterations=5))
    assert bench.decide() == {"1": {"n0": 4, "n1": 6}}


def test_a_job_that_needs_unequal_servers_gets_a_reservation():
    bench = Bench(4, 8)
    bench.occupy("a", 100.0, n0=1)
    bench.occupy("b", 300.0, n1=4)
    assert bench.submit(job("1", 10, 0.1)).decide() == {}
    assert (bench.policy.reservation.mask, bench.policy.reservation.time) == (0b11, 300.0)


@pytest.mark.parametrize(
    ("asks", "gets"),
    [
        ({"per_node": 2}, {"n0": 2, "n1": 2}),
        ({"min_nodes": 2}, {"n0": 3, "n1": 1}),
        ({"unit": 2}, {"n0": 4}),
        ({"max_nodes": 1}, {"n0": 4}),
        ({"candidates": frozenset({"n2"})}, {"n2": 4}),
    ],
)
def test_every_form_of_request_is_served(asks, gets):
    bench = Bench(4, 4, 4)
    assert bench.submit(job("1", 4, 10, **asks)).decide() == {"1": gets}


@pytest.mark.parametrize(
    ("asks", "reserved"),
    [({"per_node": 2}, 0b011), ({"candidates": frozenset({"n2"})}, 0b100), ({"unit": 4}, 0b001)],
)
def test_every_form_of_request_can_have_a_reservation(asks, reserved):
    bench = Bench(4, 4, 4)
    for at in range(3):
        bench.occupy(f"r{at}", 100.0 * (at + 1), **{f"n{at}": 3})
    assert bench.submit(job("1", 4, 10, **asks)).decide() == {}
    assert bench.policy.reservation.mask == reserved


def test_slices_of_a_replica_share_a_server():
    slices = JobProfile("slices", (Stage(2, 0.5, 0.5, param_bytes=1e9),), tensor=2)
    bench = Bench(3, 2, 2)
    assert bench.submit(job("1", profile=slices, iterations=10)).decide() == {"1": {"n1": 2, "n2": 2}}


def test_a_job_short_of_cpus_reserves_servers_whose_end_is_known():
    bench = Bench(4, 4)
    bench.view.free_cpus = {"n0": 3, "n1": 64}  # n0: CPU-only jobs of which nothing is known
    bench.occupy("a", 100.0, n1=2)
    assert bench.submit(job("1", 4, 10, cpus_per_gpu=8)).decide() == {}
    assert (bench.policy.reservation.mask, bench.policy.reservation.time) == (0b10, 100.0)
    bench.view.give({"n1": 2})
    bench.policy.finished("a", 90.0)
    assert bench.decide(90.0) == {"1": {"n1": 4}}


def test_nothing_is_kept_for_a_job_that_cannot_start_even_on_idle_servers():
    bench = Bench(4, 4, patience_s=0.0)
    bench.view.free_cpus = {"n0": 3, "n1": 3}
    bench.submit(job("1", 4, 1, cpus_per_gpu=8), job("2", 4, 1, cpus_per_gpu=8), job("3", 2, 1e6))
    assert bench.decide() == {"3": {"n0": 2}}
    assert bench.policy.reservation is not None or bench.why()[0] == ("1", "gpus")


def test_a_job_short_of_memory_waits():
    bench = Bench(4)
    bench.view.free_memory = {"n0": 100.0}
    bench.submit(job("1", 2, 10, memory_per_gpu=80.0))
    assert bench.decide() == {}
    assert bench.why() == [("1", "gpus")]
    bench.view.free_memory = {"n0": 200.0}
    assert bench.decide(1.0) == {"1": {"n0": 2}}


def test_a_profile_that_takes_no_time_is_no_trouble():
    bench = Bench(4).submit(job("1", profile=JobProfile("nothing", (Stage(2, 0.0, 0.0),)), iterations=10))
    assert bench.decide() == {"1": {"n0": 2}}


# restarts


def restarted(bench, waiting, now=60.0):
    """The same cluster under a policy that has read what the other has written."""
    after = Bench(*[node.gpus for node in bench.view.nodes], patience_s=bench.policy.patience_s)
    after.view, after.placed = bench.view, bench.placed
    after.policy.load(json.loads(json.dumps(bench.policy.dump(), allow_nan=False)), {one.id: one for one in waiting})
    return after


def test_a_restart_keeps_order_runs_and_what_is_known_of_unseen_jobs():
    bench = Bench(2, 2).submit(job("1", 2, 50), job("2", 2))
    assert len(bench.decide()) == 2
    waiting = [job("3", 2), job("4", 2, 10), job("5", 2, 1e7)]
    bench.submit(*waiting[:2], now=1.0)
    bench.policy.returned(waiting[2], 2.0)
    bench.decide(2.0)
    after = restarted(bench, waiting)
    assert after.policy.dump() == {**bench.policy.dump(), "kept": None}
    assert [job_id for job_id, _ in after.policy.queue(2.0)] == ["5", "4", "3"]
    assert after.decide(2.0) == {}
    assert after.policy.reservation == bench.policy.reservation
    after.end("2", 1000.0)
    assert after.policy.dump()["unseen"] == [2, 4600.0, {}]


def test_a_restart_keeps_the_servers_of_an_impatient_job():
    bench = Bench(4, 4, patience_s=50.0)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 1000.0, n1=2)
    waiting = [job("1", 4, 1e6)]
    bench.submit(*waiting).decide(50.0)
    assert restarted(bench, waiting).policy.reservation == bench.policy.reservation
    assert restarted(bench, []).policy.reservation is None
    assert restarted(bench, []).policy.queue(60.0) == []


@pytest.mark.parametrize("state", [{}, {"order": 3}, {"order": [], "runs": [], "unseen": [1, 2.0, {}], "returns": 0}])
def test_no_state_of_this_policy_is_refused(state):
    bench = Bench(4)
    with pytest.raises(ValueError, match="not a state of policy asrpt-gated"):
        bench.policy.load(state, {})


def test_memory_does_not_grow_over_the_life_of_a_daemon():
    """One job waits for ever, thousands come and go."""
    bench = Bench(4, 4, patience_s=5.0)
    bench.view.free_cpus = {"n0": 0, "n1": 0}
    bench.submit(job("0", 1, 1e9, cpus_per_gpu=1))
    for number in range(1, 2000):
        one = job(str(number), 1, 10.0, float(number))
        bench.submit(one, now=float(number))
        bench.decide(float(number))
        if number % 3:
            bench.end(str(number), number + 0.5)
        else:
            bench.view.give(bench.placed[str(number)].placement.gpus)
            bench.policy.returned(one, number + 0.5)
            bench.policy.finished(str(number), number + 0.7)
    queue = bench.policy._queue
    kept = [*queue._young, *queue._late, *(key for shelf in queue._shelves.values() for key in shelf)]
    assert len(kept) + len(queue.heads) + len(queue._shelves) < 400
    assert not bench.policy._unseen
    assert not bench.policy._occupancy.runs
