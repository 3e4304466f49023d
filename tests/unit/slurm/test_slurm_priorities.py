"""The priorities of a site as slurmctld prints them, and the standing of a job under them."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.priorities import Standing, ranked, weight_of
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.limits import parse_assoc_mgr
from slurm_asrpt.slurm.partitions import rows_of
from slurm_asrpt.slurm.priorities import (
    BOOST,
    BOOSTED,
    BOOSTED_PRIORITY,
    PartitionPriority,
    SitePriorities,
    Weights,
    parse_weights,
    site_priorities,
    standing,
    turn,
    turn_slack_s,
    with_single_flags,
)
from slurm_asrpt.slurm.records import JobRecord

RECORDED = Path(__file__).parents[2] / "recorded" / "22.05"
NOW = 1_000_000.0
LEVELS = st.sampled_from([-10_000, -1, 0, 1, 5_000, 100_000])
NICE = st.integers(-2, 2)
LIVE = st.integers(1, 300_000).map(float)


def read(name: str) -> str:
    return (RECORDED / f"priorities-{name}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site() -> SitePriorities:
    """QOS 100000, fair share and age 1000, size 100; QOS high; partition urgent of tier 10."""
    return site_priorities(
        parse.parse_config(read("config")), rows_of(read("partitions")), *parse_assoc_mgr(read("assoc_mgr"))
    )


def job(priority: int, **fields: object) -> JobRecord:
    record = JobRecord(
        job_id="7", name="train", user="asrpt1", uid=1001, partition="gpu", state="PENDING", reason="Priority",
        submit_time=NOW, account="lab", qos="normal", priority=priority,
    )  # fmt: skip
    return replace(record, **fields)  # type: ignore[arg-type]


def at(site: SitePriorities, record: JobRecord, factor: int | None = 0, first: int = 0, now: float = NOW) -> Standing:
    return standing(record, site, factor, first, now)


def weight(site: SitePriorities, record: JobRecord, now: float = NOW) -> float:
    return ranked([at(site, record, now=now)], 2100)[0][1]


def test_the_site_is_read(site):
    assert site.weights == Weights(age=1000, fair_share=1000, job_size=100, qos=100_000)
    assert site.partitions["urgent"] == PartitionPriority(10, 5.0)
    assert site.qos == {"normal": 0.0, "high": 1000.0}
    assert site.associations["lab", "asrpt2", ""] == (7.0, 1.0)


# recorded priorities: see slurm-notes.md


def test_the_parts_set_on_purpose_are_the_level_and_the_others_the_weight(site):
    usual, high = at(site, job(1025)), at(site, job(101_025, qos="high"))
    assert (usual.level, high.level) == (0, 100_000)
    assert usual.continuous == high.continuous == 1025
    assert (usual.why, high.why) == ("", "QOS high")
    nice = at(site, job(1, nice=10_000))
    assert (nice.level, nice.nice, nice.fixed, nice.why) == (0, 10_000, 0, "nice 10000")
    assert at(site, job(1075, nice=-50)).continuous == 1025
    assert at(site, job(1025 + BOOST, nice=-BOOST)).why == BOOSTED
    assert at(site, job(1018 + BOOST, nice=7 - BOOST)).why == f"{BOOSTED}, nice 7"
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
    assert weight(site, leased, NOW + week) == weight(site, leased, NOW + 9 * week) == weight_of(2025 / 2100)
    assert weight(site, job(1025), NOW + week) == weight_of(1025 / 2100)


AGED = Weights(age=1000, job_size=100, max_age_s=7 * 86400.0)
SUBMITTED = st.floats(0, 6 * 86400).map(lambda before: NOW - before)


@pytest.mark.parametrize("accrues", [False, True])
@given(jobs=st.lists(st.tuples(SUBMITTED, st.integers(0, 100)), min_size=2, max_size=2))
def test_turns_are_in_the_order_of_priorities_with_age(accrues, jobs):
    ages = [1000 * (NOW - submitted) / AGED.max_age_s for submitted, _ in jobs]
    priorities = [size + age for (_, size), age in zip(jobs, ages, strict=True)]
    shown = [math.floor(size + accrues * age) for (_, size), age in zip(jobs, ages, strict=True)]
    turns = [
        turn(Standing(live=live), AGED, since, since if accrues else 0.0, NOW)
        for live, (since, _) in zip(shown, jobs, strict=True)
    ]
    apart = priorities[0] - priorities[1]
    assert abs(apart) < 1e-6 or (turns[0] < turns[1]) is (apart > 0)


def test_turns_stay_the_same_while_nothing_changes():
    assert turn(Standing(live=50.0), AGED, NOW, 0.0, NOW) == turn(Standing(live=50.0), AGED, NOW, 0.0, NOW + 3600)
    rounded = [turn(Standing(live=50.0 + shown), AGED, NOW, NOW, NOW + 604.8) for shown in (0, 1)]
    assert abs(rounded[0] - rounded[1]) < turn_slack_s(AGED)
    assert turn_slack_s(Weights(job_size=100)) == turn_slack_s(None) == 0.0


def test_of_equal_priorities_the_older_job_is_first_though_slurm_counts_the_age_of_one_alone():
    older, younger = (turn(Standing(live=26.0), AGED, NOW + at, from_, NOW + 2) for at, from_ in ((0, NOW), (1, 0.0)))
    assert older < younger


def test_without_a_weight_of_age_the_priority_decides_and_with_priority_basic_the_submission():
    flat = Weights(job_size=100)
    assert turn(Standing(live=2.0), flat, NOW, 0.0, NOW) < turn(Standing(live=1.0), flat, NOW - 9 * 86400, 0.0, NOW)
    assert turn(Standing(live=1.0), flat, NOW, 0.0, NOW) < turn(Standing(live=1.0), flat, NOW + 1, 0.0, NOW)
    assert turn(Standing(live=9.0), None, NOW, 0.0, NOW) == NOW


@pytest.mark.parametrize(
    "accrues_from",
    [
        0.0,  # limits: Slurm counts nothing while the begin time is ahead
        0.1,  # no limits: it counts from the end of the first lease
        0.0001,  # ACCRUE_ALWAYS: from the submission
        0.7,  # the first lease is not over yet
    ],
)
def test_the_age_of_a_leased_job_is_counted_once(site, accrues_from):
    """In shares of PriorityMaxAge; the job has waited for half of it."""
    week = 7 * 86400.0
    submitted = job(1025).submit_time
    now, accrue_time = submitted + week / 2, submitted + accrues_from * week if accrues_from else 0.0
    counted = max(0.0, now - accrue_time) / week if accrue_time else 0.0
    leased = job(1025 + round(1000 * counted), eligible_time=now + 60, accrue_time=accrue_time)
    assert weight(site, leased, now) == pytest.approx(weight_of(1525 / 2100), rel=0.01)


def test_without_weights_there_is_no_weight_and_no_class():
    site = SitePriorities(Weights(), {"gpu": PartitionPriority()}, known=True)
    assert at(site, job(1)) == Standing(tier=1)
    assert at(site, job(1, nice=10_000)).nice == 10_000
    assert at(site, job(1000)).fixed == 1
    assert at(site, job(100, nice=-100)).fixed == 0


def test_with_priority_basic_an_admins_priority_differs_from_the_default():
    site = SitePriorities(None, {"gpu": PartitionPriority()}, known=True)
    first = 4_294_901_700
    assert at(site, job(first), first=first) == Standing(tier=1)
    assert [at(site, job(p), first=first).fixed for p in (first + 1, 4_294_966_000, first - 50, 100)] == [1, 1, 0, -1]
    assert at(site, job(first - 40, nice=40), first=first) == Standing(1, 0, 40, why="nice 40")
    assert at(site, job(BOOSTED_PRIORITY), first=first).why == BOOSTED


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
    assert (found.tres, found.raw, found.fair_tree) == (2100, {"qos"}, False)
    assert found.max_age_s == 129_630
    assert parse_weights({"PriorityType": "priority/basic"}) is None


@pytest.mark.parametrize(
    ("conf", "flags"),
    [
        ("PriorityFlags=ACCRUE_ALWAYS,NO_NORMAL_QOS\n", "ACCRUE_ALWAYS,NO_NORMAL_QOS"),
        ("  priorityflags = no_normal_qos,no_normal_tres  # two\n", "ACCRUE_ALWAYS,NO_NORMAL_QOS,NO_NORMAL_TRES"),
        ("PriorityFlags=NO_NORMAL_TRES\nPriorityFlags=NO_NORMAL_\\\nPART", "ACCRUE_ALWAYS,NO_NORMAL_PART"),
        ("PriorityFlags=NO_NORMAL_ALL\n", "ACCRUE_ALWAYS,NO_NORMAL_ALL"),
        ("# PriorityFlags=NO_NORMAL_QOS\nInclude more.conf\n", "ACCRUE_ALWAYS,NO_NORMAL_ALL"),
        ("PriorityFlags=MAX_TRES\n", "ACCRUE_ALWAYS,NO_NORMAL_ALL"),
        ("", "ACCRUE_ALWAYS,NO_NORMAL_ALL"),
    ],
)
def test_slurm_conf_tells_which_flags_slurm_shows_as_all_of_them(conf, flags):
    assert with_single_flags("ACCRUE_ALWAYS,NO_NORMAL_ALL", conf) == flags


def test_flags_that_slurm_shows_one_by_one_are_not_looked_up():
    assert with_single_flags("NO_NORMAL_QOS", "PriorityFlags=NO_NORMAL_TRES\n") == "NO_NORMAL_QOS"
    assert with_single_flags("", "PriorityFlags=NO_NORMAL_TRES\n") == ""


# classes


def classes(jobs: list[Standing], largest: float = 2100) -> list[int]:
    return [number for number, _ in ranked(jobs, largest)]


def test_a_priority_set_by_an_admin_passes_those_that_are_lower():
    high, usual = Standing(level=100_000, live=101_000), Standing(live=1025)
    between, above = Standing(live=50_000, fixed=1), Standing(live=101_100, fixed=1)
    below = Standing(live=500, fixed=-1)
    assert classes([usual, high, between, above, below]) == [3, 1, 2, 0, 4]
    assert classes([usual, usual]) == [0, 0]
    assert classes([Standing(tier=10), high]) == [0, 1]
    assert classes([]) == []


def test_what_the_continuous_priorities_can_make_up_for_is_no_class():
    """A QOS with a part of 100 does not always go first under Slurm, if fair share and age add up to 2,100."""
    high, usual, low = Standing(level=100, continuous=100), Standing(continuous=200), Standing(level=-2500)
    assert classes([high, usual, low]) == [0, 0, 1]
    (_, one), (_, other), _ = ranked([high, usual, low], 2100)
    assert one == other
    assert classes([high, usual, low], 0) == [0, 1, 2]


def test_nice_values_order_jobs_whatever_the_weights_are():
    high, usual = Standing(level=100_000), Standing()
    nice, very_nice = Standing(level=100_000, nice=1), Standing(level=100_000, nice=200_000)
    top = Standing(nice=-5)
    assert classes([high, usual, nice, very_nice, top]) == [0, 3, 1, 4, 2]


@given(
    st.lists(st.builds(Standing, st.integers(1, 3), LEVELS, st.just(0), st.just(0.0), LIVE), min_size=1),
    st.sampled_from([0.0, 2100.0, 1e6]),
)
def test_classes_and_weights_follow_tier_and_level(jobs, largest):
    found = ranked(jobs, largest)
    assert {number for number, _ in found} == set(range(max(number for number, _ in found) + 1))
    for (one, (first, heavy)), (other, (second, light)) in product(zip(jobs, found, strict=True), repeat=2):
        if one.tier > other.tier or (one.tier == other.tier and one.level > other.level + largest):
            assert first <= second
        if one.tier > other.tier or (one.tier == other.tier and not largest and one.level > other.level):
            assert first < second
        if one.tier == other.tier and one.level > other.level:
            assert first < second or heavy >= light


@given(
    st.lists(st.builds(Standing, st.just(1), LEVELS, NICE, st.just(0.0), LIVE), max_size=8),
    st.builds(Standing, st.just(1), LEVELS, NICE, st.just(0.0), LIVE, st.sampled_from([-1, 1])),
    st.sampled_from([0.0, 2100.0, 1e6]),
)
def test_an_admin_moves_a_job_from_its_own_class_in_the_right_direction(others, fixed, largest):
    numbers = classes([*others, fixed], largest)
    same = [
        number
        for number, other in zip(numbers, others, strict=False)
        if (other.level, other.nice) == (fixed.level, fixed.nice)
    ]
    assert all((number > numbers[-1]) == (fixed.fixed > 0) for number in same)


@given(st.floats(0, 1), st.floats(0, 1))
def test_weights_grow_with_the_share(one, other):
    assert 1 <= weight_of(min(one, other)) <= weight_of(max(one, other)) <= 2**20
    assert weight_of(0) == 1


def test_what_a_level_is_above_the_base_of_its_class_counts_as_weight():
    """Levels 1,000 and 1,500 are one class, for the continuous priorities can make up for 500."""
    low, high, other = Standing(level=1000), Standing(level=1500, continuous=100), Standing(level=9000)
    found = ranked([low, high, other], 1000.0)
    assert found == [(1, weight_of(0.0)), (1, weight_of(0.6)), (0, weight_of(0.0))]
