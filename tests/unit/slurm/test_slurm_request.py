"""Requests of jobs: all supported forms, and all that is left to Slurm."""

import dataclasses

import pytest

from slurm_asrpt.slurm.chosen_by_slurm import read_any_request, read_het_request
from slurm_asrpt.slurm.records import GpuType, JobRecord, NodeRecord
from slurm_asrpt.slurm.request import LeftToSlurm, read_cpu_request, read_request, resources_of
from slurm_asrpt.status.reason_texts import LEFT_WORDS


def node(index, gpus=8, kind="h100", partitions=("gpu",), other=False, features=()):
    groups = frozenset(partitions)
    return NodeRecord(f"n{index}", index, gpus, 0, kind, 64, 0, 1000, 0, "IDLE", groups, other, frozenset(features))


NODES = [
    node(1, features=("ib",)),
    node(2),
    node(3, 4, "t4"),
    node(4, partitions=("else",)),
    node(5, 0, ""),
    node(6, other=True),
]
BASE = JobRecord("1", "train", "ann", 1, "gpu", "PENDING", "None", 0.0, cpus=4, tasks=4)


def ask(**fields):
    return read_request(dataclasses.replace(BASE, **fields), NODES, ["gpu", "gpu-long"])


@pytest.mark.parametrize(
    ("fields", "gpus", "per_node", "unit"),
    [
        ({"tres_per_job": "gres:gpu:6"}, 6, None, 1),
        ({"tres_per_job": "gres/gpu=6"}, 6, None, 1),
        ({"tres_per_task": "gres:gpu:1"}, 4, None, 1),
        ({"tres_per_task": "gres:gpu:2"}, 8, None, 2),
        ({"tres_per_task": "gres:gpu:1", "tasks_per_node": 2}, 4, 2, 1),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": 3}, 6, 2, 1),
        ({"tres_per_node": "gres:gpu:2", "tres_per_job": "gres:gpu:8"}, 8, 2, 1),
        ({"tres_per_node": "gres:gpu"}, 1, 1, 1),
        ({"tres_per_job": "gres:gpu:8", "tasks_per_node": 4, "min_nodes": 2, "max_nodes": 2}, 8, 4, 1),
    ],
)
def test_all_forms_of_gpu_requests_are_read(fields, gpus, per_node, unit):
    found = ask(**fields)
    assert (found.gpus, found.request.per_node, found.request.unit) == (gpus, per_node, unit)


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({"cpus": 12, "tasks": 6}, 1),
        ({"cpus": 200, "tasks": 5}, 5),  # one task of 40 CPUs fits on a node of 64
        ({"cpus": 200, "tasks": 20}, 4),  # six tasks of 10
        ({"tasks": 5, "tasks_per_node": 2}, 3),
        ({"tasks": 5, "memory_per_cpu": 400.0, "cpus": 5}, 3),  # two tasks of 400 MiB fit into 1000
        ({"cpus": 1000, "tasks": 2}, 1),  # fits nowhere
        ({"cpus": 20, "tasks": 20, "one_thread": True}, 1),
        ({"tasks": 5, "tasks_per_node": 2, "tres_per_job": "gres:gpu:4", "max_nodes": 2}, 2),
    ],
)
def test_a_job_gets_as_many_nodes_as_its_tasks_need(fields, nodes):
    found = ask(**{"tres_per_node": "gres:gpu:2", **fields})
    assert (found.request.min_nodes, found.gpus) == (nodes, 2 * nodes)


def test_only_nodes_of_the_partition_with_plain_gpus_are_candidates():
    assert ask(tres_per_job="gres:gpu:2").request.candidates == {"n1", "n2", "n3"}
    assert ask(tres_per_job="gres:gpu:t4:2").request.candidates == {"n3"}
    assert ask(tres_per_job="gres:gpu:t4:99").request.candidates == {"n3"}


def within(nodes, **fields):
    """The alternative node sets of the request, then all candidate nodes, by number."""
    request = read_request(dataclasses.replace(BASE, **fields), nodes, ["gpu", "gpu-long"]).request
    return [" ".join(sorted(name[1:] for name in names)) for names in (*request.within, request.candidates)]


def test_a_job_for_several_partitions_runs_within_one_of_them():
    nodes = [node(1), node(2, partitions=("gpu", "gpu-long")), node(3, partitions=("gpu-long",)), node(4)]
    wanted = {"partition": "gpu-long,gpu", "tres_per_job": "gres:gpu:4"}
    assert within(nodes, **wanted) == ["2 3", "1 2 4", "1 2 3 4"]
    assert within(nodes, **wanted, max_nodes=1) == ["1 2 3 4"]
    assert within(nodes, **wanted | {"tres_per_job": "gres:gpu:1"}) == ["1 2 3 4"]
    assert within(nodes, **wanted | {"tres_per_job": "gres:gpu:20"}) == ["1 2 4"]  # gpu-long is too small for it
    assert within(nodes, **wanted | {"tres_per_job": "gres:gpu:99"}) == ["1 2 4"]
    assert within(nodes, **wanted, exclusive="node") == ["1 2 4"]
    assert within(nodes[:2], **wanted) == ["1 2"]  # one set includes the other


def test_all_nodes_of_a_job_have_the_same_bracketed_feature():
    nodes = [node(i, features=("a" if i < 3 else "b", "ib")) for i in range(1, 5)]
    wanted = {"tres_per_job": "gres:gpu:4"}
    assert within(nodes, **wanted, features="[a|b]") == ["1 2", "3 4", "1 2 3 4"]
    assert within(nodes, **wanted, features="[a|b]", excluded_nodes="n1") == ["2", "3 4", "2 3 4"]
    assert within(nodes, **wanted, features="[a|b]", max_nodes=1) == ["1 2 3 4"]
    assert within(nodes, **wanted, features="[a|ib]") == ["1 2 3 4"]
    assert within(nodes, tres_per_job="gres:gpu:9", features="[a|b]", excluded_nodes="n1") == ["3 4"]
    with pytest.raises(LeftToSlurm, match="features"):
        within(nodes, tres_per_job="gres:gpu:20", features="[a|b]")


def test_nodes_with_less_than_tmp_are_left_out():
    nodes = [dataclasses.replace(node(number), tmp_disk=1000 * number) for number in (1, 2, 3)]
    found = [within(nodes, tres_per_job="gres:gpu:1", tmp_disk=least) for least in (0.0, 1000.0, 1001.0, 3001.0)]
    assert found == [["1 2 3"], ["1 2 3"], ["2 3"], [""]]


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"cpus_per_gpu": 8}, 1),
        ({"cpus_per_gpu": 16}, 2),
        ({"cpus_per_gpu": 16, "tres_per_job": "gres:gpu:16"}, 4),
        ({"cpus_per_gpu": 16, "max_nodes": 1}, 1),  # Slurm refuses that
        ({"cpus_per_gpu": 65}, 1),  # no node can serve one GPU
        ({"memory_per_gpu": 300.0}, 3),
        ({"memory_per_gpu": 125.0}, 1),
        ({"tres_per_job": "", "tres_per_task": "gres:gpu:4", "tasks": 2, "memory_per_gpu": 130.0}, 2),
    ],
)
def test_a_job_has_as_many_nodes_as_the_cpus_and_the_memory_for_its_gpus_need(fields, least):
    """A node has 8 GPUs, 64 CPUs and 1,000 MiB."""
    record = dataclasses.replace(BASE, **{"tres_per_job": "gres:gpu:8", **fields})
    assert read_request(record, [node(number) for number in range(1, 6)], ["gpu"]).request.min_nodes == least


@pytest.mark.parametrize(
    ("parts", "cpus_per_gpu", "least"),
    [
        (({"tres_per_job": "gres:gpu:8", "cpus": 8}, {"tres_per_job": "gres:gpu:2", "cpus": 4}), 2, 2),
        (({"tres_per_job": "gres:gpu:8", "cpus_per_gpu": 16}, {"tres_per_job": "gres:gpu:1"}), 16, 3),
        (({"tres_per_job": "gres:gpu:8"}, {"tres_per_job": "gres:gpu:1", "cpus": 60}), 0, 2),
    ],
)
def test_the_components_of_a_heterogeneous_job_count_as_the_largest_if_the_nodes_have_that(parts, cpus_per_gpu, least):
    """Nodes of 8 GPUs and 64 CPUs: nine GPUs with 60 CPUs each would never have room, and Slurm starts them at once."""
    components = [dataclasses.replace(BASE, tasks=1, **{"cpus": 1, **part}) for part in parts]
    found = read_het_request(components, [node(number) for number in range(1, 5)], ["gpu"]).request
    assert (found.cpus_per_gpu, found.min_nodes) == (cpus_per_gpu, least)


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"tasks": 4, "tasks_per_node": 3}, 2),
        ({"tasks": 4, "cpus": 132}, 4),  # a node of 64 CPUs has room for one task of 33
        ({"tasks": 4, "cpus": 128}, 2),
        ({"tasks": 4, "memory_per_cpu": 400.0, "cpus": 4}, 2),
        ({"tasks": 8, "tasks_per_node": 2, "max_nodes": 2}, 2),
    ],
)
def test_a_job_without_gpus_has_as_many_nodes_as_its_tasks_need(fields, least):
    nodes = [dataclasses.replace(node(number), gpus=0) for number in range(1, 6)]
    record = dataclasses.replace(BASE, **{"tres_per_job": "", "cpus": 4, **fields})
    assert read_cpu_request([record], nodes, ["gpu"]).min_nodes == least


def test_nodes_without_the_other_generic_resources_of_a_job_are_left_out():
    nodes = [dataclasses.replace(node(number), gres={"nvme": number - 1}) for number in (1, 2, 3)]
    asked = ("gres:gpu:1", "gres:gpu:1,gres:nvme:1", "gres/gpu=1,gres/nvme=2", "gres:gpu:1,gres:nvme:1,gres:nic:1")
    assert [within(nodes, tres_per_node=text) for text in asked] == [["1 2 3"], ["2 3"], ["3"], [""]]


@pytest.mark.parametrize(
    ("fields", "amounts"),
    [
        ({"tres_per_node": "gres:gpu:1"}, ()),
        ({"tres_per_node": "gres:gpu:1,gres:nvme"}, (("nvme", 1),)),
        ({"tres_per_node": "gres:gpu:1,gres:tmp:2K,gres:nvme:a:1"}, (("nvme", 1), ("nvme:a", 1), ("tmp", 2048))),
        ({"tres_per_job": "gres:gpu:2", "tres_per_node": "gres:nvme:1"}, (("nvme", 1),)),
        ({"tres_per_node": "gres:gpu:1,gres:nvme:1", "min_nodes": 1, "max_nodes": 2}, (("nvme", 1),)),
    ],
)
def test_other_generic_resources_are_taken_on_each_node(fields, amounts):
    """The last one: its nodes are Slurm's choice, which is another form of request."""
    nodes = [dataclasses.replace(each, gres={"nvme": 2, "nvme:a": 1, "tmp": 4096}) for each in NODES]
    record = JobRecord("1", "", "ann", 1, "gpu", "PENDING", "None", 0.0, **fields)
    assert read_any_request(record, nodes, ["gpu"]).request.gres_per_node == amounts
    assert resources_of(record, 1).gres_per_node == amounts, "what the job gives back at its end"


def test_other_generic_resources_of_tasks_and_without_gpus_are_left_to_slurm():
    with pytest.raises(LeftToSlurm, match="generic"):
        ask(tres_per_node="gres:gpu:1", tres_per_task="gres:nvme:1")
    with pytest.raises(LeftToSlurm, match="generic"):
        read_cpu_request([dataclasses.replace(BASE, tres_per_job="", tres_per_node="gres:nvme:1")], NODES, ["gpu"])


def test_preferred_nodes_are_looked_at_before_all_others():
    nodes = [dataclasses.replace(node(number), features=frozenset({f"f{number}"})) for number in (1, 2, 3)]
    both = {"tres_per_job": "gres:gpu:1", "prefer": "f2"}
    assert within(nodes, **both) == ["2", "1 2 3", "1 2 3"]
    assert within(nodes, **both, features="f1") == ["2", "1", "1 2"], "Slurm tries what is preferred instead of -C"
    assert within(nodes, **both | {"prefer": "f2|f3"}) == ["2 3", "1 2 3", "1 2 3"]
    for useless in ({"prefer": "f4"}, {"prefer": "[f1*2]"}, {"tres_per_job": "gres:gpu:9"}, {"required_nodes": "n1"}):
        assert len(within(nodes, **both | useless)) == 1


def test_node_bounds_cpus_and_memory_are_read():
    found = ask(tres_per_job="gres:gpu:8", min_nodes=2, max_nodes=3, cpus=16, memory_per_cpu=100.0).request
    assert (found.min_nodes, found.max_nodes, found.cpus_per_gpu, found.memory_per_gpu) == (2, 3, 2, 200)
    assert ask(tres_per_job="gres:gpu:8").request.max_nodes is None
    assert ask(tres_per_job="gres:gpu:8", memory_per_gpu=70.0, memory_per_cpu=1.0).request.memory_per_gpu == 70


def test_ranks_correspond_to_gpus_only_with_one_gpu_per_task():
    assert ask(tres_per_task="gres:gpu:1").one_task_per_gpu
    assert not ask(tres_per_task="gres:gpu:2").one_task_per_gpu
    assert not ask(tres_per_job="gres:gpu:4").one_task_per_gpu


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"partition": "cpu"}, "partition"),
        ({"partition": "gpu,cpu"}, "partition"),
        ({"het": True}, "het"),
        ({"number": 67108869}, "federation"),
        ({"scrontab": True}, "scrontab"),
        ({"required_nodes": "n9"}, "nodelist"),
        ({"required_nodes": "n3"}, "nodelist"),  # of 4 GPUs: Slurm would add a node
        ({"required_nodes": "n[1,4]"}, "nodelist"),  # n4 is in another partition
        ({"required_nodes": "n[1-2", "tres_per_job": "gres:gpu:2"}, "nodelist"),
        ({"required_nodes": "n1", "min_nodes": 2}, "nodelist"),
        ({"required_nodes": "n[1-2]", "tres_per_job": "", "tres_per_node": "gres:gpu:2"}, "nodelist"),
        ({"required_nodes": "n[1-2]", "tres_per_job": "gres:gpu:1"}, "nodelist"),
        ({"excluded_nodes": "n[1"}, "exclude"),
        ({"exclusive": "user"}, "exclusive"),
        ({"exclusive": "node", "required_nodes": "n[2-3]", "min_nodes": 2}, "shape"),  # of 8 and of 4 GPUs
        ({"exclusive": "node", "min_nodes": 1, "max_nodes": 1, "tres_per_job": "gres:gpu:12"}, "shape"),
        ({"exclusive": "node", "excluded_nodes": "n[1-3]", "tres_per_job": "gres:gpu:1"}, "mixed"),
        ({"reservation": "r"}, "reservation"),
        ({"features": "ib*2"}, "features"),
        ({"features": "[ib*2|eth]"}, "features"),
        ({"features": "ib", "tres_per_job": "gres:gpu:9"}, "features"),  # only a node with 8 GPUs has it
        ({"contiguous": True}, "contiguous"),
        ({"segment": 2}, "segment"),
        ({"tres_per_socket": "gres:gpu:1"}, "socket"),
        ({"tasks_per_socket": 2}, "socket"),
        ({"tres_per_job": ""}, "nogpu"),
        ({"tres_per_job": "gres:fpga:1"}, "nogpu"),
        ({"tres_per_job": "gres:gpu:a:1,gres:gpu:b:1"}, "gres"),
        ({"tres_per_job": "gres:shard:1"}, "gres"),
        ({"tres_per_job": "gres:mps:50"}, "gres"),
        ({"tres_per_job": "gres:gpu:a100_1g.5gb:2"}, "mixed"),
        ({"tres_per_job": "gres:gpu:a100:2"}, "mixed"),  # n6 may have them
        ({"deadline": 1000.0}, "deadline"),
        ({"tres_per_job": "a:b:c:d:e"}, "gres"),
        ({"tres_per_node": "gres:gpu:3", "tres_per_job": "gres:gpu:8"}, "shape"),
        ({"tres_per_task": "gres:gpu:1", "tres_per_job": "", "tasks_per_node": 3}, "shape"),
        ({"tasks_per_node": 2, "min_nodes": 1, "max_nodes": 4}, "shape"),
        ({"tres_per_node": "gres:gpu:2", "tres_per_job": "", "min_nodes": 1, "max_nodes": 3}, "shape"),
        ({"min_nodes": 9}, "shape"),
        ({"min_nodes": 4, "max_nodes": 2}, "tasks"),
    ],
)
def test_left_to_slurm(fields, why):
    with pytest.raises(LeftToSlurm) as verdict:
        ask(**{"tres_per_job": "gres:gpu:8", **fields})
    assert verdict.value.why == why
    assert str(verdict.value) == LEFT_WORDS[why]


def test_jobs_whose_partitions_are_all_managed_are_scheduled():
    assert ask(tres_per_job="gres:gpu:2", partition="gpu,gpu-long").gpus == 2


@pytest.mark.parametrize(
    ("fields", "candidates"),
    [
        ({"excluded_nodes": "n[1,3]"}, {"n2"}),
        ({"features": "ib"}, {"n1"}),
        ({"features": "ib|eth", "excluded_nodes": "n2"}, {"n1"}),
        ({"required_nodes": "n2"}, {"n2"}),
    ],
)
def test_owners_can_restrict_the_candidate_nodes(fields, candidates):
    assert ask(tres_per_job="gres:gpu:2", **fields).request.candidates == candidates


def test_the_partition_with_the_nodes_of_nodelist_is_used():
    nodes = [node(1), node(2), node(3, partitions=("gpu-long",))]
    wanted = dataclasses.replace(BASE, partition="gpu-long,gpu", tres_per_job="gres:gpu:4", required_nodes="n3")
    assert read_request(wanted, nodes, ["gpu", "gpu-long"]).request.candidates == {"n3"}


def test_every_node_of_nodelist_is_used():
    found = ask(tres_per_job="gres:gpu:12", required_nodes="n[1-2]", min_nodes=2).request
    assert (found.min_nodes, found.max_nodes, found.candidates) == (2, 2, {"n1", "n2"})


@pytest.mark.parametrize(
    ("fields", "gpus", "nodes"),
    [
        ({"tres_per_job": "gres:gpu:1"}, 8, 1),
        ({"tres_per_job": "gres:gpu:12"}, 16, 2),
        ({"tres_per_job": "gres:gpu:2", "min_nodes": 2}, 16, 2),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": 2}, 16, 2),
        ({"tres_per_task": "gres:gpu:3", "tasks": 3}, 16, 2),  # two tasks a node
        ({"tres_per_job": "gres:gpu:t4:4"}, 4, 1),
    ],
)
def test_exclusive_jobs_get_all_gpus_of_their_nodes(fields, gpus, nodes):
    found = ask(exclusive="node", memory_per_cpu=10.0, **fields)
    size = gpus // nodes
    assert (found.gpus, found.request.per_node, found.request.min_nodes, found.request.max_nodes) == (
        *(gpus, size, nodes, nodes),
    )
    assert (found.request.cpus_per_gpu, found.request.memory_per_gpu) == (64 / size, 640 / size)
    assert not found.one_task_per_gpu or found.gpus == 4
    assert found.request.candidates == ({"n3"} if size == 4 else {"n1", "n2"})


def typed(index, *types):
    """A node with several GPU types."""
    kinds = tuple(GpuType(name, gpus, 0) for name, gpus in types)
    return dataclasses.replace(node(index, sum(gpus for _, gpus in types), ""), types=kinds)


SPLIT = [typed(1, ("a100", 2), ("1g", 4)), typed(2, ("a100", 2), ("1g", 4)), node(3, 4, "a100"), node(4, 2, "t4")]


def split_ask(read=read_any_request, **fields):
    return read(dataclasses.replace(BASE, **{"cpus": 1, "tasks": 1, **fields}), SPLIT, ["gpu"])


@pytest.mark.parametrize(
    ("fields", "candidates"),
    [
        ({"tres_per_job": "gres:gpu:a100:2"}, {"n1:a100", "n2:a100", "n3"}),
        ({"tres_per_node": "gres:gpu:1g:4"}, {"n1:1g", "n2:1g"}),
        ({"tres_per_job": "gres:gpu:1g:8", "max_nodes": 2}, {"n1:1g", "n2:1g"}),
        ({"tres_per_job": "gres:gpu:a100:1", "required_nodes": "n2"}, {"n2:a100"}),
        ({"tres_per_job": "gres:gpu:a100:1", "excluded_nodes": "n[2-3]"}, {"n1:a100"}),
        ({"tres_per_job": "gres:gpu:3"}, {"n3", "n4"}),  # Slurm could give it GPUs of two types on the others
        ({"tres_per_job": "gres:gpu:a100:4", "exclusive": "node"}, {"n3"}),  # n1 and n2 have MIG instances, too
    ],
)
def test_a_job_that_names_a_type_gets_the_parts_of_nodes_with_several(fields, candidates):
    found = split_ask(**fields)
    assert (found.request.candidates, found.by_slurm) == (candidates, "")


@pytest.mark.parametrize(
    ("fields", "sets"),
    [
        ({"tres_per_job": "gres:gpu:7"}, [{"n1:1g", "n2:1g", "n3", "n4"}, {"n1:a100", "n2:a100", "n3", "n4"}]),
        ({"tres_per_job": "gres:gpu:2", "required_nodes": "n1"}, [{"n1:1g"}, {"n1:a100"}]),
        ({"tres_per_job": "gres:gpu:4", "required_nodes": "n1"}, [{"n1:1g"}]),
        ({"tres_per_job": "gres:gpu:1g:3", "exclusive": "node"}, [{"n1:1g", "n2:1g"}]),
    ],
)
def test_slurm_chooses_the_gpus_where_only_nodes_with_several_types_hold_a_job(fields, sets):
    with pytest.raises(LeftToSlurm) as verdict:
        split_ask(read_request, **fields)
    assert verdict.value.why == "mixed"
    found = split_ask(**fields)
    assert found.by_slurm == "mixed"
    assert list(found.request.within or (found.request.candidates,)) == sets


def test_a_job_that_no_single_type_holds_is_left_to_slurm():
    with pytest.raises(LeftToSlurm, match="several GPU types"):
        split_ask(tres_per_job="gres:gpu:5", required_nodes="n1")


def test_contiguous_nodes_may_have_several_types():
    found = split_ask(tres_per_node="gres:gpu:a100:2", min_nodes=2, contiguous=True)
    assert found.request.within == ({"n1:a100", "n2:a100"}, {"n2:a100", "n3"})


@pytest.mark.parametrize(
    ("fields", "by_slurm"),
    [
        ({"tres_per_job": "gres:gpu:16", "tasks": 1, "min_cpus_per_node": 8}, "mincpus"),
        ({"tres_per_job": "gres:gpu:16", "tasks": 2, "min_cpus_per_node": 8}, ""),
        ({"tres_per_job": "gres:gpu:8", "tasks": 1, "min_cpus_per_node": 8}, ""),
        ({"tres_per_job": "gres:gpu:16", "tasks": 1}, ""),
    ],
)
def test_slurm_chooses_the_nodes_where_a_pin_would_raise_the_tasks_of_a_job_with_mincpus(fields, by_slurm):
    """Lowered again, they would keep Slurm from ever starting it (BadConstraints)."""
    job = dataclasses.replace(BASE, **{"cpus": 1, "min_nodes": 1, "max_nodes": 0, **fields})
    assert read_any_request(job, NODES, ["gpu"]).by_slurm == by_slurm
