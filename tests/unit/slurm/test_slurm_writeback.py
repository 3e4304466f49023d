"""The updates written to Slurm, as values."""

from dataclasses import replace

import pytest

from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.records import JobRecord, Update
from slurm_asrpt.slurm.writeback import Original

OLD = SlurmConfig("22.05.8", "c", multifactor=False, memory_consumed=True)
NEW = SlurmConfig("24.11.5", "c", multifactor=False, memory_consumed=True)
MULTIFACTOR = SlurmConfig("22.05.8", "c", multifactor=True, memory_consumed=True)
JOB = JobRecord(
    "7", "n", "u", 1, "gpu", "PENDING", "None", 0.0, min_nodes=1, max_nodes=0, tasks=6, cpus=12, priority=55
)


def test_a_pin_sets_matching_node_list_and_count():
    fields = writeback.pin("7", {"n1": 4, "n2": 1, "n10": 1}, multifactor=False).fields
    assert fields["NumNodes"] == "3-3"
    assert fields["ReqNodeList"] == "n[1-2,10]"
    assert fields["StartTime"] == "now"
    assert int(fields["Priority"]) < 2**32 - 2  # the next ones mean "none" and "infinite"


def test_with_multifactor_a_pin_sets_only_the_site_factor():
    fields = writeback.pin("7", {"n1": 4}, multifactor=True).fields
    assert "Priority" not in fields
    assert 0 < int(fields["SiteFactor"]) < 2**31


BY_GPU = replace(JOB, tres_per_job="gres:gpu:4", tasks_per_gpu=2, cpus_per_task=2, tasks=8, cpus=16)


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({}, {"NumTasks": "8", "NumCPUs": "16"}),
        ({"tasks": 2, "cpus": 2}, {"NumTasks": "8", "NumCPUs": "16"}),  # after an update of its owner's (24.11)
        ({"cpus": 40}, {"NumTasks": "8", "NumCPUs": "40"}),  # --cpus-per-gpu=10
        ({"tres_per_job": "", "tres": "cpu=8"}, {"NumTasks": "8", "NumCPUs": "16"}),  # its GPUs show nowhere
        ({"tasks_per_gpu": 0}, {}),
        ({"state": "RUNNING"}, {}),
    ],
)
def test_updates_repeat_the_tasks_of_a_job_that_counts_them_by_gpu(fields, lost):
    """Else Slurm would start it with the tasks and CPUs of one GPU (24.05 and later)."""
    assert writeback.lost_by_updates(replace(BY_GPU, **fields)) == lost


def test_both_updates_repeat_what_they_do_not_set():
    lost = {"NumTasks": "8", "NumCPUs": "16"}
    update = Update("7", {"NumNodes": "1-1"}, {"NumCPUs": "20", "StartTime": "now"})
    found = writeback.repeating(update, lost)
    assert found == Update("7", {**lost, "NumNodes": "1-1"}, {"NumTasks": "8", "NumCPUs": "20", "StartTime": "now"})
    assert not writeback.repeating(Update("7", {"Nice": "1"}), lost).then


@pytest.mark.parametrize(
    ("before", "nodes"),
    [
        (Original(1, 0, 6, 55), "1-8"),
        (Original(2, 3, 6, 55), "2-3"),
        (Original(3, 0, 20, 55), "3-8"),
        (Original(12, 0, 12, 55), "12-12"),  # more than the cluster has now: the lower bound still holds
        (Original(2, 0, 1, 55), "1-8"),  # Slurm had raised the number of nodes for the GPUs
    ],
)
def test_an_unpin_restores_the_fields_that_the_pin_overwrote(before, nodes):
    raised = before.tasks + 1
    update = writeback.unpin("7", before, 8, raised, OLD)
    assert update.fields == {
        "NumNodes": nodes, "ReqNodeList": "", "NumTasks": str(before.tasks), "Priority": "55",
    }  # fmt: skip
    assert "StartTime" not in update.fields  # the lease stays


@pytest.mark.parametrize("given", ["n1, n3", "n1,n3 ", "n[1,3]", "n1\t,n3"])
def test_an_unpin_writes_the_owners_nodes_in_slurms_own_form(given):
    """``scontrol update ReqNodeList="n1, n3"`` leaves the blank in the job, and an update with it would be refused."""
    fields = writeback.unpin("7", Original(1, 0, 6, 55, required_nodes=given), 8, 1, OLD).fields
    assert fields["ReqNodeList"] == "n[1,3]"
    assert writeback.unpin("7", Original(1, 0, 6, 55, required_nodes="n[1-"), 8, 1, OLD).fields["ReqNodeList"] == "n[1-"


def test_an_unpin_leaves_the_tasks_alone_where_the_pin_has_not_raised_them():
    """Else Slurm would never start a job with --mincpus again (BadConstraints)."""
    assert "NumTasks" not in writeback.unpin("7", Original(1, 4, 1, 55, 1), 8, 1, OLD).fields
    assert "NumTasks" not in writeback.unpin("7", Original(1, 4, 6, 55, 6), 8, 3, OLD).fields


CPUS = replace(JOB, tasks=2, cpus=2, min_cpus_per_node=20)


def test_where_the_nodes_raise_the_cpus_of_a_job_they_are_written_first_and_its_cpus_again():
    """--mincpus, or --mem under MaxMemPerCPU: otherwise Slurm would never start the job (BadConstraints)."""
    assert [writeback.raised_cpus(CPUS, 2, 1), writeback.raised_cpus(CPUS, 20, 1)] == [2, 0]
    assert writeback.raised_cpus(JOB, 6, 1) == 0
    pinned = writeback.pin("7", {"n1": 2}, multifactor=False, cpus=2)
    assert pinned.fields == {"NumNodes": "1-1", "ReqNodeList": "n1"}
    assert pinned.then.keys() == {"NumCPUs", "StartTime", "Priority"}
    released = writeback.release_ahead("7", 5, multifactor=True, confined=True, cpus=2)
    assert (released.fields, released.then.keys()) == ({"NumNodes": "1-1"}, {"NumCPUs", "StartTime", "SiteFactor"})
    assert writeback.release_ahead("7", 5, multifactor=True, cpus=2).fields == {"StartTime": "now", "SiteFactor": "5"}


def test_an_unpin_that_raises_the_cpus_restores_them_last():
    update = writeback.unpin("7", Original(1, 0, 2, 55, 2), 8, 1, OLD, raises_cpus=True)
    assert "NumCPUs" not in update.fields
    assert update.then == {"NumCPUs": "2"}


def test_an_unpin_in_newer_releases_restores_cpus_and_not_tasks():
    """A written task count is binding: a job with --gpus=5 would never start on nodes with four."""
    update = writeback.unpin("7", Original(2, 0, 1, 55, 4), 8, 2, NEW)
    assert update.fields == {"NumNodes": "1-8", "ReqNodeList": "", "NumCPUs": "4", "Priority": "55"}
    assert "NumCPUs" not in writeback.unpin("7", Original(2, 0, 1, 55), 8, 2, NEW).fields


def test_an_unpin_resets_the_site_factor_and_skips_an_unknown_priority():
    assert writeback.unpin("7", Original(1, 1, 1, 5), 8, 1, MULTIFACTOR).fields["SiteFactor"] == "0"
    assert "Priority" not in writeback.unpin("7", Original(1, 1, 1, 0), 8, 1, OLD).fields


def test_the_original_fields_are_taken_from_the_record():
    assert writeback.original(JOB) == Original(1, 0, 6, 55, 12)


@pytest.mark.parametrize(("seconds", "text"), [(600, "now+600"), (0.2, "now+1"), (-5, "now+1"), (59.7, "now+60")])
def test_a_lease_lasts_at_least_one_second(seconds, text):
    assert writeback.lease("7", seconds).fields == {"StartTime": text}


def test_hand_over_and_site_factor_write_one_field():
    assert writeback.hand_over("7").fields == {"StartTime": "now"}
    assert writeback.hand_over("7", 59.3).fields == {"StartTime": "now+60"}  # 59 could be before its begin time
    assert writeback.site_factor("7", 12).fields == {"SiteFactor": "12"}
