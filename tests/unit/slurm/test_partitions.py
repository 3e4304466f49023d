"""What partitions let start."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.partitions import (
    Names,
    Partition,
    is_closed,
    partitions_of,
    rejected_by,
    rows_of,
    within_partitions,
)
from slurm_asrpt.slurm.records import JobRecord

RECORDED = Path(__file__).parents[2] / "recorded"
LINE = (
    "PartitionName=short AllowGroups=ALL AllowAccounts=lab,ml DenyQos=low,scavenger QoS=limited MaxNodes=2 "
    "MaxTime=1-00:05:00 MinNodes=1 Nodes=n[1-2] State=DOWN TotalCPUs=16 MaxCPUsPerNode=12\n"
)
JOB = JobRecord(*("1", "train", "ann", 1001, "short,long", "PENDING", "None", 0.0), account="lab", qos="normal")


def test_a_partition_is_read() -> None:
    assert partitions_of(rows_of(LINE)) == {
        "short": Partition(
            up=False,
            takes=True,
            max_time=86700.0,
            min_nodes=1,
            max_nodes=2.0,
            max_cpus=12.0,
            accounts=Names(frozenset({"lab", "ml"})),
            qos=Names(None, frozenset({"low", "scavenger"})),
            has_qos=True,
        )
    }


@pytest.mark.parametrize(
    ("state", "up", "takes"),
    [("UP", True, True), ("DRAIN", True, False), ("DOWN", False, True), ("INACTIVE", False, False)],
)
def test_a_partition_that_drains_starts_the_jobs_that_wait_and_takes_no_others(
    state: str, up: bool, takes: bool
) -> None:
    found = partitions_of(rows_of(LINE.replace("DOWN", state)))["short"]
    assert (found.up, found.takes) == (up, takes)


@pytest.mark.parametrize(
    ("short", "groups", "why"),
    [
        ({}, {"staff"}, ""),
        ({"takes": False}, {"staff"}, "partition short takes no jobs now (its state is DRAIN or INACTIVE)"),
        ({"groups": frozenset({"lab", "staff"})}, {"staff"}, ""),
        ({"groups": frozenset({"lab"})}, {"staff"}, "partition short takes jobs of other groups only (AllowGroups)"),
        ({"groups": frozenset({"lab"})}, None, ""),
    ],
)
def test_a_partition_that_takes_no_such_job_is_named(
    short: dict[str, object], groups: set[str] | None, why: str
) -> None:
    job, known = replace(JOB, partition="short"), {"short": Partition(**short), "long": Partition()}  # type: ignore[arg-type]
    assert rejected_by(job, known, groups) == why
    assert rejected_by(JOB, known, groups) == ""  # the other one takes it
    assert rejected_by(job, {}, groups) == ""


def test_the_groups_of_a_partition_are_read() -> None:
    line = LINE.replace("AllowGroups=ALL", "AllowGroups=lab,staff")
    assert partitions_of(rows_of(line))["short"].groups == frozenset({"lab", "staff"})


def test_a_job_waits_while_no_partition_of_it_starts_jobs() -> None:
    down, up = Partition(up=False), Partition()
    assert is_closed(JOB, {"short": down, "long": down})
    assert not is_closed(JOB, {"short": down, "long": up})
    assert not is_closed(JOB, {"short": down})  # nothing is known of the other one


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_recorded_partitions_have_no_limits(release: str) -> None:
    text = (RECORDED / release / "site-partitions.txt").read_text(encoding="utf-8")
    found = partitions_of(rows_of(text))
    assert {"gpu", "other"} <= found.keys()
    assert found["other"] == Partition()


def test_what_cannot_be_read_is_an_error() -> None:
    with pytest.raises(SlurmError):
        partitions_of(rows_of("PartitionName=gpu MaxTime=1:2:3:4"))


@pytest.mark.parametrize(
    ("short", "left"),
    [
        ({}, "short,long"),
        ({"up": False}, "long"),
        ({"max_time": 300.0}, "long"),
        ({"max_time": 600.0}, "short,long"),
        ({"max_nodes": 1}, "long"),
        ({"min_nodes": 5}, "long"),
        ({"accounts": Names(frozenset({"ml"}))}, "long"),
        ({"accounts": Names(None, frozenset({"lab"}))}, "long"),
        ({"qos": Names(frozenset({"vip"}))}, "long"),
        ({"qos": Names(None, frozenset({"normal"}))}, "long"),
        ({"has_qos": True}, "long,short"),
    ],
)
def test_a_job_is_planned_in_the_partitions_that_would_start_it(short: dict[str, object], left: str) -> None:
    job = replace(JOB, time_limit=600.0, min_nodes=2, max_nodes=4)
    known = [("short", Partition(**short)), ("long", Partition())]  # type: ignore[arg-type]
    assert within_partitions(job, known).partition == left


def test_a_job_without_a_time_limit_fits_only_where_there_is_none() -> None:
    known = [("short", Partition(max_time=300.0)), ("long", Partition())]
    assert within_partitions(replace(JOB, time_limit=0.0), known).partition == "long"


def test_if_no_partition_would_start_it_the_job_stays_as_it_is() -> None:
    assert within_partitions(JOB, [("short", Partition(up=False)), ("long", Partition(up=False))]) is JOB


def test_a_job_gets_as_many_nodes_as_its_partitions_ask_for() -> None:
    assert within_partitions(replace(JOB, partition="wide"), [("wide", Partition(min_nodes=2))]).min_nodes == 2
    assert math.isinf(Partition().max_nodes)
