"""asrpt-gated rule by rule. Jobs without a profile take one second per iteration on any servers."""

import json
import math
from dataclasses import replace

import pytest

from slurm_asrpt.core.cluster import ClusterView
from slurm_asrpt.core.job import JobProfile, PreemptionClass, Request, Stage
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.policies.base import SeesRunning, Wait
from slurm_asrpt.status.reason_texts import text_of
from tests.benches.gated import Bench, job, restarted

HEAVY = JobProfile("heavy", (Stage(4, 0.5, 0.5, param_bytes=1e9),))  # on one server 1.005 s, on two 2.2 s and more
WIDE = JobProfile("wide", (Stage(8, 0.5, 0.5, param_bytes=1e9),))


# 1. order


def test_the_least_predicted_workload_goes_first():
    bench = Bench(4).submit(job("1", 4, 60), job("2", 1, 100), job("3", 2, 20))
    assert [job_id for job_id, _ in bench.policy.queue(0.0)] == ["3", "2", "1"]  # 40, 100 and 240 GPU-seconds
    assert bench.decide() == {"3": {"n0": 2}, "2": {"n0": 1}}


def test_ties_go_by_submission_then_by_number():
    bench = Bench(1).submit(job("10", 1, 5, 1.0), job("9", 1, 5, 1.0), job("11", 1, 5, 0.5))
    assert [job_id for job_id, _ in bench.policy.queue(2.0)] == ["11", "9", "10"]


def test_a_job_without_a_prediction_counts_as_an_hour_at_first_and_then_as_those_that_have_ended():
    bench = Bench(1).submit(job("1", 1), job("2", 1, 3599), job("3", 1, 3601))
    assert [job_id for job_id, _ in bench.policy.queue(0.0)] == ["2", "1", "3"]
    bench = Bench(1)
    for number in range(1, 30):
        bench.submit(job(str(number), 1), now=1000.0 * number)
        bench.decide(1000.0 * number)
        bench.end(str(number), 1000.0 * number + 100)
    bench.submit(job("30", 1, 90), job("31", 1), job("32", 1, 200), now=30_000.0)
    assert [job_id for job_id, _ in bench.policy.queue(30_000.0)] == ["30", "31", "32"]


def test_jobs_without_a_prediction_say_nothing_about_those_with_one():
    bench = Bench(1).submit(job("1", 1))
    bench.decide(0.0)
    bench.end("1", 10.0)
    bench.submit(job("2", 1, 3000), job("3", 1, 20), now=10.0)
    assert bench.policy.dump()["order"][0][3] == pytest.approx(20)
    assert bench.policy.dump()["order"][1][3] == pytest.approx(3000)


# 2. gate


def test_a_job_waits_for_few_servers_instead_of_being_split():
    bench = Bench(4, 4)
    bench.occupy("a", 50.0, n0=2)
    bench.occupy("b", 90.0, n1=2)
    assert bench.submit(job("1", 4, 10, profile=HEAVY)).decide() == {}
    (wait,) = bench.decisions
    assert isinstance(wait, Wait)
    assert text_of(wait.reason) == "has 4 GPUs reserved about 00:00:50 from now"
    bench.view.give({"n0": 2})
    bench.policy.finished("a", 40.0)
    assert bench.decide(40.0) == {"1": {"n0": 4}}


@pytest.mark.parametrize(("used", "expected"), [((2, 4), {"n0": 5, "n1": 3}), ((3, 3), {"n0": 4, "n1": 4})])
def test_a_job_that_fills_no_number_of_servers_takes_parts_of_as_many(used, expected):
    """Eight GPUs on servers of seven, as with MIG; with or without -N2. In the best placement, 7+1, all is as fast."""
    for request in ({}, {"min_nodes": 2, "max_nodes": 2}):
        bench = Bench(7, 7)
        bench.occupy("a", 1e6, n0=used[0])
        bench.occupy("b", 1e6, n1=used[1])
        assert bench.submit(job("1", 8, 10, **request)).decide() == {"1": expected}


def test_a_whole_server_and_a_part_are_preferred():
    bench = Bench(7, 7, 7)
    bench.occupy("a", 1e6, n0=3)
    assert bench.submit(job("1", 8, 10)).decide() == {"1": {"n1": 7, "n2": 1}}


def test_a_job_that_talks_much_does_not_take_parts_beyond_the_gate():
    """Seven of its GPUs talk to each other, so that 7+1 is much faster than 5+3."""
    bench = Bench(7, 7)
    bench.occupy("a", 1e6, n0=2)
    bench.occupy("b", 1e6, n1=4)
    seven = JobProfile("seven", (Stage(7, 0.5, 0.5, param_bytes=1e9), Stage(1, 0.5, 0.5)))
    assert bench.submit(job("1", 8, 10, profile=seven)).decide() == {}
    bench.view.give({"n0": 2})
    bench.policy.finished("a", 40.0)
    assert bench.decide(40.0) == {"1": {"n0": 7, "n1": 1}}


def test_a_wide_job_rejects_an_uneven_split_beyond_the_gate():
    """11 GPUs: two whole servers and three GPUs, not 4+4 and three from a server with more free GPUs."""
    bench = Bench(4, 4, 4)
    bench.occupy("a", 50.0, n0=1)
    assert bench.submit(job("1", 11, 10)).decide() == {"1": {"n0": 3, "n1": 4, "n2": 4}}


def test_a_single_server_is_chosen_by_when_it_will_be_free():
    bench = Bench(4, 4, 4)
    bench.occupy("a", 1000.0, n0=1)
    bench.occupy("b", 100.0, n1=1)
    bench.submit(job("1", 1, 900), job("2", 1, 90), job("3", 1, 2000))
    # 90 s: beside b; 900 s: beside a; 2000 s: a server in use, although the job ends after all others there
    assert bench.decide() == {"2": {"n1": 1}, "1": {"n0": 1}, "3": {"n0": 1}}


def test_an_idle_server_is_used_if_no_other_has_room():
    bench = Bench(4, 4)
    bench.occupy("a", 1000.0, n0=3)
    assert bench.submit(job("1", 2, 9)).decide() == {"1": {"n1": 2}}


# 3. reservation


def blocked():
    """n0 is free in 100 s, n1 in use for 1000 s with two free GPUs; job 1 needs a whole server."""
    bench = Bench(4, 4)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 1000.0, n1=2)
    return bench.submit(job("1", 4, 0.001))


def test_the_first_blocked_job_reserves_the_server_that_is_free_soonest():
    bench = blocked()
    assert bench.decide() == {}
    assert bench.policy.reservation.mask == 0b01
    assert bench.policy.reservation.time == 100.0
    assert bench.why() == [("1", "reserved")]


def test_others_use_reserved_servers_only_until_the_reservation():
    bench = blocked().submit(job("2", 1, 99), job("3", 2, 1500))
    assert bench.decide() == {"2": {"n0": 1}}  # job 3 would delay the end on n1
    assert bench.policy.reservation.job.id == "1"
    assert bench.why() == [("1", "gpus"), ("3", "reservation")]


def test_others_do_not_delay_the_end_of_a_server_in_use():
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


def test_a_small_job_reserves_the_server_that_has_room_first():
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


@pytest.mark.parametrize(("seconds", "started"), [(2199, True), (2201, False)])
def test_gpu_time_that_a_reservation_leaves_idle_counts_as_the_jobs_own_work(seconds, started):
    bench = Bench(4)
    bench.occupy("a", 1000.0, n0=3)
    bench.submit(job("1", 2, 100), job("2", 1, seconds))  # job 1: 200, and twice 1000 of one idle GPU
    assert bench.decide() == ({"2": {"n0": 1}} if started else {})


def test_the_less_time_a_reservation_still_leaves_idle_the_earlier_its_job_gets_it():
    bench = Bench(4)
    bench.occupy("a", 1000.0, n0=3)
    bench.submit(job("1", 2, 100))
    bench.decide()
    bench.submit(job("2", 1, 1250, submit=500.0), now=500.0)
    assert bench.decide(500.0) == {}  # more than 200 and twice 500 GPU-seconds


@pytest.mark.parametrize(("others", "started"), [(0, True), (1, True), (2, False)])
def test_jobs_of_as_many_gpus_share_the_time_that_a_reservation_leaves_idle(others, started):
    bench = Bench(4)
    bench.occupy("a", 1000.0, n0=3)
    small = [job(str(number), 2, 100) for number in (1, 3, 4)[: 1 + others]]
    bench.submit(*small, job("2", 1, 1001))  # each of three jobs: 200, and a third of twice 1000 of one idle GPU
    assert bench.decide() == ({"2": {"n0": 1}} if started else {})


def test_a_job_whose_reservation_would_leave_more_idle_gives_way_to_another():
    bench = Bench(4, 4)
    bench.occupy("a", 1000.0, n0=3)
    bench.occupy("b", 100.0, n1=3)
    only = Request(candidates=frozenset({"n0"}))
    bench.submit(replace(job("1", 4, 10), request=only), job("2", 4, 100))
    bench.decide()
    assert bench.policy.reservation.job.id == "2"  # 400 + twice 100 GPU-seconds; job 1: 40 + twice 1000


def test_a_job_that_is_put_back_stays_in_its_band():
    bench = Bench(4)
    bench.occupy("a", 1000.0, n0=3)
    bench.submit(job("1", 2, 100), replace(job("2", 1, 1001), band=1))
    assert bench.decide() == {}


@pytest.mark.parametrize(
    ("others", "started"),
    [
        ([], "1"),
        ([job("3", 2, 100)], "1"),
        ([job("3", 2, 100), job("4", 2, 100)], "1"),  # two GPUs would idle
        ([job("3", 2, 100), job("4", 2, 100), job("5", 2, 100)], "2"),
    ],
)
def test_a_job_that_leaves_much_of_an_idle_server_unused_lets_a_larger_one_go_first(others, started):
    """Alone, job 2 would occupy eight GPUs for 100 s, as 800 GPU-seconds; job 1 needs 240."""
    bench = Bench(8).submit(job("1", 8, 30), job("2", 2, 100), *others)
    assert bench.policy.queue(0.0)[-1][0] == "1"
    assert started in bench.decide()


def test_a_job_beside_others_that_will_be_followed_by_more_goes_first():
    bench = Bench(8)
    bench.submit(job("a", 6, 10)).decide()
    bench.submit(job("1", 8, 30), job("2", 1, 200))
    assert bench.decide() == {"2": {"n0": 1}}


@pytest.mark.parametrize(("larger", "started"), [(1, {"b": {"n0": 2}}), (20, {})])
def test_a_job_that_can_run_beside_more_others_later_waits_if_many_larger_ones_do(larger, started):
    """Six of eight GPUs would be in use beside job b; after one of the larger jobs, 7.2."""
    bench = Bench(8)
    bench.submit(job("a", 4, 100)).decide()
    bench.submit(*(job(str(number), 8, 30) for number in range(larger)), job("b", 2, 150))
    assert bench.decide() == started


def test_a_job_goes_first_if_it_delays_a_larger_one_by_little():
    bench = Bench(8)
    bench.submit(job("a", 1, 100)).decide()
    bench.submit(job("1", 8, 40), job("2", 2, 110))
    assert bench.decide() == {"2": {"n0": 2}}


def test_a_job_that_would_keep_a_server_busy_for_long_lets_a_larger_one_reserve_it():
    bench = Bench(8, 8)
    bench.submit(job("a", 1, 10), job("b", 8, 1000)).decide()
    bench.submit(job("1", 8, 30), job("2", 1, 200), job("3", 1, 8))
    assert bench.decide() == {"3": {"n0": 1}}, "it ends before the reservation begins"
    assert bench.policy.reservation.job.id == "1"
    assert dict(bench.why()) == {"1": "gpus", "2": "reservation"}
    assert [job_id for job_id, _ in bench.policy.queue(0.0)] == ["1", "2"]


def test_no_job_waits_for_a_larger_one_if_nobody_knows_when_there_will_be_room():
    bench = Bench(8)
    bench.submit(job("a", 1, 10)).decide()
    bench.submit(job("1", 8, 26), job("2", 1, 200), now=14.0)
    assert bench.decide(14.0) == {}
    assert bench.decide(16.0) == {"2": {"n0": 1}}, "job a has run for more than half as long again as predicted"


def test_a_job_does_not_wait_for_a_larger_one_that_can_run_beside_it_or_elsewhere():
    bench = Bench(8).submit(job("1", 6, 30), job("2", 2, 89))
    assert bench.decide() == {"2": {"n0": 2}, "1": {"n0": 6}}
    bench = Bench(8, 8).submit(job("1", 8, 30), job("2", 2, 100))
    assert set(bench.decide()) == {"1", "2"}


def test_a_job_does_not_wait_for_a_larger_one_that_a_limit_holds():
    larger = replace(job("1", 8, 30), charges=(("a", 8.0),))
    bench = Bench(8).submit(larger, job("2", 2, 100))
    bench.view.headroom = Headroom({"a": 7.0})
    assert bench.decide() == {"2": {"n0": 2}}


def of_account(name: str, gpus: int, amount: float, submit: float = 0.0):
    return replace(job(name, gpus, 10, submit=submit), charges=(("account", amount),))


def test_room_of_a_limit_is_kept_for_a_late_job():
    bench = Bench(8, patience_s=50.0).submit(of_account("1", 4, 4.0))
    bench.view.headroom = Headroom({"account": 3.0})
    assert bench.decide(0.0) == {}
    bench.submit(of_account("2", 1, 1.0, submit=40.0), now=40.0)
    assert set(bench.decide(40.0)) == {"2"}, "the first is not late yet"
    bench.view.headroom = Headroom({"account": 3.0})
    bench.submit(of_account("3", 1, 1.0, submit=60.0), job("4", 1, 10, submit=60.0), now=60.0)
    assert set(bench.decide(60.0)) == {"4"}
    assert dict(bench.policy.queue(60.0))["3"].kind == "behind"
    bench.view.headroom = Headroom({"account": 4.0})
    assert set(bench.decide(61.0)) == {"1"}
    bench.view.headroom = Headroom({"account": 1.0})
    assert set(bench.decide(62.0)) == {"3"}


def test_no_room_of_a_limit_is_kept_from_jobs_of_a_higher_priority_or_that_may_preempt_the_late_one():
    late = replace(of_account("1", 4, 4.0), band=1, preemption=PreemptionClass("low", frozenset()))
    bench = Bench(8, patience_s=50.0).submit(late)
    same = replace(of_account("2", 1, 1.0, submit=60.0), band=1)
    higher = replace(of_account("3", 1, 1.0, submit=60.0), band=0)
    preempts = replace(of_account("4", 1, 1.0, submit=60.0), band=1)
    preempts = replace(preempts, preemption=PreemptionClass("high", frozenset({"low"})))
    bench.submit(same, higher, preempts, now=60.0)
    bench.view.headroom = Headroom({"account": 3.0})
    assert set(bench.decide(60.0)) == {"3", "4"}


def test_no_room_of_a_limit_is_kept_for_a_job_that_exceeds_it_alone():
    bench = Bench(8, patience_s=50.0).submit(of_account("1", 4, math.inf), of_account("2", 1, 1.0, submit=60.0))
    bench.view.headroom = Headroom({"account": 3.0})
    assert set(bench.decide(60.0)) == {"2"}


def test_slurm_is_not_to_start_a_job_that_would_let_a_larger_one_go_first():
    bench = Bench(8)
    bench.submit(job("a", 4, 50), job("b", 4, 50)).decide()
    assert list(bench.submit(job("2", 2, 100)).policy.next_starts(5)) == ["2"]
    bench.submit(job("1", 8, 30)).decide()
    assert list(bench.policy.next_starts(5)) == []


def test_a_job_that_outlives_its_prediction_is_expected_to_run_half_as_long_again():
    bench = blocked()
    bench.decide(0.0)
    bench.decide(200.0)
    assert bench.policy.reservation.time == pytest.approx(200 + 100 + 1)
    assert bench.decisions[-1].reason.facts["in_s"] == 0.0, "users are told that it has reached its time limit"


def test_users_are_told_of_no_end_after_the_time_limits_of_the_running_jobs():
    """The reservation goes by predictions all the same."""
    bench = Bench(4, 4)
    bench.submit(*(replace(job(number, 3, 100), time_limit=250.0) for number in "45")).decide()
    bench.submit(job("1", 2, 10))
    for now, told in ((50.0, 50.0), (120.0, 61.0), (200.0, 50.0), (260.0, 0.0)):
        bench.decide(now)
        assert bench.policy.reservation.time >= now + told
        assert [why.facts["in_s"] for _, why in bench.policy.queue(now)] == [told]
    assert bench.policy.reservation.time > 260.0


# 4. patience


def test_a_job_without_a_time_limit_has_no_expected_end():
    bench = Bench(4, 4)
    bench.occupy("a", float("inf"), n0=2)
    bench.occupy("b", float("inf"), n1=2)
    bench.submit(job("1", 4, 10))
    bench.decide(10.0)
    why = bench.policy.queue(1000.0)[0][1]
    assert (why.kind, why.facts["in_s"]) == ("reserved", None)
    assert "the time is unknown" in text_of(why)
    bench.policy.finished("b", 1010.0)
    bench.occupy("c", 1090.0, 1010.0, n1=1)
    bench.view.give({"n1": 2})
    bench.decide(1030.0)
    assert "about 00:01:00 from now" in text_of(bench.policy.queue(1030.0)[0][1])


def test_a_job_whose_patience_ended_keeps_its_servers_and_later_for_itself_alone():
    bench = Bench(4, 4, patience_s=50.0)
    bench.occupy("a", 200.0, n0=2)
    bench.occupy("b", 1000.0, n1=2)
    bench.submit(job("1", 4, 1e6))
    assert bench.policy.next_wakeup(0.0) == 50.0
    bench.submit(job("2", 1, 1, submit=1.0), now=1.0)
    assert bench.decide(1.0) == {"2": {"n0": 1}}
    bench.end("2", 2.0)
    bench.submit(job("3", 1, 1, submit=49.0), now=50.0)
    assert bench.decide(50.0) == {"3": {"n0": 1}}  # it ends before job a
    bench.end("3", 51.0)
    assert (bench.policy.reservation.kept, bench.policy.reservation.exclusive) == (True, False)
    assert bench.policy.next_wakeup(50.0) is None
    assert bench.policy.queue(50.0)[0][0] == "1"
    bench.submit(job("4", 1, 1, submit=99.0), now=100.0)
    assert bench.decide(100.0) == {"4": {"n1": 1}}  # however short, not on n0
    assert bench.policy.reservation.exclusive


def test_a_late_job_that_took_more_than_the_share_is_made_up_for_before_the_next_one():
    bench = Bench(4, 4, patience_s=10.0, late_share=0.5)
    bench.occupy("a", 60.0, n0=4)
    bench.occupy("b", 60.0, n1=4)
    bench.submit(job("1", 8, 1e6), job("2", 8, 1e6, submit=1.0)).decide(11.0)
    for name, node in (("a", "n0"), ("b", "n1")):
        bench.view.give({node: 4})
        bench.policy.finished(name, 60.0)
    assert bench.decide(60.0) == {"1": {"n0": 4, "n1": 4}}
    bench.submit(job("3", 1, 10, submit=100.0), now=100.0)
    bench.decide(100.0)
    bench.end("1", 160.0)  # 100 s with 4 GPUs more than the share
    assert bench.decide(160.0) == {"3": {"n0": 1}}
    assert not bench.policy.reservation.kept
    assert bench.policy.next_wakeup(160.0) == pytest.approx(260.0)
    bench.submit(job("4", 8, 10, submit=170.0), now=170.0)
    bench.decide(170.0)
    assert [job_id for job_id, _ in bench.policy.queue(170.0)] == ["4", "2"]
    bench.decide(260.0)
    assert bench.policy.reservation.kept
    assert [job_id for job_id, _ in bench.policy.queue(260.0)] == ["2", "4"]
    bench.submit(job("5", 4, 1e6, submit=200.0), now=260.0)  # late as well, but there is no room for it in the share
    assert [job_id for job_id, _ in bench.policy.queue(260.0)] == ["2", "4", "5"]


def test_reserved_servers_stay_reserved_even_if_others_are_free_sooner():
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


def test_time_on_hold_does_not_count_as_waiting():
    bench = Bench(4, patience_s=50.0)
    bench.occupy("a", 2000.0, n0=4)
    held = job("1", 4, 1e6, submit=0.0)
    bench.submit(held, now=1000.0).decide(1000.0)
    assert bench.policy.next_wakeup(1000.0) == 1050.0
    after = restarted(bench, [held])
    assert after.policy.next_wakeup(1000.0) == 1050.0
    after.decide(1050.0)
    assert after.policy.reservation.kept


def test_an_impatient_short_job_starts_beside_an_impatient_long_one():
    bench = Bench(4, 4, patience_s=50.0)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 400.0, n1=2)
    bench.submit(job("1", 4, 1e6), job("2", 2, 1e5), now=1.0).submit(job("3", 2, 10, submit=90.0), now=90.0)
    assert bench.decide(90.0) == {"3": {"n0": 2}, "2": {"n1": 2}}


def test_a_returned_job_is_first_and_starts_once():
    bench = Bench(2, patience_s=10.0).submit(job("1", 1, 500))
    assert bench.decide(0.0) == {"1": {"n0": 1}}
    bench.view.give(bench.placed["1"].placement.gpus)
    bench.policy.returned(bench.placed["1"].job, 30.0)
    bench.submit(job("2", 1, 5, submit=29.0), now=30.0)
    assert [job_id for job_id, _ in bench.policy.queue(30.0)] == ["1", "2"]
    assert list(bench.decide(30.0)) == ["1", "2"]
    assert bench.decide(31.0) == {}


def test_a_returned_long_job_does_not_block_short_jobs():
    bench = blocked()
    bench.policy.finished("1", 0.0)
    bench.policy.returned(job("5", 4, 1e6), 0.0)
    assert bench.submit(job("6", 2, 50)).decide() == {"6": {"n0": 2}}


# events


def test_a_cancelled_job_loses_its_reservation():
    bench = blocked().submit(job("2", 2, 1e6))
    assert bench.decide() == {}
    bench.policy.finished("1", 1.0)
    assert bench.policy.reservation is None
    assert bench.why(1.0) == [("2", "next")]
    assert text_of(bench.policy.queue(1.0)[0][1]).startswith("head of the queue")
    assert bench.decide(1.0) == {"2": {"n1": 2}}


def test_a_changed_job_is_planned_with_its_new_request():
    bench = blocked()
    bench.decide()
    bench.policy.changed(job("1", 2, 10), 1.0)
    bench.policy.changed(job("unknown", 2, 10), 1.0)
    assert bench.decide(1.0) == {"1": {"n0": 2}}
    assert bench.policy.queue(1.0) == []


def test_a_requeued_job_no_longer_counts_as_running():
    bench = Bench(4).submit(job("1", 4, 1000))
    bench.decide()
    bench.view.give({"n0": 4})
    bench.submit(job("1", 4, 1000), now=10.0)
    assert bench.policy.dump()["runs"] == {}
    assert bench.decide(10.0) == {"1": {"n0": 4}}


def test_a_job_started_by_slurm_is_no_longer_waiting():
    bench = blocked()
    assert isinstance(bench.policy, SeesRunning)
    bench.policy.running("1", {"n1": 2}, float("inf"), 5.0)
    assert bench.policy.queue(5.0) == []
    json.dumps(bench.policy.dump(), allow_nan=False)
    bench.policy.finished("1", 6.0)
    bench.policy.finished("never heard of", 6.0)


def test_the_actual_gpus_of_a_job_count():
    bench = Bench(4, 4).submit(job("1", 2, 70))
    assert bench.decide() == {"1": {"n0": 2}}
    bench.policy.running("1", {"n1": 2}, float("inf"), 1.0)
    assert bench.policy.dump()["runs"]["1"] == [0.0, pytest.approx(70.0), {"n1": 2}]
    bench.policy.running("1", {"n1": 2}, 10.0, 2.0)  # its prediction exceeds its limit
    assert bench.policy.dump()["runs"]["1"] == [0.0, pytest.approx(70.0), {"n1": 2}]


def test_jobs_that_the_cluster_cannot_hold_block_no_other_jobs():
    bench = Bench(4, 4, patience_s=0.0).submit(job("1", 9, 1), job("2", 8, 1, per_node=8), job("3", 1, 50))
    assert bench.decide() == {"3": {"n0": 1}}
    assert bench.why() == [("2", "capacity"), ("1", "capacity")]
    assert bench.policy.next_wakeup(0.0) is None


def test_a_reserved_server_may_disappear():
    bench = blocked()
    bench.decide()
    left = Bench.__new__(Bench)
    left.policy, left.placed = bench.policy, {}
    left.view = ClusterView(bench.view.nodes[1:], {"n1": 2})
    left.policy.cluster_changed(left.view.nodes, 1.0)
    assert left.decide(1.0) == {}
    assert (left.policy.reservation.mask, left.policy.reservation.time) == (0b1, 1000.0)
    left.policy.finished("a", 2.0)  # it ran on the removed server
    bench.policy.cluster_changed(bench.view.nodes, 3.0)
    bench.view.give({"n0": 2})
    assert bench.decide(3.0) == {"1": {"n0": 4}}


def test_a_job_changed_to_fit_nowhere_keeps_its_waiting_time():
    bench = Bench(4, patience_s=5.0).submit(job("blocker", 4, 100), job("grows", 4, 200))
    assert list(bench.decide()) == ["blocker"]
    bench.policy.changed(job("grows", 6, 200), 1.0)
    assert bench.decide(10) == {}
    assert bench.why(10) == [("grows", "capacity")]


def test_jobs_of_a_kind_stand_in_the_order_in_which_they_will_start():
    """The first of them has a place with idle time, which the others do not have yet."""
    bench = Bench(4)
    bench.occupy("a", 100.0, n0=2)
    bench.submit(*(job(number, 4, 10) for number in "123"), job("small", 3, 60))
    assert bench.decide() == {}
    assert [job_id for job_id, _ in bench.policy.queue(0.0)] == ["1", "2", "3", "small"]


# jobs with a turn


def test_a_job_with_a_turn_goes_after_earlier_turns_and_before_all_others_of_its_band():
    bench = Bench(4, 4, patience_s=100.0)
    bench.occupy("a", 50.0, n0=4)
    bench.occupy("b", 90.0, n1=4)
    bench.submit(job("1", 4, 500), now=1.0).submit(replace(job("2", 8, 500), turn=7.0), now=2.0)
    bench.submit(job("3", 1, 1), now=3.0).submit(replace(job("4", 4, 500), turn=6.0), now=4.0)
    assert bench.decide(4.0) == {}
    assert [job_id for job_id, _ in bench.policy.queue(4.0)] == ["4", "2", "3", "1"]
    bench.view.give({"n0": 4})
    bench.policy.finished("a", 50.0)
    assert bench.decide(50.0) == {"4": {"n0": 4}}
    bench.view.give({"n1": 4})
    bench.policy.finished("b", 90.0)
    assert bench.decide(90.0) == {}, "the servers are kept for job 2"
    assert [job_id for job_id, _ in bench.policy.queue(110.0)] == ["2", "1", "3"], "job 1 is late without a turn"
    bench.end("4", 550.0)
    assert bench.decide(550.0) == {"2": {"n0": 4, "n1": 4}}


def test_a_turn_may_be_given_and_taken():
    bench = Bench(4)
    bench.occupy("a", 50.0, n0=4)
    bench.submit(job("1", 4, 500), now=1.0).submit(job("2", 1, 1), now=2.0)
    for turn, order in ((9.0, ["1", "2"]), (None, ["2", "1"])):
        bench.policy.changed(replace(job("1", 4, 500), turn=turn), 3.0)
        assert bench.decide(3.0) == {}
        assert [job_id for job_id, _ in bench.policy.queue(3.0)] == order
    assert bench.policy.dump()["order"]


def test_another_turn_keeps_the_reserved_servers():
    bench = Bench(4, 4)
    bench.occupy("a", 50.0, n0=4)
    bench.occupy("b", 90.0, n1=4)
    first = replace(job("1", 4, 500), turn=5.0)
    bench.submit(first, now=1.0)
    assert bench.decide(1.0) == {}
    assert bench.policy.reservation.mask == 0b1
    bench.policy.running("b", {"n1": 4}, 30.0, 2.0)
    for changed, mask in ((replace(first, turn=4.0), 0b1), (replace(first, turn=4.0, weight=2.0), None)):
        bench.policy.changed(changed, 2.0)
        held = bench.policy.reservation
        assert (held and held.mask) == mask


def test_a_job_with_a_turn_stays_behind_the_classes_before_it():
    bench = Bench(4, 4)
    bench.occupy("a", 50.0, n0=4, n1=4)
    bench.submit(job("1", 1, 900), now=1.0).submit(replace(job("2", 8, 500), band=1, turn=0.0), now=2.0)
    bench.submit(job("3", 1, 1), now=3.0).submit(replace(job("4", 1, 1), band=1), now=4.0)
    assert bench.decide(4.0) == {}
    assert [job_id for job_id, _ in bench.policy.queue(4.0)] == ["3", "1", "2", "4"]


def test_with_contention_a_job_on_one_server_slows_down_no_neighbor():
    """It uses no NIC, in whatever words it asks for its GPUs."""
    for request in ({}, {"per_node": 2}, {"min_nodes": 1, "max_nodes": 1}):
        bench = Bench(4, 4, contention=True)
        bench.occupy("a", 1e6, n0=1)
        bench.occupy("b", 1e5, n1=1)
        assert bench.submit(job("1", 2, 10, **request)).decide() == {"1": {"n1": 2}}


# nodes with weights


def weighted(*weights):
    """A bench with servers of four GPUs."""
    bench = Bench(*[4] * len(weights))
    nodes = [replace(node, weight=weight) for node, weight in zip(bench.view.nodes, weights, strict=True)]
    bench.view = ClusterView(nodes)
    bench.policy.cluster_changed(nodes, 0.0)
    return bench


def test_servers_of_a_larger_weight_are_used_last():
    bench = weighted(100, 1, 50)
    bench.submit(job("1", 3, 10), job("2", 2, 20), job("3", 4, 30), job("4", 1, 40))
    assert bench.decide() == {"1": {"n1": 3}, "2": {"n2": 2}, "3": {"n0": 4}, "4": {"n1": 1}}


def test_a_job_on_several_servers_gets_the_lightest_that_suffice():
    bench = weighted(100, 1, 50, 1)
    assert bench.submit(job("1", 8, 10)).decide() == {"1": {"n1": 4, "n3": 4}}
    assert bench.submit(job("2", 8, 10)).decide() == {"2": {"n0": 4, "n2": 4}}


def test_a_job_does_not_wait_for_a_lighter_server():
    bench = weighted(100, 1)
    bench.occupy("9", 100.0, n1=4)
    assert bench.submit(job("1", 4, 10)).decide() == {"1": {"n0": 4}}
