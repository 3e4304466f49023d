"""The priorities of a site as slurmctld prints them, and the standing of a job under them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.priorities import Standing, ranked, weight_of
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.priorities import (
    PartitionPriority,
    SitePriorities,
    Weights,
    parse_weights,
    site_priorities,
    standing,
)
from slurm_asrpt.slurm.records import JobRecord

RECORDED = Path(__file__).parents[2] / "recorded" / "22.05"
NOW = 1_000_000.0
LEVELS = st.sampled_from([-10_000, -1, 0, 1, 5_000, 100_000])


def read(name: str) -> str:
    return (RECORDED / f"priorities-{name}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site() -> SitePriorities:
    """QOS 100000, fair share and age 1000, size 100; QOS high; partition urgent of tier 10."""
    return site_priorities(parse.parse_config(read("config")), read("partitions"), read("assoc_mgr"))


def job(priority: int, **fields: object) -> JobRecord:
    record = JobRecord(
        job_id="7", name="train", user="asrpt1", uid=1001, partition="gpu", state="PENDING", reason="Priority",
        submit_time=NOW, account="lab", qos="normal", priority=priority,
    )  # fmt: skip
    return replace(record, **fields)  # type: ignore[arg-type]


def at(site: SitePriorities, record: JobRecord, factor: int | None = 0, first: int = 0, now: float = NOW) -> Standing:
    return standing(record, site, factor, first, now)


def test_the_site_is_read(site):
    assert site.weights == Weights(age=1000, fair_share=1000, job_size=100, qos=100_000)
    assert site.partitions["urgent"] == PartitionPriority(10, 5.0)
    assert site.qos == {"normal": 0.0, "high": 1000.0}
    assert site.associations["lab", "asrpt2", ""] == (7.0, 1.0)


# recorded priorities: see slurm-notes.md


def test_the_parts_set_on_purpose_are_the_level_and_the_others_the_weight(site):
    usual, high = at(site, job(1025)), at(site, job(101_025, qos="high"))
    assert (usual.level, high.level) == (0, 100_000)
    assert usual.weight == high.weight == weight_of(1025 / 2100)
    assert (usual.why, high.why) == ("", "QOS high")
    nice = at(site, job(1, nice=10_000))
    assert (nice.level, nice.fixed, nice.why) == (-10_000, 0, "nice 10000")
    assert at(site, job(1075, nice=-50)).level == 50
    urgent = at(site, job(1025, partition="gpu,urgent"))
    assert (urgent.tier, urgent.level, urgent.why) == (10, 0, "partition gpu,urgent")


@pytest.mark.parametrize(("priority", "fixed"), [(1025, 0), (1900, 0), (5000, 1), (6000, 1), (500, -1), (1, -1)])
def test_a_priority_that_the_rules_do_not_give_is_an_admins(site, priority, fixed):
    found = at(site, job(priority))
    assert found.fixed == fixed
    assert bool(fixed) == (found.why == f"priority {priority} set by an admin")


def test_a_site_factor_of_asrptd_is_taken_off(site):
    factor = 999_998_975
    placed = at(site, job(1025 + factor), factor)
    assert placed == at(site, job(1025))
    fixed = at(site, job(5000), factor)
    assert (fixed.fixed, fixed.live) == (1, 5000.0)
    assert at(site, job(5000), None).fixed == 0, "the factor is being written"


def test_leased_jobs_age_although_slurm_does_not_count_it(site):
    week = 7 * 86400.0
    leased = job(1025, eligible_time=NOW + 9 * week + 60)
    assert at(site, leased, now=NOW + week).weight == weight_of(2025 / 2100)
    assert at(site, leased, now=NOW + 9 * week).weight == weight_of(2025 / 2100)
    assert at(site, job(1025), now=NOW + week).weight == weight_of(1025 / 2100)


def test_without_weights_there_is_no_weight_and_no_class():
    site = SitePriorities(Weights(), {"gpu": PartitionPriority()}, known=True)
    assert at(site, job(1)) == Standing(tier=1)
    assert at(site, job(1, nice=10_000)).level == -10_000
    assert at(site, job(1000)).fixed == 1
    assert at(site, job(100, nice=-100)).fixed == 0


def test_with_priority_basic_an_admins_priority_differs_from_the_default():
    site = SitePriorities(None, {"gpu": PartitionPriority()}, known=True)
    first = 4_294_901_700
    assert at(site, job(first), first=first) == Standing(tier=1)
    assert [at(site, job(p), first=first).fixed for p in (first + 1, 4_294_966_000, first - 50, 100)] == [1, 1, 0, -1]
    assert at(site, job(first - 40, nice=40), first=first).level == -40


@pytest.mark.parametrize(
    "text", ["PriorityWeightAge = many", "PriorityWeightTRES = gres/gpu=x", "PriorityMaxAge = 1-2"]
)
def test_what_is_no_number_is_refused(text):
    with pytest.raises(SlurmError, match="priorities"):
        parse_weights({"PriorityType": "priority/multifactor", **parse.parse_config(text)})


def test_flags_and_tres_are_read():
    config = {
        "PriorityType": "priority/multifactor",
        "PriorityWeightTRES": "cpu=100,gres/gpu=2000",
        "PriorityFlags": "ACCRUE_ALWAYS,NO_NORMAL_QOS,NO_FAIR_TREE",
        "PriorityMaxAge": "1-12:00:30",
    }
    found = parse_weights(config)
    assert found is not None
    assert (found.tres, found.accrues, found.raw, found.fair_tree) == (2100, True, {"qos"}, False)
    assert found.max_age_s == 129_630
    assert parse_weights({"PriorityType": "priority/basic"}) is None


# classes


def test_a_priority_set_by_an_admin_passes_those_that_are_lower():
    high, usual = Standing(level=100_000, live=101_000), Standing(live=1025)
    between, above = Standing(live=50_000, fixed=1), Standing(live=101_100, fixed=1)
    below = Standing(live=500, fixed=-1)
    assert ranked([usual, high, between, above, below]) == [3, 1, 2, 0, 4]
    assert ranked([usual, usual]) == [0, 0]
    assert ranked([Standing(tier=10), high]) == [0, 1]
    assert ranked([]) == []


@given(st.lists(st.builds(Standing, st.integers(1, 3), LEVELS, st.integers(0, 200_000).map(float)), min_size=1))
def test_classes_follow_tier_and_level(jobs):
    numbers = ranked(jobs)
    assert set(numbers) == set(range(max(numbers) + 1))
    order = sorted(range(len(jobs)), key=numbers.__getitem__)
    found = [(jobs[at].tier, jobs[at].level) for at in order]
    assert found == sorted(found, reverse=True)


@given(
    st.lists(st.builds(Standing, st.just(1), LEVELS, st.integers(1, 200_000).map(float)), max_size=8),
    st.builds(Standing, st.just(1), LEVELS, st.integers(1, 300_000).map(float), st.sampled_from([-1, 1])),
)
def test_an_admin_moves_a_job_from_its_own_class_in_the_right_direction(others, fixed):
    numbers = ranked([*others, fixed])
    same = [number for number, other in zip(numbers, others, strict=False) if other.level == fixed.level]
    assert all((number > numbers[-1]) == (fixed.fixed > 0) for number in same)


@given(st.floats(0, 1), st.floats(0, 1))
def test_weights_grow_with_the_share(one, other):
    assert 1 <= weight_of(min(one, other)) <= weight_of(max(one, other)) <= 2**20
    assert weight_of(0) == 1
