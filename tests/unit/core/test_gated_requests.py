"""asrpt-gated with all kinds of requests and servers, and across restarts."""

import pickle
from collections import Counter

import pytest

from slurm_asrpt.core.cluster import ClusterView
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.status.reason_texts import text_of
from tests.benches.gated import Bench, job, restarted

# all kinds of requests and servers


def test_unequal_servers():
    bench = Bench(2, 4, 1).submit(job("1", 4, 1), job("2", 2, 100), job("3", 1, 1000))
    assert bench.decide() == {"1": {"n1": 4}, "2": {"n0": 2}, "3": {"n2": 1}}


def test_a_job_that_needs_unequal_servers_starts_on_an_idle_cluster():
    """Slurm fills nodes in node-table order: 4+6 instead of 8+2, although it is worse."""
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
def test_every_form_of_request_starts(asks, gets):
    bench = Bench(4, 4, 4)
    assert bench.submit(job("1", 4, 10, **asks)).decide() == {"1": gets}


@pytest.mark.parametrize("asks", [{}, {"cpus_per_gpu": 2.0}, {"per_node": 1}, {"candidates": frozenset({"n0", "n1"})}])
def test_jobs_that_end_together_share_servers_for_every_form_of_request(asks):
    bench = Bench(4, 4)
    bench.occupy("long", 1000.0, n0=2)
    bench.occupy("short", 100.0, n1=1)  # more GPUs are free here, and n0 has no job of this length
    bench.submit(job("1", 1, 90, **asks), job("2", 1, 900, **asks))
    assert bench.decide() == {"1": {"n1": 1}, "2": {"n0": 1}}


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


LEFT, RIGHT = frozenset({"n0", "n1"}), frozenset({"n2", "n3"})


def test_of_several_sets_the_one_with_room_is_used():
    bench = Bench(4, 4, 4, 4)
    bench.occupy("a", 100.0, n0=1)
    assert bench.submit(job("1", 8, 10, within=(LEFT, RIGHT))).decide() == {"1": {"n2": 4, "n3": 4}}


def test_the_set_that_is_free_soonest_is_reserved():
    bench = Bench(4, 4, 4, 4)
    for at, until in enumerate([300.0, 100.0, 200.0, 150.0]):  # the first two to be free are in different sets
        bench.occupy(f"r{at}", until, **{f"n{at}": 1})
    assert bench.submit(job("1", 8, 10, within=(LEFT, RIGHT))).decide() == {}
    assert (bench.policy.reservation.mask, bench.policy.reservation.time) == (0b1100, 200.0)


@pytest.mark.parametrize(("asks", "words"), [({}, ""), ({"per_node": 4}, "4 on each of 2 nodes, ")])
def test_the_reason_says_that_free_gpus_are_in_different_sets(asks, words):
    bench = Bench(4, 4, 4, 4)
    for node in ("n1", "n2"):
        bench.occupy(node, 100.0, **{node: 1})
    assert bench.submit(job("1", 8, 10, within=(LEFT, RIGHT), **asks)).decide() == {}
    ((_, why),) = bench.policy.queue(0.0)
    assert text_of(why) == (
        f"needs 8 GPUs, {words}on nodes of one partition, feature, block or reservation, or contiguous ones; "
        "14 free for it, at most 4 on one"
    )


def test_a_set_that_never_holds_the_job_does_not_count():
    bench = Bench(4, 4, 4, 4)
    assert bench.submit(job("1", 8, 10, within=(LEFT, frozenset({"n3"})))).decide() == {"1": {"n0": 4, "n1": 4}}
    assert bench.submit(job("2", 12, 10, within=(LEFT, RIGHT))).decide() == {}
    assert bench.why() == [("2", "capacity")]


def test_slices_of_a_replica_share_a_server():
    slices = JobProfile("slices", (Stage(2, 0.5, 0.5, param_bytes=1e9),), tensor=2)
    bench = Bench(3, 2, 2)
    assert bench.submit(job("1", profile=slices, iterations=10)).decide() == {"1": {"n1": 2, "n2": 2}}


def test_a_job_short_of_cpus_reserves_servers_whose_end_is_known():
    bench = Bench(4, 4)
    bench.view.free_cpus = {"n0": 3, "n1": 64}  # n0: CPU-only jobs with unknown ends
    bench.occupy("a", 100.0, n1=2)
    assert bench.submit(job("1", 4, 10, cpus_per_gpu=8)).decide() == {}
    assert (bench.policy.reservation.mask, bench.policy.reservation.time) == (0b10, 100.0)
    bench.view.give({"n1": 2})
    bench.policy.finished("a", 90.0)
    assert bench.decide(90.0) == {"1": {"n1": 4}}


def test_when_a_server_has_cpus_that_no_known_job_holds_is_unknown():
    """Jobs without GPUs hold them; a day is assumed, which users are not told."""
    bench = Bench(4, 4)
    bench.view.free_cpus = {"n0": 3, "n1": 3}
    for name in bench.view.free:
        bench.occupy(name, 100.0, **{name: 1})
    bench.submit(job("1", 2, 10, cpus_per_gpu=8), job("2", 2, 1e6), job("3", 2, 1e6)).decide()
    assert bench.policy.reservation.time == 86400.0
    assert dict(bench.why()) == {"1": "resources", "3": "reservation"}
    for now in (0.0, 30.0):  # users look later than the decision
        assert dict(bench.policy.queue(now))["3"].facts["in_s"] is None


def test_a_job_that_cannot_start_even_on_idle_servers_gets_no_reservation():
    bench = Bench(4, 4, patience_s=0.0)
    bench.view.free_cpus = {"n0": 3, "n1": 3}
    bench.submit(job("1", 4, 1, cpus_per_gpu=8), job("2", 4, 1, cpus_per_gpu=8), job("3", 2, 1e6))
    assert bench.decide() == {"3": {"n0": 2}}
    assert bench.policy.reservation is not None or bench.why()[0] == ("1", "resources")


def test_a_job_short_of_memory_waits():
    bench = Bench(4)
    bench.view.free_memory = {"n0": 100.0}
    bench.submit(job("1", 2, 10, memory_per_gpu=80.0))
    assert bench.decide() == {}
    assert bench.why() == [("1", "resources")]
    bench.view.free_memory = {"n0": 200.0}
    assert bench.decide(1.0) == {"1": {"n0": 2}}


def test_a_job_without_its_other_generic_resources_waits_and_says_so():
    bench = Bench(4, 4)
    bench.view = ClusterView(bench.view.nodes, free_gres={"nvme": {"n0": 1, "n1": 0}})
    disk = (("nvme", 1),)
    bench.submit(job("1", 1, 10, gres_per_node=disk), job("2", 1, 20, gres_per_node=disk), job("3", 1, 30))
    assert bench.decide() == {"1": {"n0": 1}, "3": {"n0": 1}}
    ((waits, why),) = bench.policy.queue(0.0)
    assert waits == "2"
    assert "but no nvme:1 left there" in text_of(why)
    bench.end("1", 5.0)
    assert bench.decide(5.0) == {"2": {"n0": 1}}


HALF = {
    "cpus": ({"free_cpus": {"n0": 64.0, "n1": 64.0}}, {"cpus_per_gpu": 32.0}),
    "memory": ({"free_memory": {"n0": 512.0, "n1": 512.0}}, {"memory_per_node": 256.0}),
    "gres": ({"free_gres": {"nvme": {"n0": 2, "n1": 2}}}, {"gres_per_node": (("nvme", 1),)}),
    "share": (
        {"free_gres": {"share": {"n0": 16, "n1": 16}}},
        {"cpus_per_gpu": 8.0, "shares_per_gpu": (("share", 8.0),)},
    ),
}


def short_of(resource: str, **settings: object) -> Bench:
    """Five jobs of one GPU and half of a resource of a server for 100 s, on two servers of eight GPUs."""
    bench, (free, asks) = Bench(8, 8, **settings), HALF[resource]
    bench.view = ClusterView(bench.view.nodes, **free)
    return bench.submit(*(job(str(number), 1, 100, **asks) for number in range(5)))


@pytest.mark.parametrize("resource", HALF)
def test_longer_jobs_use_the_gpus_beside_a_job_that_waits_for_cpus_memory_or_other_resources(resource):
    bench = short_of(resource).submit(*(job(f"1{number}", 2, 1000) for number in range(9)))
    started = bench.decide()
    held = bench.policy.reservation
    assert (held.job.id, held.time, held.share) == ("4", 100.0, 1)
    reserved = "n0" if held.mask == 1 else "n1"
    assert len(started) == 4 + 5, "of 12 GPUs, only one is kept on the server where the job will start"
    assert bench.view.free == {reserved: 2, ({"n0", "n1"} - {reserved}).pop(): 0}
    again = restarted(bench, [job(str(number), 1, 100, **HALF[resource][1]) for number in (4,)])
    for name in [name for name, gpus in started.items() if len(name) == 1 and reserved in gpus]:
        again.end(name, 100.0)
    assert again.decide(100.0)["4"] == {reserved: 1}


@pytest.mark.parametrize(("cpus", "seconds", "starts"), [(8.0, 1000, True), (10.0, 1000, False), (10.0, 90, True)])
def test_no_longer_job_takes_cpus_that_a_reservation_needs(cpus, seconds, starts):
    """After 100 s, 44 CPUs are free, and 36 are reserved."""
    bench = Bench(8)
    bench.view = ClusterView(bench.view.nodes, free_cpus={"n0": 64.0})
    bench.submit(job("0", 1, 100, cpus_per_gpu=32.0), job("1", 1, 300, cpus_per_gpu=20.0))
    assert len(bench.decide()) == 2
    bench.submit(job("2", 1, 10, cpus_per_gpu=36.0), job("3", 1, seconds, cpus_per_gpu=cpus))
    assert ("3" in bench.decide()) is starts
    assert bench.policy.reservation.time == 100.0


def test_a_profile_without_compute_time_is_allowed():
    bench = Bench(4).submit(job("1", profile=JobProfile("nothing", (Stage(2, 0.0, 0.0),)), iterations=10))
    assert bench.decide() == {"1": {"n0": 2}}


# restarts


def test_a_restart_keeps_the_order_the_runs_and_the_estimates():
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
    bench.policy.finished("2", 1000.0)
    assert after.policy.dump()["estimates"] == bench.policy.dump()["estimates"]
    assert after.policy.dump()["estimates"][""][0] == [1.0]


def test_a_restart_keeps_the_servers_of_an_impatient_job():
    bench = Bench(4, 4, patience_s=50.0)
    bench.occupy("a", 100.0, n0=2)
    bench.occupy("b", 1000.0, n1=2)
    waiting = [job("1", 4, 1e6)]
    bench.submit(*waiting).decide(50.0)
    assert restarted(bench, waiting).policy.reservation == bench.policy.reservation
    assert restarted(bench, []).policy.reservation is None
    assert restarted(bench, []).policy.queue(60.0) == []


@pytest.mark.parametrize("state", [{}, {"order": 3}, {"order": [], "runs": [], "returns": 0}])
def test_an_invalid_state_of_the_policy_is_rejected(state):
    bench = Bench(4)
    with pytest.raises(ValueError, match="not a state of policy asrpt-gated"):
        bench.policy.load(state, {})


def test_memory_does_not_grow_over_time():
    """One job waits forever while thousands arrive and end."""
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
        if number == 100:
            early = len(pickle.dumps(bench.policy))
    assert len(pickle.dumps(bench.policy)) < 2 * early
    assert not bench.policy.dump()["runs"]


def test_jobs_that_were_estimated_again_start_behind_a_job_that_holds_a_reservation():
    """Their keys are equal to what they were, but other objects. They do not count as jobs that were put back."""
    inside, outside = frozenset({"n2", "n3"}), frozenset({"n0", "n1"})
    bench = Bench(8, 8, 8, 8)
    bench.submit(*[job(str(number), gpus=2, candidates=outside) for number in range(1, 25)], now=1.0)
    bench.decide(1.0)
    owners = [job(str(number), gpus=2, submit=10.0, candidates=inside | outside, within=(inside, outside))
              for number in range(65, 81)]  # fmt: skip
    bench.submit(*owners, now=11.0)
    assert len(bench.decide(11.0)) == 8
    for number in range(1, 9):
        bench.end(str(number), 12.0)
    assert len(bench.decide(12.0)) == 8
    for number in range(65, 73):
        bench.end(str(number), 22.0)
    assert list(bench.decide(22.0)) == [str(number) for number in range(73, 81)]


def test_a_reservation_protects_only_servers_that_its_job_could_use():
    """n0 and n1 cannot serve the job with a reservation on n2, so others may use them for longer than predicted."""
    bench = Bench(4, 4, 4)
    bench.submit(job("1", gpus=2, iterations=100.0, candidates=frozenset({"n0"})))
    bench.submit(job("2", gpus=4, iterations=100.0, candidates=frozenset({"n2"})))
    assert set(bench.decide()) == {"1", "2"}
    bench.submit(job("3", gpus=4, iterations=1.0, candidates=frozenset({"n2"})), now=10.0)
    bench.submit(job("4", gpus=2, iterations=500.0, candidates=frozenset({"n0"})), now=10.0)
    assert bench.decide(10.0) == {"4": {"n0": 2}}
    assert bench.policy.reservation.job.id == "3"


# scatter


def test_a_job_without_a_profile_is_scattered_only_if_the_setting_says_so_and_nothing_can_start_it_better():
    for scatter, gets in ((False, {}), (True, {"wide": {"n0": 2, "n1": 1}})):
        bench = Bench(4, 4, scatter=scatter)
        bench.occupy("a", 50.0, n0=2)
        bench.occupy("b", 90.0, n1=3)
        assert bench.submit(job("wide", 3, 10)).decide() == gets


def test_a_job_that_fits_on_a_server_is_not_scattered():
    bench = Bench(4, 4, 4, scatter=True)
    bench.occupy("a", 50.0, n0=3)
    bench.occupy("b", 90.0, n1=3)
    assert bench.submit(job("wide", 3, 10)).decide() == {"wide": {"n2": 3}}


def test_a_job_is_scattered_over_the_fewest_servers():
    bench = Bench(4, 4, 4, 4, scatter=True)
    for name, gpus in (("n0", 3), ("n1", 3), ("n2", 2), ("n3", 2)):
        bench.occupy(f"on {name}", 50.0, **{name: gpus})
    assert bench.submit(job("wide", 4, 10)).decide() == {"wide": {"n2": 2, "n3": 2}}


@pytest.mark.parametrize(
    "asks", [{"max_nodes": 1}, {"per_node": 3}, {"per_node": 1, "max_nodes": 3}, {"unit": 3}, {"min_nodes": 2}]
)
def test_a_job_whose_owner_says_something_of_its_nodes_waits_for_the_fewest(asks):
    bench = Bench(4, 4, scatter=True)
    bench.occupy("a", 50.0, n0=2)
    bench.occupy("b", 90.0, n1=3)
    assert not bench.policy.scatters(job("wide", 3, 10, **asks))
    assert bench.submit(job("wide", 3, 10, **asks)).decide() == (
        {"wide": {"n0": 2, "n1": 1}} if asks == {"min_nodes": 2} else {}
    )


def test_a_job_whose_communication_is_known_is_not_scattered():
    bench = Bench(4, 4, scatter=True)
    bench.occupy("a", 50.0, n0=2)
    bench.occupy("b", 90.0, n1=3)
    profile = JobProfile("wide", (Stage(3, 0.5, 0.5, param_bytes=1.0),))  # little, but known
    assert bench.submit(job("wide", profile=profile, iterations=10)).decide() == {}


def test_nobody_is_scattered_over_gpus_that_are_reserved():
    bench = Bench(4, 4, scatter=True)
    bench.occupy("a", 50.0, n0=3)
    bench.occupy("b", 90.0, n1=3)
    profile = JobProfile("first", (Stage(3, 0.5, 0.5, param_bytes=1e9),))
    bench.submit(job("first", profile=profile, iterations=1), job("behind", 2, 1000))
    assert bench.decide() == {}
    assert bench.policy.reservation.job.id == "first"


def test_a_scattered_job_that_slurm_has_started_runs_as_long_as_predicted():
    bench = Bench(4, 4, scatter=True)
    bench.submit(job("wide", 3, 10))
    bench.policy.started_by_slurm("wide", {"n0": 2, "n1": 1}, 5.0)
    assert bench.policy.dump()["runs"]["wide"][1] == 15.0


def parts_reserved(**settings):
    """A bench on which a job of 4 GPUs on each of 3 servers of 8 waits for room on the third, beside 14 small jobs."""
    bench = Bench(8, 8, 8, 8, **settings)
    bench.occupy("a", 1000.0, n2=5)
    bench.occupy("b", 2000.0, n3=6)
    small = [job(str(number), 1, 1e5, submit=1.0) for number in range(2, 16)]
    started = bench.submit(job("1", 12, 100, per_node=4), *small).decide(1.0)
    return bench, started


def test_beside_a_reservation_of_parts_of_servers_others_use_the_rest():
    bench, started = parts_reserved()
    held = bench.policy.reservation
    assert (held.job.id, held.mask, held.time, held.share) == ("1", 0b0111, 1000.0, 4)
    used = Counter(name for gpus in started.values() for name in gpus)
    assert used == {"n0": 4, "n1": 4, "n3": 2}
    bench.view.give({"n2": 5})
    bench.policy.finished("a", 1000.0)
    assert bench.decide(1000.0)["1"] == {"n0": 4, "n1": 4, "n2": 4}


def test_a_job_that_goes_first_keeps_parts_of_servers_too():
    bench, started = parts_reserved(patience_s=0.0)
    held = bench.policy.reservation
    assert (held.mask, held.kept, held.share) == (0b0111, True, 4)
    bench.decide(500.0)
    assert (bench.policy.reservation.mask, bench.policy.reservation.time) == (0b0111, 1000.0)
    used = Counter(name for gpus in started.values() for name in gpus)
    assert max(used[name] for name in ("n0", "n1")) <= 4
    bench.view.give({"n2": 5})
    bench.policy.finished("a", 1000.0)
    assert bench.decide(1000.0)["1"] == {"n0": 4, "n1": 4, "n2": 4}
