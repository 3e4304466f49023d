"""Slurm's main scheduler and backfill, as the simulator plays them."""

import json
from dataclasses import replace

import pytest

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.core.policies.slurm_backfill.timetable import grouped

FABRIC = Fabric(1.25e9, 300e9)
ONE_NODE = Request(max_nodes=1)


def cluster(*free, gpus=8):
    nodes = [Node(f"n{i}", gpus, i) for i in range(1, len(free) + 1)]
    return ClusterView(nodes, {n.name: f for n, f in zip(nodes, free, strict=True)})


def policy(view, **settings):
    made = make_policy("slurm-backfill", fabric=FABRIC, **settings)
    made.cluster_changed(view.nodes, 0.0)
    return made


def job(number, gpus, limit, **request):
    return Job(
        JobId(str(number)),
        "ann",
        gpus,
        unprofiled(gpus),
        1.0,
        submit_time=float(number),
        time_limit=limit,
        request=Request(**({"max_nodes": 1} | request)),
    )


def started(decisions):
    return {d.job.id: dict(d.placement.gpus) for d in decisions if isinstance(d, Start)}


def test_jobs_start_in_order_until_one_does_not_fit():
    view = cluster(8, 2)
    made = policy(view, bf_interval_s=1e6)
    for number, gpus in enumerate((2, 8, 2), start=1):
        made.submitted(job(number, gpus, 100.0), 0.0)
    made._cycle = 0.0  # no backfill in this cycle
    assert started(made.decide(view, 1.0)) == {"1": {"n1": 2}}


def test_backfill_starts_what_ends_before_the_plan_of_the_job_ahead():
    view = cluster(2)
    made = policy(view)
    made.running(JobId("0"), {"n1": 6}, 1000.0, 0.0)
    made.submitted(job(1, 8, 500.0), 0.0)
    made.submitted(job(2, 1, 2000.0), 0.0)
    made.submitted(job(3, 1, 900.0), 0.0)
    assert started(made.decide(view, 0.0)) == {"3": {"n1": 1}}


def test_a_plan_reserves_whole_nodes_although_the_job_leaves_gpus_free():
    """As in Slurm: job 1 leaves 4 of 8 GPUs free from t = 1000 on, but job 2 may not use the node beyond that time."""
    view = cluster(2)
    made = policy(view)
    made.running(JobId("0"), {"n1": 6}, 1000.0, 0.0)
    made.submitted(job(1, 4, 500.0), 0.0)
    made.submitted(job(2, 1, 2000.0), 0.0)
    assert started(made.decide(view, 0.0)) == {}


def test_every_job_gets_a_plan_and_none_may_delay_it():
    """Easy backfill would start job 3: it delays only job 2, which is not the head."""
    view = cluster(4, 0)
    made = policy(view, bf_resolution_s=1.0)
    made.running(JobId("0"), {"n2": 8}, 100.0, 0.0)
    made.running(JobId("9"), {"n1": 4}, 200.0, 0.0)
    made.submitted(job(1, 8, 1000.0), 0.0)  # n2 at 100
    made.submitted(job(2, 8, 1000.0), 0.0)  # n1 at 200
    made.submitted(job(3, 1, 300.0), 0.0)
    assert started(made.decide(view, 0.0)) == {}


def test_backfill_runs_at_its_interval_and_only_if_something_has_changed():
    view = cluster(2)
    made = policy(view, bf_interval_s=30.0)
    made.running(JobId("0"), {"n1": 6}, 1000.0, 0.0)
    made.submitted(job(1, 8, 500.0), 0.0)
    assert made.decide(view, 0.0)
    assert made.next_wakeup(0.0) is None
    made.submitted(job(2, 1, 100.0), 10.0)
    assert started(made.decide(view, 10.0)) == {}
    assert made.next_wakeup(10.0) == pytest.approx(30.0)
    assert started(made.decide(view, 30.0)) == {"2": {"n1": 1}}


def test_jobs_beyond_the_window_and_beyond_the_depth_are_not_planned():
    view = cluster(2)
    for settings in ({"bf_window_s": 500.0}, {"bf_max_job_test": 1}):
        made = policy(view, **settings)
        made.running(JobId("0"), {"n1": 6}, 1000.0, 0.0)
        made.submitted(job(1, 8, 500.0), 0.0)
        made.submitted(job(2, 1, 5000.0), 0.0)
        found = started(made.decide(view, 0.0))
        assert found == ({"2": {"n1": 1}} if "bf_window_s" in settings else {})


def test_small_jobs_go_first_if_slurm_favors_them():
    view = cluster(4)
    for favored, expected in ((False, {"1": {"n1": 4}}), (True, {"2": {"n1": 1}})):
        made = policy(view, favor_small=favored, bf_interval_s=1e6)
        made.submitted(job(1, 4, 500.0), 0.0)
        made.submitted(job(2, 1, 500.0), 0.0)
        assert started(made.decide(view, 0.0)) == expected


def test_a_job_on_several_nodes_gets_as_few_as_possible():
    view = cluster(4, 8, 8)
    made = policy(view)
    made.submitted(job(1, 16, 500.0, max_nodes=None, min_nodes=2), 0.0)
    assert started(made.decide(view, 0.0)) == {"1": {"n2": 8, "n3": 8}}


def test_a_restart_keeps_cycle_and_running_jobs():
    view = cluster(2)
    made = policy(view)
    made.running(JobId("0"), {"n1": 6}, 1000.0, 0.0)
    waiting = [job(1, 8, 500.0), job(2, 1, 2000.0)]
    for one in waiting:
        made.submitted(one, 0.0)
    made.decide(view, 0.0)
    again = policy(view)
    again.load(json.loads(json.dumps(made.dump())), {one.id: one for one in waiting})
    late = job(3, 1, 900.0)
    for each in (made, again):
        each.submitted(late, 31.0)
    assert started(made.decide(view, 31.0)) == started(again.decide(view, 31.0)) == {"3": {"n1": 1}}


@pytest.mark.parametrize(
    "state", [{}, {"waiting": []}, {"waiting": [], "running": [1], "cycle": None, "changed": True}]
)
def test_a_damaged_state_is_an_error(state):
    with pytest.raises(ValueError, match="not a state"):
        policy(cluster(1)).load(state, {})


def test_a_user_over_the_limit_of_the_backfill_cycle_leaves_the_depth_to_others():
    """ann may have two jobs tested in a cycle: her third, which would fit, is not, and bob's is."""
    view = cluster(2)
    made = policy(view, bf_max_job_user=2, bf_max_job_test=3)
    made.running(JobId("0"), {"n1": 6}, 1000.0, 0.0)
    for number, gpus in ((1, 8), (2, 8), (3, 1)):
        made.submitted(job(number, gpus, 500.0), 0.0)
    made.submitted(replace(job(4, 1, 500.0), user="bob"), 0.0)
    assert started(made.decide(view, 0.0)) == {"4": {"n1": 1}}


def test_with_a_weight_for_fair_share_users_with_less_usage_go_first():
    view = cluster(0)
    made = policy(view, weight_fair_share=1000.0)
    first = job(1, 8, 500.0)
    made.submitted(first, 0.0)
    assert made.decide(cluster(8), 0.0)
    made.submitted(job(2, 8, 500.0), 10.0)
    made.submitted(replace(job(3, 8, 500.0), user="bob"), 20.0)
    made.decide(view, 20.0)
    made.finished(first.id, 400.0)
    assert started(made.decide(cluster(8), 400.0)) == {"3": {"n1": 8}}
    again = policy(view, weight_fair_share=1000.0)
    again.load(json.loads(json.dumps(made.dump())), {})
    assert again.priorities.usage.at(400.0) == made.priorities.usage.at(400.0) != {}


def test_priorities_that_change_are_a_reason_for_a_backfill_cycle():
    view = cluster(2)
    made = policy(view, weight_age=1.0, calc_period_s=60.0)
    made.running(JobId("0"), {"n1": 6}, 1000.0, 0.0)
    made.submitted(job(1, 8, 500.0), 0.0)
    made.decide(view, 0.0)
    assert made.next_wakeup(0.0) is None
    made.decide(view, 60.0)
    assert made._cycle == 60.0


MINUTE = 60.0
ENDS = (14, 16, 48, 53, 313, 434, 456, 458)
"""Minutes until running jobs reach their limits."""


def test_the_farther_off_an_end_is_the_coarser_slurm_sees_it():
    """By minutes from the first one on: 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512."""
    found = {end / MINUTE: seen / MINUTE for end, seen in grouped(end * MINUTE for end in ENDS).items()}
    assert found == {14: 14, 16: 16, 48: 53, 53: 53, 313: 458, 434: 458, 456: 458, 458: 458}
    assert grouped([]) == grouped([], 30.0) == {}


def test_with_bf_window_linear_the_groups_grow_by_a_constant():
    """By seconds from the first one (rounded up to 30 s) on: 30, 130, 230, 330, ..."""
    ends = (10.0, 60.0, 61.0, 160.0, 161.0, 255.0, 1000.0)
    assert grouped(ends, 100.0) == {10: 60, 60: 60, 61: 160, 160: 160, 161: 255, 255: 255, 1000: 1000}
    assert grouped((10.0, 3000.0, 3020.0), 30.0) == {10: 10, 3000: 3000, 3020: 3020}
    near = {end * MINUTE: end * MINUTE for end in ENDS}
    assert grouped(near, 30.0) == near  # all apart, where doubling makes one group of the last four


@pytest.mark.parametrize(("gpus", "starts"), [(5, 53), (8, 458)])
def test_plans_are_those_of_a_real_slurm(gpus, starts):
    """Slurm 22.05: n1 has eight jobs of one GPU, n2 one of 4 GPUs until 313. squeue --start says n1, 53 and 458."""
    view = cluster(0, 4)
    made = policy(view)
    for number, end in enumerate((14, 16, 16, 48, 53, 434, 456, 458)):
        made.running(JobId(f"r{number}"), {"n1": 1}, end * MINUTE, 0.0)
    made.running(JobId("r8"), {"n2": 4}, 313 * MINUTE, 0.0)
    made.submitted(job(1, gpus, 16 * MINUTE), 0.0)
    made.submitted(job(2, 1, 481 * MINUTE), 0.0)
    assert started(made.decide(view, 1.0)) == {"2": {"n2": 1}}  # although it delays job 1 on n2
    made.submitted(job(3, 2, (starts + 1) * MINUTE), 0.0)
    assert started(made.decide(view, 40.0)) == {"3": {"n2": 2}}


def test_with_bf_window_linear_plans_are_those_of_a_real_slurm():
    """The same jobs with bf_window_linear=30: squeue --start says that a job of 8 GPUs starts on n2 after 313."""
    view = cluster(0, 4)
    made = policy(view, bf_window_linear_s=30.0)
    for number, end in enumerate((14, 16, 16, 48, 53, 434, 456, 458)):
        made.running(JobId(f"r{number}"), {"n1": 1}, end * MINUTE, 0.0)
    made.running(JobId("r8"), {"n2": 4}, 313 * MINUTE, 0.0)
    made.submitted(job(1, 8, 16 * MINUTE), 0.0)
    made.submitted(job(2, 1, 481 * MINUTE), 0.0)
    made.submitted(job(3, 2, 311 * MINUTE), 0.0)
    assert started(made.decide(view, 1.0)) == {"3": {"n2": 2}}  # not job 2, which would delay job 1


def test_a_job_on_several_busy_nodes_gets_a_plan_too():
    view = cluster(4, 0)
    made = policy(view, bf_resolution_s=1.0)
    made.running(JobId("8"), {"n1": 4}, 200.0, 0.0)
    made.running(JobId("9"), {"n2": 8}, 100.0, 0.0)
    made.submitted(job(1, 16, 500.0, max_nodes=2), 0.0)
    made.submitted(job(2, 1, 1000.0), 0.0)
    made.submitted(job(3, 1, 90.0), 0.0)
    assert started(made.decide(view, 0.0)) == {"3": {"n1": 1}}


def test_several_nodes_are_those_with_most_free_gpus():
    view = cluster(4, 8, 8)
    made = policy(view)
    made.submitted(job(1, 16, 500.0, max_nodes=2), 0.0)
    assert started(made.decide(view, 0.0)) == {"1": {"n2": 8, "n3": 8}}
