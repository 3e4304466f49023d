"""Slurm's rules on preemption, from recorded answers."""

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.partitions import rows_of
from slurm_asrpt.slurm.preemption import PreemptionDefaults, defaults_of, parse_qos, rules_of_partitions
from slurm_asrpt.slurm.records import JobRecord

RECORDED = Path(__file__).parents[2] / "recorded" / "22.05"
BY_QOS = PreemptionDefaults("qos", "REQUEUE", exempt_s=7.0, kill_s=2.0)
BY_PARTITION = PreemptionDefaults("partition_prio", "SUSPEND", kill_s=30.0)


def record(number=1, qos="normal", partition="gpu", start=0.0, **fields):
    fields = {"state": "RUNNING", "gpus_by_node": {"n1": 1}, **fields}
    base = JobRecord(str(number), "j", "u", 1, partition, reason="", submit_time=0.0, number=number, **fields)
    return replace(base, qos=qos, start_time=start)


def of_partitions(text, defaults):
    return rules_of_partitions(rows_of(text), defaults)


@pytest.fixture
def qos():
    return parse_qos((RECORDED / "qos_preempt.txt").read_text(), BY_QOS)


@pytest.fixture
def partitions():
    return of_partitions((RECORDED / "partitions_preempt.txt").read_text(), BY_PARTITION)


def test_a_qos_names_those_that_its_jobs_may_preempt(qos):
    normal, polite = record(), record(qos="polite")
    assert qos.preempts(normal) == {"scavenger", "polite"} == qos.preempted
    assert not qos.preempts(polite)
    assert qos.is_manageable(normal)
    assert (qos.kinds["scavenger"].mode, qos.kinds["polite"].mode) == ("REQUEUE", "CANCEL")
    assert (qos.kinds["scavenger"].exempt_s, qos.kinds["polite"].exempt_s) == (7.0, 300.0)
    assert qos.end_s(frozenset({"scavenger"})) == 2.0
    assert qos.end_s(frozenset({"scavenger", "polite"})) == 122.0


def test_victims_are_in_slurms_order_without_exempt_jobs(qos):
    jobs = [
        record(1, "scavenger", start=90.0),
        record(2, "scavenger", start=80.0),
        record(3, "polite", start=0.0),
        record(4, "scavenger", start=96.0),
        record(5, "normal"),
        record(6, "scavenger", state="PENDING"),
        record(7, "scavenger", gpus_by_node={"n1": 1, "n2": 1}),
        record(8, "polite", start=-900.0),
    ]
    assert [each.number for each in qos.victims(jobs, 100.0)] == [1, 2, 8, 7], "job 3 and 4 are exempt"
    youngest = replace(qos, defaults=replace(BY_QOS, youngest_first=True))
    assert [each.number for each in youngest.victims(jobs, 100.0)] == [1, 2, 7, 8]


def test_a_partition_preempts_those_of_lower_tiers(partitions):
    assert partitions.preempts(record(partition="gpu")) == {"low"}, "a partition with PreemptMode=OFF is safe"
    assert partitions.preempts(record(partition="high")) == {"gpu", "other", "low"}
    assert partitions.is_manageable(record(partition="gpu"))
    assert not partitions.is_manageable(record(partition="high")), "jobs of gpu would be suspended"
    assert not partitions.is_manageable(record(partition="gpu,high")), "the partitions differ"
    assert partitions.is_manageable(record(partition="low,never"))
    assert partitions.end_s(frozenset({"low"})) == 65.0


def test_a_site_without_preemption_has_no_rules():
    assert not parse_qos("normal|0||cluster|00:00:00|\n", BY_QOS).kinds
    assert not of_partitions("PartitionName=gpu PriorityTier=1 PreemptMode=REQUEUE\n", BY_PARTITION).kinds


def test_slurm_conf_says_how():
    config = {"PreemptType": "preempt/qos", "PreemptMode": "GANG,REQUEUE", "KillWait": "30 sec"}
    assert defaults_of(config) == PreemptionDefaults("qos", "REQUEUE", 0.0, 30.0)
    more = {"PreemptExemptTime": "1-00:01:00", "PreemptParameters": "reorder_count=2,youngest_first"}
    assert defaults_of(config | {"SchedulerParameters": "defer,preempt_youngest_first"}).youngest_first
    assert defaults_of(config | more) == PreemptionDefaults("qos", "REQUEUE", 86460.0, 30.0, True)
    assert defaults_of({"PreemptType": "preempt/partition_prio", "PreemptMode": "OFF"}).by == ""
    assert defaults_of({"PreemptType": "preempt/none"}) == PreemptionDefaults()


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_qos, "normal|scavenger\n"),
        (parse_qos, "normal|0||cluster|soon|\n"),
        (of_partitions, "PartitionName=gpu\n"),
    ],
)
def test_other_output_is_an_error(parse, text):
    with pytest.raises(SlurmError, match="cannot parse"):
        parse(text, BY_QOS)
