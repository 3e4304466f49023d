"""Slurm's priorities in the simulator: decayed usage and fair share against values computed by hand."""

import json
import math

import pytest

from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.multifactor import (
    JobFactors,
    Leaf,
    Multifactor,
    ShareTree,
    Usage,
    Weights,
    classic_fair_share,
    fair_tree,
    size_factor,
)

HOUR, DAY = 3600.0, 86400.0
ANN, BOB, CY, DAN = Leaf("a", "ann"), Leaf("a", "bob"), Leaf("b", "cy"), Leaf("b", "dan")
TWO_ACCOUNTS = ShareTree({"a": "root", "b": "root"}, {"a": 1.0, "b": 1.0}, dict.fromkeys((ANN, BOB, CY, DAN), 1.0))


def job(number, gpus=1, user="ann", submit=0.0, **request):
    profile = unprofiled(gpus)
    return Job(JobId(str(number)), user, gpus, profile, submit_time=submit, request=Request(**request))


# usage


def test_usage_is_billing_units_times_seconds():
    usage = Usage(half_life_s=0.0)
    usage.started("1", ANN, 4.0, 100.0)
    usage.started("2", BOB, 1.0, 100.0)
    usage.ended("1", 160.0)
    assert usage.at(200.0) == {ANN: 240.0, BOB: 100.0}


def test_half_of_the_usage_is_left_after_the_half_life():
    usage = Usage(half_life_s=DAY)
    usage.add(ANN, 1000.0, 0.0)
    assert usage.at(DAY)[ANN] == pytest.approx(500.0)
    usage.add(ANN, 100.0, DAY)
    assert usage.at(3 * DAY)[ANN] == pytest.approx(150.0)


def test_a_run_is_charged_as_slurm_charges_it_every_calc_period():
    """Slurm: usage x decay(period), plus the period x decay(period) of each job that runs, every five minutes."""
    half_life, period, periods = 4 * HOUR, 300, 60
    factor, slurm = 1 - 0.693 / half_life, 0.0
    for _ in range(periods):
        slurm = slurm * factor**period + 8 * period * factor**period
    usage = Usage(half_life)
    usage.started("1", ANN, 8.0, 0.0)
    assert usage.at(periods * period)[ANN] == pytest.approx(slurm, rel=0.01)
    usage.ended("1", periods * period)
    assert usage.at(periods * period)[ANN] == pytest.approx(slurm, rel=0.01)
    assert usage.at(periods * period + half_life)[ANN] == pytest.approx(slurm / 2, rel=0.01)


def test_a_run_in_two_parts_counts_as_the_whole():
    whole, parts = Usage(HOUR), Usage(HOUR)
    whole.started("1", ANN, 2.0, 0.0)
    parts.started("1", ANN, 2.0, 0.0)
    parts.ended("1", 1000.0)
    parts.started("2", ANN, 2.0, 1000.0)
    assert parts.at(5000.0)[ANN] == pytest.approx(whole.at(5000.0)[ANN])


# fair share


def test_the_branch_with_the_least_usage_for_its_shares_ranks_first():
    """Account b has a tenth of the usage: its users rank before those of a, also the one who used more than bob."""
    usage = {ANN: 850.0, BOB: 50.0, CY: 100.0, DAN: 0.0}
    assert fair_tree(TWO_ACCOUNTS, usage) == {DAN: 1.0, CY: 0.75, BOB: 0.5, ANN: 0.25}


def test_shares_count_at_each_level():
    """LevelFS: a 0.8 / 0.9, b 0.2 / 0.1; below a: ann (3/4) / (600/900), bob (1/4) / (300/900)."""
    tree = ShareTree(TWO_ACCOUNTS.parents, {"a": 8.0, "b": 2.0}, {ANN: 3.0, BOB: 1.0, CY: 1.0, DAN: 1.0})
    found = fair_tree(tree, {ANN: 600.0, BOB: 300.0, CY: 60.0, DAN: 40.0})
    assert found == {DAN: 1.0, CY: 0.75, ANN: 0.5, BOB: 0.25}


def test_users_without_usage_share_a_rank_across_accounts():
    assert fair_tree(TWO_ACCOUNTS, {}) == dict.fromkeys((ANN, BOB, CY, DAN), 1.0)
    assert fair_tree(TWO_ACCOUNTS, {BOB: 10.0}) == {CY: 1.0, DAN: 1.0, ANN: 0.5, BOB: 0.25}


def test_without_shares_a_user_ranks_last_and_with_those_of_the_parent_first():
    tree = ShareTree({"a": "root"}, {"a": 1.0}, {ANN: 0.0, BOB: 1.0, Leaf("a", "eve"): None})
    assert fair_tree(tree, {ANN: 0.0, BOB: 5.0, Leaf("a", "eve"): 50.0}) == {
        Leaf("a", "eve"): 1.0,
        BOB: 2 / 3,
        ANN: 1 / 3,
    }


def test_the_users_of_an_account_with_the_shares_of_its_parent_compete_a_level_up():
    tree = ShareTree({"a": "root", "sub": "a"}, {"a": 1.0, "sub": None}, {ANN: 1.0, Leaf("sub", "eve"): 1.0})
    assert tree.of_user(Leaf("sub", "eve")) == "a"
    assert fair_tree(tree, {ANN: 1.0, Leaf("sub", "eve"): 2.0}) == {ANN: 1.0, Leaf("sub", "eve"): 0.5}


def test_unknown_users_have_one_share():
    new = Leaf("c", "new")
    found = fair_tree(TWO_ACCOUNTS, {ANN: 1.0, new: 1.0})
    assert len(found) == 5
    assert found[new] < found[CY]
    assert fair_tree(ShareTree(), {Leaf("", "ann"): 2.0, Leaf("", "bob"): 1.0}) == {
        Leaf("", "bob"): 1.0,
        Leaf("", "ann"): 0.5,
    }


def test_a_circle_of_accounts_ends():
    tree = ShareTree({"a": "b", "b": "a"}, {"a": None, "b": None}, {ANN: 1.0})
    assert fair_tree(tree, {ANN: 1.0}) == {ANN: 1.0}


def test_the_older_formula():
    """a has half of the shares and 0.9 of the usage. ann: 0.9 of the usage, a quarter of the shares."""
    found = classic_fair_share(TWO_ACCOUNTS, {ANN: 900.0, CY: 100.0})
    effective = {ANN: 0.9 + (0.9 - 0.9) / 2, BOB: 0.9 / 2, CY: 0.1 + (0.1 - 0.1) / 2, DAN: 0.1 / 2}
    assert found == pytest.approx({leaf: 2 ** -(used / 0.25) for leaf, used in effective.items()})


# priorities


def test_the_parts_of_a_priority():
    """Half of the maximum age: 500. Fair share 0.5 of 1000. A quarter of the nodes, an eighth of the GPUs: 18.75."""
    weights = Weights(age=1000, fair_share=1000, job_size=100, max_age_s=100.0)
    one = job(1, gpus=4, min_nodes=1)
    made = Multifactor(weights, ShareTree(), {one.id: JobFactors(Leaf("a", "ann"), 4.0, points=7.0)})
    made.usage.add(Leaf("a", "ann"), 9.0, 0.0)
    other = job(2, user="bob")
    made.order([one, other], nodes=4, gpus=32, now=50.0)
    assert made.priority(one, made.factors_of(one), 4, 32, 50.0) == int(500 + 500 + 18.75 + 7)
    assert made.priority(one, made.factors_of(one), 4, 32, 1e6) == int(1000 + 500 + 18.75 + 7)
    assert size_factor(one, 4, 32, favor_small=True) == pytest.approx(1 - 0.1875)


def test_who_has_used_less_goes_first_and_of_equals_the_older_job():
    made = Multifactor(Weights(fair_share=1000))
    jobs = [job(1), job(2, user="bob"), job(3, user="bob")]
    ids = lambda now: [each.id for each in made.order(jobs, 1, 8, now)]  # noqa: E731
    assert ids(0.0) == ["1", "2", "3"]
    made.started(job(9), 0.0)
    assert ids(10.0) == ["1", "2", "3"]  # calculated every five minutes
    assert ids(300.0) == ["2", "3", "1"]


def test_a_higher_tier_goes_first():
    jobs = [job(1), job(2)]
    leaf = Leaf("", "ann")
    factors = {JobId("1"): JobFactors(leaf, 1.0, points=1e6), JobId("2"): JobFactors(leaf, 1.0, tier=10)}
    assert [each.id for each in Multifactor(Weights(), None, factors).order(jobs, 1, 8, 0.0)] == ["2", "1"]


def test_a_new_job_has_its_age_at_once_and_the_others_when_priorities_are_calculated():
    made = Multifactor(
        Weights(age=1000, max_age_s=1000.0), None, {JobId("2"): JobFactors(Leaf("", "ann"), 1.0, points=50)}
    )
    old, new = job(1), job(2, submit=80.0)
    made.order([old], 1, 8, 20.0)
    assert [each.id for each in made.order([old, new], 1, 8, 100.0)] == ["2", "1"]  # 70 against 20
    assert [each.id for each in made.order([old, new], 1, 8, 320.0)] == ["1", "2"]  # 290 against 320


def test_the_state_is_saved():
    made = Multifactor(Weights(fair_share=1.0))
    made.started(job(1), 0.0)
    made.started(job(2, user="bob"), 0.0)
    made.ended(JobId("1"), 50.0)
    again = Multifactor(made.weights)
    again.load(json.loads(json.dumps(made.dump())))
    assert again.usage.at(70.0) == made.usage.at(70.0)
    assert math.isclose(sum(made.usage.at(70.0).values()), 120.0, rel_tol=1e-3)
