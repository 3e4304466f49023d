"""Limits of QOS, associations and licenses: as slurmctld prints them, and what a job counts against them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.limits import (
    Association,
    LimitBook,
    Qos,
    SiteLimits,
    Use,
    charges_by_name,
    default_account,
    parse_assoc_mgr,
    parse_licenses,
    qos_before_partitions,
    qos_of_partitions,
    use_of,
)
from slurm_asrpt.slurm.partitions import rows_of
from slurm_asrpt.slurm.records import JobRecord
from tests.benches.fake_slurm import node

RECORDED = Path(__file__).parents[2] / "recorded"
USE = Use("asrpt2", "lab", "normal", "gpu", {"gres/gpu": 4.0, "cpu": 4.0, "node": 1.0}, 60.0)


@pytest.fixture(scope="module")
def answer():
    return (RECORDED / "22.05" / "assoc_mgr.txt").read_text()


def test_a_qos_has_its_limits_by_level(answer):
    qos, _ = parse_assoc_mgr(answer)
    normal = qos["normal"]
    assert normal.group["GrpTRES=gres/gpu"] == 30
    assert normal.group["GrpJobs"] == 77
    assert normal.user == {"MaxJobsPU": 5, "MaxTRESPU=cpu": 100, "MaxTRESPU=node": 4, "MaxTRESPU=gres/gpu": 8}
    assert normal.account == {"MaxJobsPA": 7, "MaxTRESPA=gres/gpu": 20}
    assert normal.job["MaxTRESPJ=gres/gpu"] == 16
    assert qos["high"] == Qos("high", priority=100.0)


def test_used_minutes_are_subtracted(answer):
    qos, _ = parse_assoc_mgr(answer)
    assert 99_990 < qos["normal"].group["GrpTRESMins=gres/gpu"] < 100_000


def test_associations_know_their_account_and_its_parent(answer):
    _, associations = parse_assoc_mgr(answer)
    assert associations["lab", "", ""].group == {"GrpJobs": 9, "GrpTRES=gres/gpu": 12}
    assert associations["sub", "", ""].parent == "lab"
    assert associations["lab", "asrpt1", ""].job["MaxTRESPJ=gres/gpu"] == 2
    assert associations["lab", "asrpt3", ""].job == {"MaxJobs": 6}


def test_what_is_no_answer_is_refused():
    with pytest.raises(SlurmError, match="assoc_mgr"):
        parse_assoc_mgr("QOS=normal(1) GrpJobs=many(3)")
    assert parse_assoc_mgr("No QOS currently cached in Slurm.") == ({}, {})


def test_running_minutes_of_a_user_and_an_account_are_limits_of_later_releases():
    line = (  # 24.11.5, shortened
        "QOS=mins(3) GrpJobs=N(2) Priority=0"
        " Account Limits= lab={MaxTRESPA=gres/gpu=N(2) MaxTRESRunMinsPA=cpu=N(50),gres/gpu=90(50)}"
        " User Limits= asrpt1(999)={MaxTRESPU=gres/gpu=N(2) MaxTRESRunMinsPU=cpu=N(50),gres/gpu=60(50)}"
    )
    qos, _ = parse_assoc_mgr(line)
    assert book(qos=qos).charges(replace(USE, qos="mins")) == (
        ("MaxTRESRunMinsPU=gres/gpu of QOS mins, user asrpt2", 240.0),
        ("MaxTRESRunMinsPA=gres/gpu of QOS mins, account lab", 240.0),
    )


def test_the_comment_of_an_association_is_no_limit():
    line = "ClusterName=lab Account=lab UserName=ann(9) MaxJobs=4(0) MinPrioThresh= Comment=raised MaxJobs=many in May"
    _, associations = parse_assoc_mgr(line)  # 24.11.5, shortened
    assert associations["lab", "ann", ""].job == {"MaxJobs": 4}


def test_partitions_and_licenses():
    text = "PartitionName=gpu AllowGroups=ALL QoS=part_gpu X=1\nPartitionName=other Default=NO QoS=N/A Y=2\n"
    assert qos_of_partitions(rows_of(text)) == {"gpu": "part_gpu"}
    assert parse_licenses("LicenseName=matlab Total=4 Used=1 Free=3 Reserved=0 Remote=no\n") == {"matlab": 4}


def test_enforcement_is_read_from_the_configuration():
    assert parse.enforces_limits({"AccountingStorageEnforce": "associations,limits,qos"})
    assert not parse.enforces_limits({"AccountingStorageEnforce": "associations"})
    assert not parse.enforces_limits({})


# what a job counts


def book(**limits):
    return LimitBook(SiteLimits(**limits))


def test_a_user_limit_of_a_qos_counts_per_user():
    ours = book(qos={"normal": Qos("normal", user={"MaxTRESPU=gres/gpu": 8.0})})
    assert ours.charges(USE) == (("MaxTRESPU=gres/gpu of QOS normal, user asrpt2", 4.0),)
    assert ours.caps == {"MaxTRESPU=gres/gpu of QOS normal, user asrpt2": 8.0}
    other = ours.charges(replace(USE, user="asrpt3"))
    assert other[0][0] != ours.charges(USE)[0][0]


def test_a_limit_of_the_partition_qos_takes_precedence():
    levels = {name: Qos(name, group={"GrpTRES=gres/gpu": cap}) for name, cap in (("normal", 8.0), ("part", 4.0))}
    ours = book(qos=levels, partition_qos={"gpu": "part"})
    assert ours.charges(USE) == (("GrpTRES=gres/gpu of QOS part", 4.0),)


def test_a_qos_with_overpartqos_takes_precedence_over_that_of_the_partition():
    part = Qos("part", group={"GrpTRES=gres/gpu": 4.0}, user={"MaxJobsPU": 1.0})
    levels = {"normal": Qos("normal", group={"GrpTRES=gres/gpu": 8.0}), "part": part}
    flags = "part|\nnormal|DenyOnLimit,OverPartQOS\nhigh|OverPartQOS|1\nPartitionName=a|OverPartQOS x\n"
    first = qos_before_partitions(flags)
    ours = book(qos=levels, partition_qos={"gpu": "part"}, first_qos=first)
    assert first == {"normal"}
    assert ours.charges(USE) == (
        ("GrpTRES=gres/gpu of QOS normal", 4.0),
        ("MaxJobsPU of QOS part, user asrpt2", 1.0),
    )


def test_a_limit_of_the_qos_hides_that_of_the_association_and_its_accounts():
    users = {
        ("lab", "asrpt2", ""): Association("lab", "asrpt2", job={"MaxJobs": 3.0}),
        ("lab", "", ""): Association("lab", "", parent="root", group={"GrpTRES=gres/gpu": 12.0, "GrpJobs": 5.0}),
    }
    plain = book(associations=users)
    assert dict(plain.charges(USE)) == {
        "MaxJobs of user asrpt2 in account lab": 1.0,
        "GrpTRES=gres/gpu of account lab": 4.0,
        "GrpJobs of account lab": 1.0,
    }
    qos = Qos("normal", group={"GrpTRES=gres/gpu": 100.0}, user={"MaxJobsPU": 9.0})
    hidden = book(qos={"normal": qos}, associations=users)
    assert dict(hidden.charges(USE)) == {
        "GrpTRES=gres/gpu of QOS normal": 4.0,
        "MaxJobsPU of QOS normal, user asrpt2": 1.0,
        "GrpJobs of account lab": 1.0,
    }


def test_groups_hold_all_the_way_up_the_accounts():
    tree = {
        ("sub", "asrpt2", ""): Association("sub", "asrpt2"),
        ("sub", "", ""): Association("sub", "", parent="lab", group={"GrpTRES=gres/gpu": 5.0}),
        ("lab", "", ""): Association("lab", "", parent="root", group={"GrpTRES=gres/gpu": 12.0}),
        ("root", "", ""): Association("root", ""),
    }
    found = dict(book(associations=tree).charges(replace(USE, account="sub")))
    assert found == {"GrpTRES=gres/gpu of account sub": 4.0, "GrpTRES=gres/gpu of account lab": 4.0}


def test_a_job_beyond_a_limit_on_each_job_may_never_start():
    ours = book(qos={"normal": Qos("normal", job={"MaxTRESPJ=gres/gpu": 2.0, "MaxWallPJ": 100.0})})
    assert ours.charges(USE) == (("MaxTRESPJ=gres/gpu of QOS normal", math.inf),)
    assert ours.charges(replace(USE, minutes=101.0))[1] == ("MaxWallPJ of QOS normal", math.inf)


def test_a_job_with_fewer_gpus_than_its_qos_asks_for_may_never_start():
    line = "QOS=wide(7) GrpJobs=N(0) MaxWallPJ= MaxTRESPJ= MinTRESPJ=cpu=8,gres/gpu=2 Preempt="
    ours = book(qos=parse_assoc_mgr(line)[0])
    one = replace(USE, qos="wide", tres={"gres/gpu": 1.0, "cpu": 1.0, "node": 1.0})
    least = (("MinTRESPJ=gres/gpu of QOS wide", math.inf),)
    assert ours.charges(one) == ours.charges(replace(one, tres={"cpu": 8.0, "node": 1.0})) == least
    assert ours.amount_of(least[0][0], one) == 1.0
    enough = replace(one, tres={"gres/gpu": 2.0, "cpu": 1.0, "node": 1.0})
    assert ours.charges(enough) == ()  # with whole cores, Slurm may count more CPUs
    assert ours.charges(replace(one, whole_nodes=True)) == ()  # it gets all GPUs of its nodes


def test_running_minutes_need_a_time_limit_and_resources_that_are_not_used_count_nothing():
    ours = book(qos={"normal": Qos("normal", group={"GrpTRESRunMins=gres/gpu": 1000.0, "GrpTRES=license/x": 3.0})})
    assert ours.charges(USE) == (("GrpTRESRunMins=gres/gpu of QOS normal", 240.0),)
    assert ours.charges(replace(USE, minutes=0.0)) == ()


@pytest.mark.parametrize(("safe", "counts"), [(True, (240.0, 60.0)), (False, (0.0, 0.0))])
def test_minutes_that_are_left_must_suffice_for_the_time_limit_where_the_site_is_safe(safe, counts):
    caps = {"GrpTRESMins=gres/gpu": 300.0, "GrpWall": 90.0, "GrpTRESMins=gres/mps": 1.0}
    ours = book(qos={"normal": Qos("normal", group=caps)}, safe=safe)
    names = ("GrpTRESMins=gres/gpu of QOS normal", "GrpWall of QOS normal")
    assert ours.charges(USE) == tuple(zip(names, counts, strict=True))
    assert [ours.amount_of(name, USE) for name in names] == list(counts)


@pytest.mark.parametrize(
    ("name", "safe", "period_s", "shrinks"),
    [
        *(("GrpTRESRunMins=cpu", False, 300.0, True), ("GrpTRESRunMins=cpu", True, math.inf, False)),
        *(("GrpTRESMins=cpu", True, 300.0, True), ("GrpTRESMins=cpu", False, 300.0, False)),
        *(("GrpWall", True, 300.0, True), ("GrpTRES=cpu", True, 300.0, False)),
        ("MaxTRESRunMinsPU=cpu", False, 300.0, True),
    ],
)
def test_which_limits_running_jobs_count_less_against_the_longer_they_run(name, safe, period_s, shrinks):
    account = Association("lab", "", group={name: 9.0})
    assert SiteLimits(associations={("lab", "", ""): account}, safe=safe, period_s=period_s).of_minutes is shrinks


def test_licenses_count_where_they_are_known():
    ours = book(licenses={"matlab": 4.0})
    assert ours.charges(replace(USE, licenses={"matlab": 2.0})) == (("license matlab", 2.0),)
    assert ours.caps == {"license matlab": 4.0}
    assert ours.charges(replace(USE, licenses={"remote@server": 2.0})) == ()


RECORD = JobRecord("7", "train", "asrpt2", 1002, "gpu,other", "PENDING", "None", 0.0, time_limit=3600.0)


def test_slurms_own_count_of_a_job_is_used_where_there_is_one():
    counted = replace(RECORD, account="lab", qos="normal", tres="cpu=8,mem=2G,node=2,billing=12,gres/gpu:h100=4")
    use = use_of(counted, 4)
    assert (use.partition, use.minutes) == ("gpu", 60.0)
    assert use.tres == {
        "cpu": 8.0,
        "mem": 2048.0,
        "node": 2.0,
        "billing": 12.0,
        "gres/gpu": 4.0,
        "gres/gpu:h100": 4.0,
    }


@pytest.mark.parametrize(
    ("nodes", "gpus", "asks", "counted"),
    [
        (["big"], 0, {"node": 1}, {"cpu": 64, "gres/gpu": 8, "gres/gpu:h100": 8}),
        (["big"], 12, {"node": 1}, {"cpu": 128, "gres/gpu": 16, "gres/gpu:h100": 16}),
        (["big"], 2, {"node": 3, "cpu": 200}, {"cpu": 200, "gres/gpu": 24, "gres/gpu:h100": 24}),
        (["big", "small"], 1, {"node": 1}, {"cpu": 32, "gres/gpu": 4, "gres/gpu:h100": 0}),
        (["big", "none"], 1, {"node": 1}, {"cpu": 64, "gres/gpu": 8, "gres/gpu:h100": 8}),
        (["big", "none"], 0, {"node": 1}, {"cpu": 16, "gres/gpu": 0, "gres/gpu:h100": 0}),
        ([], 1, {"node": 1}, {}),
    ],
)
def test_a_waiting_exclusive_job_counts_with_all_of_the_smallest_nodes_that_it_may_get(nodes, gpus, asks, counted):
    known = {
        "big": replace(node("n0", 0, 8), gpu_type="h100"),
        "small": replace(node("n1", 1, 4), cpus=32),
        "none": replace(node("n2", 2, 0), cpus=16),
    }
    asked = {"cpu": 1.0, "gres/gpu": float(gpus), "mem": 64.0, **asks}
    tres = ",".join(f"{name}={value:g}" for name, value in asked.items() if name != "mem") + ",mem=64M"
    waiting = replace(RECORD, exclusive="node", tres=tres)
    some = [known[name] for name in nodes]
    assert _without_zeros(use_of(waiting, gpus, nodes=some).tres) == _without_zeros({**asked, **counted})
    assert use_of(replace(waiting, state="RUNNING"), gpus, nodes=some).tres == asked
    assert use_of(replace(waiting, exclusive=""), gpus, nodes=some).tres == asked


def _without_zeros(tres):
    return {name: value for name, value in tres.items() if value}


@pytest.mark.parametrize("text", ["", "a|b", "(("])
def test_odd_licenses_are_left_to_slurm(text):
    assert use_of(replace(RECORD, licenses=text), 1).licenses == {}


@pytest.mark.parametrize(
    ("named", "limits", "counts"),
    [
        ({}, ["MaxTRESPU=gres/gpu of QOS normal, user ann"], {"MaxTRESPU=gres/gpu of QOS normal, user ann": 4.0}),
        ({}, ["MaxJobsPU of QOS normal, user ann"], {"MaxJobsPU of QOS normal, user ann": 1.0}),
        ({}, ["MaxTRESPU=gres/gpu of QOS normal, user anna", "GrpTRES=gres/gpu of QOS normal"], {}),
        (
            {},
            ["GrpTRES=gres/gpu of user ann in account lab", "GrpTRES=gres/gpu of account lab"],
            {"GrpTRES=gres/gpu of user ann in account lab": 4.0},
        ),
        ({}, [f"MaxJobs of user ann in account {name}" for name in ("lab", "ml")], {}),  # which one it will be is open
        (
            {"account": "lab"},
            ["MaxJobs of user ann in account lab", "MaxJobs of user ann in account ml", "GrpJobs of account lab"],
            {"MaxJobs of user ann in account lab": 1.0, "GrpJobs of account lab": 1.0},
        ),
        (
            {"qos": "long"},
            ["MaxJobsPU of QOS normal, user ann", "GrpTRES=gres/gpu of QOS long"],
            {"GrpTRES=gres/gpu of QOS long": 4.0},
        ),
        ({}, ["license matlab", "PartitionTimeLimit (jobs in partition short)"], {}),
    ],
)
def test_a_job_to_be_submitted_counts_for_the_limits_that_surely_hold_for_it(named, limits, counts) -> None:
    use = Use("ann", named.get("account", ""), named.get("qos", ""), "gpu", {"gres/gpu": 4.0, "node": 1.0})
    assert dict(charges_by_name(use, limits)) == counts


def test_the_default_account_of_a_user() -> None:
    text = (
        "Current Association Manager state\nUser Records\n"
        "UserName=ann(1001) DefAccount=physics DefWckey= AdminLevel=None\n"
        "UserName=ann2(1002) DefAccount= DefWckey= AdminLevel=None\n"
    )
    assert [default_account(text, user) for user in ("ann", "ann2", "bob")] == ["physics", "", ""]
