"""Parsers of Slurm's output: newer formats, odd values, and SlurmError for invalid output."""

import json
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.errors import AsrptError, SlurmError
from slurm_asrpt.slurm import gres, node_list, parse
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.records import JobRecord, Reservation
from slurm_asrpt.spool import progress_dir, read_progress
from slurm_asrpt.status.document import read_status

NODE = "NodeName=n1 CPUAlloc=1 CPUTot=64 Gres=gpu:h100:8(S:0-1) GresUsed=gpu:h100:2(IDX:0-1) RealMemory=5 AllocMem=1"


def wrapped(number, given=True, infinite=False):
    return {"set": given, "infinite": infinite, "number": number}


NEW_STYLE = {
    "job_id": 12,
    "array_job_id": wrapped(10),
    "array_task_id": wrapped(2),
    "name": "train",
    "user_name": "asrpt1",
    "user_id": 1001,
    "partition": "gpu",
    "job_state": ["RUNNING"],
    "state_reason": "None",
    "submit_time": wrapped(1000),
    "end_time": wrapped(0, infinite=True),
    "exit_code": {"status": ["SUCCESS"], "return_code": wrapped(3), "signal": {"id": wrapped(0, False), "name": ""}},
    "node_count": wrapped(2),
    "max_nodes": wrapped(0, given=False),
    "tasks": wrapped(6),
    "cpus": wrapped(6),
    "shared": ["none"],
    "nodes": "n[1-2]",
    "gres_detail": ["gpu:h100:4(IDX:0-3)", "gpu:h100:2(IDX:0-1)"],
}


def parsed_job(**fields):
    return parse.parse_jobs(json.dumps({"jobs": [{**NEW_STYLE, **fields}]}))[0]


@pytest.mark.parametrize(
    ("release", "task", "found"),
    [
        ("22.05.8", True, ("fast", "")),
        ("22.05.8", False, ("old", "fast")),
        ("22.05.9", True, ("old", "fast")),
        ("22.05.11", True, ("old", "fast")),
        ("24.11.5", True, ("old", "fast")),
    ],
)
def test_before_22_05_9_tasks_start_on_preferred_nodes_only(release, task, found):
    job = NEW_STYLE | {"prefer": "fast", "features": "old", "array_task_id": wrapped(2, task)}
    if not task:
        job |= {"array_job_id": wrapped(0)}
    (read,) = parse.parse_jobs(json.dumps({"meta": {"Slurm": {"release": release}}, "jobs": [job]}))
    assert (read.features, read.prefer) == found


def test_json_of_newer_releases_is_parsed():
    job = parsed_job()
    assert (job.job_id, job.number, job.state, job.exit_code) == ("10_2", 12, "RUNNING", 3)
    assert (job.submit_time, job.end_time, job.min_nodes, job.max_nodes, job.tasks) == (1000, 0, 2, 0, 6)
    assert job.gpus_by_node == {"n1": 4, "n2": 2}
    assert job.exclusive == "node"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(wrapped(90), 5400), (90, 5400), (None, 0), (wrapped(0, infinite=True), 0), (wrapped(0, given=False), 0)],
)
def test_time_limits_are_converted_from_minutes_to_seconds(value, seconds):
    assert parsed_job(time_limit=value).time_limit == seconds


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({"job_state": "PENDING", "restart_cnt": 1}, 2),
        ({"job_state": "REQUEUED", "restart_cnt": 1}, 2),
        ({"job_state": "RUNNING", "restart_cnt": 1}, 3),
        ({"job_state": "PENDING", "restart_cnt": 0}, 2),
        ({"job_state": "PENDING", "restart_cnt": 1, "tres_req_str": ""}, 3),
        ({"job_state": "PENDING", "restart_cnt": 1, "node_count": 1}, 1),
    ],
)
def test_the_nodes_that_a_pending_job_requests_are_in_its_tres(fields, nodes):
    """Slurm shows the number that a requeued job had, or that a held job could use."""
    assert (
        parsed_job(**{"node_count": 3, "tres_req_str": "cpu=6,mem=384M,node=2,billing=6", **fields}).min_nodes == nodes
    )


def test_ids_of_array_tasks_and_other_jobs_are_parsed():
    assert parsed_job(array_job_id=wrapped(0), array_task_id=wrapped(0, given=False)).job_id == "12"
    assert parsed_job(array_job_id=0, array_task_id=None).job_id == "12"
    assert parsed_job(array_job_id=10, array_task_id=0).job_id == "10_0"


@pytest.mark.parametrize(
    ("text", "job_id", "tasks", "address"),
    [
        ("0-3,7%2", "10", "0-3,7", "10_[0-3,7]"),
        ("1-19:3", "10", "1-19:3", "10_[1,4,7,10,13,16,19]"),  # scontrol knows no steps
        ("0-4000:2", "10", None, "10"),
        ("9%3", "10_9", "", "10_9"),  # the last task has a record like others
        ("0", "10_0", "", "10_0"),
        (",".join(map(str, range(0, 3000, 3))), "10", None, "10"),  # too long for one line of scontrol
        ("1,3,5,...", "10", None, "10"),
    ],
)
def test_pending_tasks_in_one_array_record_are_parsed(text, job_id, tasks, address):
    there = wrapped(0, given=False)
    found = parsed_job(
        job_id=10, array_job_id=wrapped(10), array_task_id=there, array_task_string=text, array_max_tasks=2
    )
    assert (found.job_id, found.address, found.array_most, found.array_id) == (job_id, address, 2, "10")
    assert found.array_tasks == (text if tasks is None else tasks)
    assert found.can_be_parted is bool(tasks)


def test_task_lists_are_expanded():
    assert [list(some) for some in read_tasks("0-3,7,10-19:4")] == [[0, 1, 2, 3], [7], [10, 14, 18]]


@pytest.mark.parametrize("text", ["", "a", "1-", "1-3:0", "1,,2", "0-9999999999", "1-3:", "-1"])
def test_invalid_task_lists_are_empty(text):
    assert read_tasks(text) == ()


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", {}),
        ("gres:gpu:2", {("gpu", ""): 2}),
        ("gres/gpu=2", {("gpu", ""): 2}),
        ("gpu", {("gpu", ""): 1}),
        ("gres:gpu:h100:2,gres:gpu:t4:1", {("gpu", "h100"): 2, ("gpu", "t4"): 1}),
        ("gpu:h100:4(S:0-1),shard:8(S:0)", {("gpu", "h100"): 4, ("shard", ""): 8}),
        ("gres:nvme,gres:scratch:100G", {("nvme", ""): 1, ("scratch", ""): 100 * 2**30}),
        ("fpga:intel:2k,scratch:107374182400", {("fpga", "intel"): 2048, ("scratch", ""): 100 * 2**30}),
        ("gpu:1g.10gb:4", {("gpu", "1g.10gb"): 4}),
    ],
)
def test_generic_resources_are_parsed(text, counts):
    assert gres.parse_gres(text) == counts


def test_other_generic_resources_of_a_node_are_counted_by_name_and_by_type():
    line = NODE.replace("h100:8(S:0-1)", "h100:8(S:0-1),nvme:2,fpga:a:1,fpga:b:1,shard:4,scratch:800G")
    line = line.replace("(IDX:0-1)", "(IDX:0-1),nvme:1(IDX:1),fpga:a:1,fpga:b:0,scratch:107374182400") + " State=IDLE"
    (found,) = parse.parse_nodes(line)
    assert found.gres == {"nvme": 2, "fpga": 2, "fpga:a": 1, "fpga:b": 1, "scratch": 800 * 2**30}
    assert found.gres_used == {"nvme": 1, "fpga": 1, "fpga:a": 1, "fpga:b": 0, "scratch": 100 * 2**30}
    assert (found.gpus, found.gpus_used) == (8, 2)


@pytest.mark.parametrize("text", ["a:b:c:d", ":", "gpu:x:y:1", "gpu:²:²:1"])
def test_invalid_generic_resources_are_refused(text):
    with pytest.raises(SlurmError):
        gres.parse_gres(text)


@pytest.mark.parametrize("text", ["(null)", "N/A", ""])
def test_missing_gres_means_no_gpus(text):
    assert gres.gpu_count(text) == 0


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        ("cpu=5", ""),
        ("cpu:5", ""),
        ("cpu=5,gres/gpu:1", "gres/gpu:1"),
        ("license/matlab=1,gres/gpu=2,mem=4G", "gres/gpu=2"),
        ("gres:gpu:1", "gres:gpu:1"),
        ("gres/cpu:1,gres/license:2", "gres/cpu:1,gres/license:2"),
    ],
)
def test_only_generic_resources_of_a_task_count(shown, meant):
    """24.11 prints ``cpu=5`` for each job with -c5. For other generic resources of tasks, a job is left to Slurm."""
    raw = {"job_id": 1, "job_state": ["PENDING"], "tres_per_task": shown}
    assert parse.job_record(raw).tres_per_task == meant


def test_memory_for_each_gpu_does_not_count_for_each_node_as_well():
    """24.11 shows that of ``--mem-per-gpu=200G`` in both places."""
    memory = {"set": True, "infinite": False, "number": 204800}
    raw = {"job_id": 1, "job_state": ["PENDING"], "memory_per_node": memory}
    assert parse.job_record(raw).memory_per_node == 204800
    job = parse.job_record(raw | {"memory_per_tres": "gres/gpu:204800"})
    assert (job.memory_per_node, job.memory_per_gpu) == (0.0, 204800.0)


def test_scrontab_jobs_are_read():
    """With the flags that 24.11 printed for one."""
    flags = ["SKIP_TRES_STRING_ACCOUNTING", "EXACT_TASK_COUNT_REQUESTED", "CRON_JOB", "USING_DEFAULT_ACCOUNT"]
    raw = {"job_id": 1, "job_state": ["PENDING"]}
    assert parse.job_record(raw | {"flags": flags}).scrontab
    assert not parse.job_record(raw | {"flags": flags[:2]}).scrontab


@pytest.mark.parametrize(
    ("flags", "shown", "most"),
    [([], 0, 0), ([], 4, 4), (["EXACT_TASK_COUNT_REQUESTED"], 0, 2), (["EXACT_TASK_COUNT_REQUESTED"], 4, 2)],
)
def test_a_job_whose_owner_has_set_its_tasks_never_gets_more_nodes(flags, shown, most):
    """24.11, of NumNodes=4 and then NumTasks=2: it shows four nodes, but never starts the job."""
    raw = {"job_id": 1, "job_state": ["PENDING"], "tres_req_str": "cpu=2,node=4", "node_count": 4, "tasks": 2}
    job = parse.job_record(raw | {"flags": flags, "max_nodes": shown})
    assert (job.min_nodes, job.max_nodes) == (4, most)


def test_a_range_of_nodes_is_the_owners_as_long_as_there_are_tasks_for_the_least():
    raw = {"job_id": 1, "job_state": ["PENDING"], "tres_req_str": "cpu=2,node=1", "node_count": 1, "tasks": 2}
    assert parse.job_record(raw | {"flags": ["EXACT_TASK_COUNT_REQUESTED"], "max_nodes": 4}).max_nodes == 4


def test_node_lists_are_expanded_and_folded():
    assert node_list.expand("n[1-3,7],login") == ["n1", "n2", "n3", "n7", "login"]
    assert node_list.expand("n3,n1") == ["n3", "n1"]
    assert node_list.fold(["n1", "n2", "n3"]) == "n[1-3]"
    with pytest.raises(SlurmError):
        node_list.expand("n[1-")


def test_an_admins_reason_does_not_hide_the_state():
    (node,) = parse.parse_nodes(f"{NODE} State=IDLE+DRAIN Partitions=gpu Reason=see State=IDLE Gres=gpu:99 [root@now]")
    assert not node.usable
    assert (node.gpus, node.gpus_used, node.gpu_type) == (8, 2, "h100")


@pytest.mark.parametrize(
    ("state", "usable"),
    [("IDLE", True), ("MIXED", True), ("ALLOCATED+COMPLETING", True), ("IDLE+PLANNED", True), ("IDLE*", False),
     ("DOWN*+DRAIN", False), ("MIXED+DRAIN", False), ("IDLE+MAINTENANCE", False), ("IDLE+POWERED_DOWN", True),
     ("IDLE+CLOUD+POWERED_DOWN", True), ("MIXED+NOT_RESPONDING+POWERING_UP", True), ("IDLE+POWERING_DOWN", True),
     ("DOWN+POWERED_DOWN+NOT_RESPONDING", False), ("IDLE+DRAIN+POWERED_DOWN", False),
     ("IDLE+NOT_RESPONDING", False), ("IDLE+RESERVED", False),
     ("MIXED+REBOOT_REQUESTED", True), ("MIXED+DRAIN+REBOOT_REQUESTED", False), ("DOWN+REBOOT_ISSUED", False)],
)  # fmt: skip
def test_node_states_decide_whether_a_node_is_usable(state, usable):
    (node,) = parse.parse_nodes(f"{NODE} State={state} Partitions=gpu")
    assert node.usable is usable


def test_cores_and_memory_that_a_node_keeps_for_itself_are_not_for_jobs():
    """As 22.05 printed them with CoreSpecCount=4 and MemSpecLimit=12000: CPUAlloc is 32 with a job on all of it."""
    own = "CPUEfctv=32 CPUTot=36 RealMemory=512000 CoreSpecCount=4 CPUSpecList=32-35 MemSpecLimit=12000"
    (node,) = parse.parse_nodes(f"NodeName=n1 CPUAlloc=32 AllocMem=500000 {own} State=ALLOCATED")
    assert (node.cpus, node.cpus_used, node.memory, node.memory_used) == (32, 32, 500000, 500000)


def with_gres(gres, used="gpu:0"):
    """The node with these GPUs."""
    line = re.sub("GresUsed=[^ ]*", f"GresUsed={used}", NODE.replace("gpu:h100:8(S:0-1)", gres))
    return parse.parse_nodes(f"{line} State=IDLE Partitions=gpu")[0]


@pytest.mark.parametrize("gres", ["gpu:4,shard:16", "gpu:4,mps:100", "gpu:a:2,gpu:2", "gpu:a:2,gpu:b:2,shard:8"])
def test_shared_gpus_and_gpus_of_which_some_have_no_type_are_marked(gres):
    assert with_gres(gres).other_gres


def test_a_mig_instance_is_a_gpu():
    node = with_gres("gpu:1g.12gb:14(S:0)", "gpu:1g.12gb:3(IDX:0-2)")
    assert (node.gpus, node.gpus_used, node.gpu_type, node.other_gres, node.parts) == (14, 3, "1g.12gb", False, (node,))


def test_a_node_with_several_gpu_types_has_a_part_for_each():
    """As Slurm 22.05 printed it, with a job of each type, and one with --gpus=2 that got one of each."""
    node = with_gres("gpu:a100:2,gpu:1g.10gb:4", "gpu:a100:2(IDX:0-1),gpu:1g.10gb:3(IDX:2-4)")
    assert (node.name, node.gpus, node.gpus_used, node.gpu_type, node.other_gres) == ("n1", 6, 5, "", False)
    parts = [(part.name, part.gpus, part.gpus_used, part.gpu_type, part.parts) for part in node.parts]
    a100, mig = node.parts
    assert parts == [("n1:a100", 2, 2, "a100", (a100,)), ("n1:1g.10gb", 4, 3, "1g.10gb", (mig,))]
    assert with_gres("gpu:a100:2,gpu:t4:4", "gpu:a100:0(IDX:N/A),gpu:t4:0(IDX:N/A)").parts[1].gpus_used == 0


def test_the_gpus_of_a_job_are_counted_by_type_and_by_part_of_the_nodes_with_several():
    """``gres_detail`` of 22.05: a type may have none, and IDX may be empty."""
    details = [
        "gpu:a100:1(IDX:1),gpu:1g.10gb:1(IDX:4)",
        "gpu:a100:2(IDX:0-1),gpu:1g.10gb:0(IDX:)",
        "gpu:a100:4(IDX:0-3)",
    ]
    raw = {"job_id": 3, "job_state": "RUNNING", "nodes": "n[1-3]", "gres_detail": details}
    job = parse.job_record(raw)
    assert job.gpus_by_node == {"n1": 2, "n2": 2, "n3": 4}
    assert job.in_parts(frozenset()) is job
    split = job.in_parts(frozenset({"n1", "n2", "n9"}))
    assert split.gpus_by_node == {"n3": 4, "n1:a100": 1, "n1:1g.10gb": 1, "n2:a100": 2}
    assert split.hosts == {"n1", "n2", "n3"}


JOB = "JobId={id} JobName={name} UserId=u(1) JobState=RUNNING Reason=None   Nodes=n1 CPU_IDs=0 Mem=64 GRES={gres} X=1"


def test_allocations_are_parsed():
    lines = JOB.format(id=7, name="a", gres="gpu:2(IDX:0-1)") + "\nslurm_load_jobs error: Invalid job id specified\n"
    assert parse.parse_allocations(lines) == {"7": {"n1": 2}}


@pytest.mark.parametrize("name", ["x\nJobId=7 JobName=f JobState=RUNNING Reason= Nodes=n9 CPU_IDs=0 Mem=0 GRES=gpu:8"])
def test_a_job_with_a_forged_line_has_no_allocation(name):
    lines = [JOB.format(id=8, name=name, gres="gpu:1"), JOB.format(id=7, name="a", gres="gpu:2")]
    for order in (lines, lines[::-1]):
        assert "7" not in parse.parse_allocations("\n".join(order))


def test_a_job_whose_name_or_comment_lists_its_nodes_again_has_no_allocation():
    """Slurm prints the name before the real ones, and the comment after them."""
    forged = "x Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:999999999"
    named, commented = JOB.format(id=8, name=forged, gres="gpu:1"), JOB.format(id=8, name="a", gres="gpu:1")
    assert parse.parse_allocations(named) == parse.parse_allocations(f"{commented} Comment={forged} StdErr=/x") == {}


@pytest.mark.parametrize(
    "nodes", ["@x';touch${IFS}%s;'", "@local:$(touch${IFS}%s)", "@*$(touch${IFS}%s)", "x,@x';touch${IFS}%s;'"]
)
def test_no_command_runs_for_a_node_list_in_a_jobs_name(tmp_path, nodes):
    """ClusterShell gives the name of a node group to a shell."""
    ran = tmp_path / "ran"
    parse.parse_allocations(JOB.format(id=8, name=f"x Nodes={nodes % ran} CPU_IDs=0 Mem=0 GRES=gpu:1", gres="gpu:1"))
    with suppress(SlurmError):
        node_list.fold(node_list.expand(nodes % ran))
    node_list.fold([nodes % ran])
    assert not ran.exists()


@pytest.mark.parametrize(
    "nodes",
    [
        "n[1-999999999]",
        "n[1-9999999999]",
        "n[1-3,5-999999999]",
        "n[1-5-999999999]",
        "n[1-900]m[1-900]",
    ],
)
def test_a_node_list_of_more_names_than_slurm_has_nodes_is_no_list(nodes):
    """Its names would fill the memory."""
    with pytest.raises(SlurmError, match="cannot parse the node list"):
        node_list.expand(nodes)
    assert (
        parse.parse_allocations(JOB.format(id=8, name=f"x Nodes={nodes} CPU_IDs=0 Mem=0 GRES=gpu:1", gres="gpu:1"))
        == {}
    )


def test_a_node_list_may_have_as_many_names_as_slurm_has_nodes():
    assert len(node_list.expand("n[1-65536]")) == node_list.MOST_NODES
    assert node_list.expand("n[1-7/3],a[1-2]b[3-4]") == ["n1", "n4", "n7", "a1b3", "a1b4", "a2b3", "a2b4"]


def test_an_odd_job_name_does_not_hide_other_jobs():
    odd = JOB.format(id=8, name="x Nodes=[[ CPU_IDs=0 Mem=0 GRES=gpu:a:b:c:d", gres="gpu:1")
    assert parse.parse_allocations(odd + "\n" + JOB.format(id=7, name="a", gres="gpu:2")) == {"7": {"n1": 2}}


def test_each_update_has_its_own_error():
    transcript = "scontrol: update JobId=1\nscontrol: update JobId=2\nbad thing\nRequest aborted\nscontrol: \n"
    assert parse.parse_update_errors(transcript) == ["", "bad thing; Request aborted"]
    assert parse.parse_update_errors("") == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
words = st.sampled_from(
    [
        *":=()[],-4²\n ",
        "gpu",
        "n1",
        "Nodes=",
        "GRES=",
        " CPU_IDs=0 Mem=0",
        "JobId=1 ",
        "NodeName=n1 ",
        "CPUTot=",
        "State=",
    ]
)
junk = st.lists(words | st.text(max_size=3), max_size=15).map("".join)


@given(st.sampled_from(sorted(NEW_STYLE)), values)
def test_a_job_with_any_value_in_a_field_is_parsed_or_refused(key, value):
    try:
        job = parsed_job(**{key: value})
    except SlurmError:
        return
    assert job.job_id


@given(values.map(json.dumps) | st.text() | values.map(lambda v: json.dumps({"jobs": v})))
def test_any_json_is_parsed_or_refused(text):
    try:
        jobs = parse.parse_jobs(text)
    except SlurmError:
        return
    assert isinstance(jobs, list)


@given(junk)
def test_any_text_is_parsed_or_refused(text):
    for reader in (gres.parse_gres, gres.gpu_count, parse.parse_nodes, parse.parse_allocations):
        try:
            found = reader(text)
        except SlurmError:
            continue
        assert found is not None


@given(st.binary(max_size=300))
def test_any_progress_file_is_parsed_or_ignored(tmp_path_factory, content):
    spool = tmp_path_factory.getbasetemp() / "fuzz-spool"
    folder = progress_dir(spool) / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "iterations").write_bytes(content)
    found = read_progress(spool, "1")
    assert found is None or (found.done >= 0 and found.total >= 0 and found.ran >= 0)


def test_progress_files_that_are_not_regular_files_are_ignored(tmp_path):
    folder = progress_dir(tmp_path) / "1"
    folder.mkdir(parents=True)
    assert read_progress(tmp_path, "1") is None
    (folder / "iterations").symlink_to("/etc/hostname")
    assert read_progress(tmp_path, "1") is None


@given(values.map(json.dumps) | values.map(lambda v: json.dumps({"schema": 1, "jobs": [v]})) | st.text(max_size=20))
def test_any_invalid_status_file_is_refused(tmp_path_factory, text):
    run = tmp_path_factory.getbasetemp() / "fuzz-run"
    run.mkdir(exist_ok=True)
    (run / "status.json").write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(AsrptError):
        read_status(run)


def test_a_controller_that_does_not_answer_is_not_an_empty_queue():
    """In that case, squeue 22.05 exits with 0, and prints an error and no jobs."""
    text = '{"errors": [{"error": "Unable to contact slurm controller (connect failure)", "errno": 1}], "jobs": []}'
    with pytest.raises(SlurmError, match="Unable to contact"):
        parse.parse_jobs(text)


RESERVATION = (
    "ReservationName={name} StartTime=1795287840 EndTime=1795291440 Duration=01:00:00 Nodes={nodes} NodeCnt=2 "
    "CoreCnt=8 Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES TRES={tres} Users=root State=INACTIVE"
)


def test_reservations_of_whole_nodes_are_parsed():
    nodes = parse.parse_nodes("\n".join(NODE.replace("=n1", f"={name}") + " State=IDLE" for name in ("n1", "n2")))
    whole = RESERVATION.format(name="maint", nodes="n[1-2]", tres="cpu=128")
    few = RESERVATION.format(name="cores", nodes="n1", tres="cpu=4")
    licenses = RESERVATION.format(name="matlab", nodes="(null)", tres="(null)")
    found = parse.parse_reservations("\n".join([whole, few, licenses]), nodes)
    assert found == [
        Reservation(
            "maint",
            1795287840,
            1795291440,
            frozenset({"n1", "n2"}),
            users=frozenset({"root"}),
            plain=False,
            maintenance=True,
        )
    ]
    assert parse.parse_reservations("No reservations in the system\n", nodes) == []
    with pytest.raises(SlurmError, match="show reservation"):
        parse.parse_reservations(whole.replace("1795287840", "soon"), nodes)


@pytest.mark.parametrize(
    ("tres", "cores"), [("TRES=cpu=54", (("n1", 48), ("n2", 6))), ("TRES=cpu=54,gres/gpu=2", None)]
)
def test_reservations_of_cores_are_parsed_unless_they_have_gpus(tres, cores):
    nodes = parse.parse_nodes("\n".join(NODE.replace("=n1", f"={name}") + " State=IDLE" for name in ("n1", "n2")))
    text = (  # 22.05.8
        "ReservationName=class StartTime=1795915049 EndTime=1795918649 Duration=01:00:00 Nodes=n[1-2] NodeCnt=2"
        " CoreCnt=54 Features=(null) PartitionName=gpu Flags=SPEC_NODES   NodeName=n1 CoreIDs=0-47"
        f"   NodeName=n2 CoreIDs=0,3-7 {tres} Users=asrpt2 Groups=(null) Accounts=(null) State=ACTIVE"
    )
    assert [each.cores for each in parse.parse_reservations(text, nodes)] == ([cores] if cores else [])


MAGNETIC = (  # 22.05.8
    "ReservationName=mag StartTime=1795437668 EndTime=1795441268 Duration=01:00:00 Nodes=n2 NodeCnt=1 CoreCnt=128"
    " Features=(null) PartitionName=(null) Flags=SPEC_NODES,MAGNETIC TRES=cpu=128 {whose} Licenses=(null) State=ACTIVE"
    " BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)


@pytest.mark.parametrize(
    ("whose", "magnetic"),
    [
        ("Users=asrpt1,asrpt2 Groups=(null) Accounts=(null)", True),
        ("Users=(null) Groups=(null) Accounts=lab", True),
        ("Users=(null) Groups=staff Accounts=(null)", False),  # of whom the members are not known here
        ("Users=-asrpt1 Groups=(null) Accounts=lab", False),
        ("AllowedPartitions=(null) QOS=high Users=(null) Groups=(null) Accounts=(null)", True),  # 26.05.5
        ("AllowedPartitions=(null) QOS=-high Users=asrpt1 Groups=(null) Accounts=(null)", False),
    ],
)
def test_magnetic_reservations(whose, magnetic):
    nodes = parse.parse_nodes(NODE.replace("=n1", "=n2") + " State=IDLE")
    (found,) = parse.parse_reservations(MAGNETIC.format(whose=whose), nodes)
    assert found.magnetic is magnetic


def test_a_magnetic_reservation_of_qos_and_partitions_draws_their_jobs_only():
    nodes = parse.parse_nodes(NODE.replace("=n1", "=n2") + " State=IDLE")
    whose = "AllowedPartitions=gpu,other QOS=high Users=asrpt1 Groups=(null) Accounts=(null)"  # 26.05.5
    (found,) = parse.parse_reservations(MAGNETIC.format(whose=whose), nodes)
    drawn = JobRecord("1", "train", "asrpt1", 1, "gpu,other", "PENDING", "None", 0.0, qos="high")
    assert found.admits(drawn)
    assert not found.admits(replace(drawn, qos="normal"))
    assert not found.admits(replace(drawn, partition="gpu,late"))
    assert not found.admits(replace(drawn, user="asrpt2"))


@pytest.mark.parametrize(
    ("flag", "plain"), [("SPEC_NODES", True), ("FLEX", False), ("MAINT", False), ("OVERLAP", False)]
)
def test_reservations_whose_jobs_run_on_its_nodes_alone(flag, plain):
    nodes = parse.parse_nodes(NODE.replace("=n1", "=n2") + " State=IDLE")
    text = MAGNETIC.format(whose="Users=asrpt1 Groups=(null) Accounts=(null)").replace("MAGNETIC", flag)
    (found,) = parse.parse_reservations(text, nodes)
    assert found.plain is plain
    assert found.flex is (flag == "FLEX")
    assert found.maintenance is (flag == "MAINT")


def test_whom_a_reservation_admits():
    job = JobRecord("1", "train", "ann", 1, "gpu", "PENDING", "None", 0.0, account="lab")
    of = partial(Reservation, "mag", 0.0, 1.0, frozenset({"n1"}), True)
    assert of(users=frozenset({"ann"})).admits(job)
    assert of(users=frozenset({"ann"}), accounts=frozenset({"lab"})).admits(job)
    assert not of(users=frozenset({"ann"}), accounts=frozenset({"other"})).admits(job)
    assert not of(users=frozenset({"bob"})).admits(job)
    plain = Reservation("plain", 0.0, 1.0, frozenset({"n1"}), users=frozenset({"ann"}))
    assert not plain.admits(job)
    assert plain.admits(replace(job, reservation="plain")), "Slurm has checked the user"
    assert not of(users=frozenset({"ann"})).admits(replace(job, reservation="plain"))


def test_fair_share_factors_are_parsed():
    """Lines of accounts have no user."""
    text = "|root|\nroot| root|1.000000\n|lab|\nasrpt1|  lab|0.250000\n"
    assert parse.parse_shares(text) == {("root", "root"): 1.0, ("asrpt1", "lab"): 0.25}
    with pytest.raises(SlurmError, match="sshare"):
        parse.parse_shares("asrpt1|lab|much\n")


def test_gpus_by_node_are_in_the_order_of_slurms_node_table():
    """It differs from the order of names with TopologyParam=SwitchAsNodeRank."""
    fields = {"nodes": "n[1,3-4]", "gres_detail": ["gpu:4(IDX:0-3)", "gpu:3(IDX:0-2)", "gpu:1(IDX:0)"]}
    raw = {**NEW_STYLE, **fields}
    assert parse.job_record(raw).gpus_by_node == {"n1": 4, "n3": 3, "n4": 1}
    assert parse.job_record(raw, {"n1": 0, "n4": 1, "n3": 2}).gpus_by_node == {"n1": 4, "n4": 3, "n3": 1}
    assert parse.job_record(raw, {"n1": 0, "n4": 1}).gpus_by_node == {"n1": 4, "n3": 3, "n4": 1}  # n3 is new


@pytest.mark.parametrize(
    ("gres", "indexes"),
    [
        ("gpu:h100:3(IDX:0,4-5)", {0, 4, 5}),
        ("gpu:(null):2(IDX:1,3)", {1, 3}),
        ("gres:gpu:4(IDX:0-3)", {0, 1, 2, 3}),
        ("gpu:a100:2(IDX:0-1),gpu:1g.10gb:1(IDX:4)", {0, 1, 4}),
        ("shard:(null):1(IDX:0),gpu:1(IDX:2)", {2}),
        ("gpu:h100:0(IDX:N/A)", set()),
        ("gpu:8(S:0-1)", set()),
        ("gpu:0", set()),
        ("gpu:1(IDX:5-2)", set()),
        ("gpu:1(IDX:0-999999999)", set()),
        ("gpu:1(IDX:-)", set()),
        ("gpu:1(IDX:" + "9" * 5000 + ")", set()),
        ("N/A", set()),
    ],
)
def test_the_indexes_of_gpus_are_read(gres, indexes):
    assert parse.gpu_indexes(gres) == sum(1 << index for index in indexes)


def test_the_gpus_in_use_on_a_node_and_those_of_a_job_are_known():
    (node,) = parse.parse_nodes(NODE + " State=MIXED")
    assert node.indexes_used == 0b11


@pytest.mark.parametrize(
    ("raw", "code", "signal"),
    [
        (768, 3, 0),
        (9, 0, 9),
        (139, 0, 11),  # with a core dump
        ({"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 9, "name": "KILL"}}, 0, 9),
        ({"return_code": wrapped(0, False), "signal": {"id": wrapped(15), "name": "TERM"}}, 0, 15),
        ({"return_code": wrapped(2), "signal": {"id": wrapped(0, False), "name": ""}}, 2, 0),
        ({"return_code": None, "signal": {"id": None}}, 0, 0),  # pyslurm has none for a running job
    ],
)
def test_exit_code_and_signal_of_each_release(raw, code, signal):
    job = parsed_job(exit_code=raw)
    assert (job.exit_code, job.signal) == (code, signal)
