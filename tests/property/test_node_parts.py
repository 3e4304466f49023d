"""Nodes with several GPU types: no plan gives more of a type, or more CPUs, than a node has."""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.config.settings import parse_settings
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, host_of, part_name
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.policies import make_policy, policy_names, policy_settings
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.chosen_by_slurm import read_any_request
from slurm_asrpt.slurm.records import PENDING, JobRecord, joined
from slurm_asrpt.slurm.request import LeftToSlurm
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm, typed_node
from tests.examples import examples

KINDS = ("a100", "1g", "2g")
SETTINGS = parse_settings({}, "test")

types = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 4), min_size=1, max_size=3)
asks = st.tuples(st.sampled_from([*KINDS, ""]), st.integers(1, 6), st.integers(1, 3))
"""Type, GPUs, CPUs for each of them."""


@st.composite
def nodes(draw):
    """Up to four nodes, with GPUs and CPUs in use."""
    found = []
    for index in range(draw(st.integers(1, 4))):
        record = typed_node(f"n{index}", index, draw(types))
        used = tuple(kind._replace(used=draw(st.integers(0, kind.gpus))) for kind in record.types)
        cpus = draw(st.integers(4, 24))
        record = replace(record, cpus=cpus, cpus_used=draw(st.integers(0, cpus)), types=used)
        record = replace(record, gpus_used=sum(kind.used for kind in used))
        if len(used) == 1:
            record = replace(record, gpu_type=used[0].name, types=())
        found.append(record)
    return found


def jobs_of(queue, cluster):
    """The jobs as policies get them, without those that are left to Slurm."""
    found = []
    for number, (kind, gpus, cpus) in enumerate(queue, start=1):
        text = f"gres:gpu:{kind}:{gpus}" if kind else f"gres:gpu:{gpus}"
        record = JobRecord(
            str(number), "train", "ann", 1, "gpu", PENDING, "None", 0.0, cpus=cpus * gpus, tres_per_job=text
        )
        try:
            asked = read_any_request(record, cluster.nodes, ["gpu"])
        except LeftToSlurm:
            continue
        request = cluster.share(asked.request)
        found.append((kind, Job(JobId(str(number)), "ann", gpus, unprofiled(gpus), float(number), request=request)))
    return found


@settings(max_examples=examples(150), deadline=None)
@given(nodes(), st.lists(asks, min_size=1, max_size=12), st.sampled_from(sorted(policy_names())))
def test_a_plan_gives_no_more_of_a_type_and_no_more_cpus_than_a_node_has(records, queue, name):
    cluster = ClusterState(SETTINGS, memory_consumed=False)
    cluster.update(records)
    jobs = jobs_of(queue, cluster)
    policy = make_policy(name, fabric=Fabric(1.25e9, 300e9), **SETTINGS.policy.chosen(policy_settings(name)))
    policy.cluster_changed(list(cluster.view.nodes), 0.0)
    for _, job in jobs:
        policy.submitted(job, job.submit_time)
    starts = [each for each in policy.decide(cluster.view.copy(), 100.0) if isinstance(each, Start)]

    taken, cpus, kinds = Counter(), Counter(), {job.id: kind for kind, job in jobs}
    for start in starts:
        servers = {server: cluster.view.by_name[server] for server in start.placement.gpus}
        assert kinds[start.job.id] in ("", *{node.gpu_type for node in servers.values()})
        assert len(set(map(host_of, servers))) == len(servers)  # so that the pin's node count is right
        for server, count in start.placement.gpus.items():
            taken[host_of(server), servers[server].gpu_type] += count
            cpus[host_of(server)] += count * start.job.request.cpus_per_gpu
    for record in records:
        for part in record.parts:
            assert taken[record.name, part.gpu_type] <= part.gpus - part.gpus_used
        assert cpus[record.name] <= record.cpus - record.cpus_used


@settings(max_examples=examples(150))
@given(nodes())
def test_the_parts_of_nodes_are_put_together_again(records):
    assert joined(part for record in records for part in record.parts) == records


servers = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(KINDS), st.integers(1, 4)), min_size=1, max_size=9)


@settings(max_examples=examples(150))
@given(servers, st.lists(st.integers(0, 8), max_size=8))
def test_what_jobs_take_from_the_stocks_of_a_node_they_give_back(found, picks):
    sizes = {part_name(f"n{host}", kind): gpus for host, kind, gpus in found}
    table = [Node(name, gpus, int(name[1]), name.partition(":")[2]) for name, gpus in sizes.items()]
    stock = {host_of(name): 16.0 for name in sizes}
    view, request = ClusterView(table, None, stock, stock), Request(cpus_per_gpu=2.0, memory_per_node=1.0)
    names = [list(sizes)[pick % len(sizes)] for pick in picks]
    taken = [{name: 1} for name in names if view.free[name] and view.take({name: 1}, request)]
    used = Counter(host_of(name) for gpus in taken for name in gpus)
    assert view.free_cpus == {host: 16.0 - 2 * used[host] for host in stock}
    assert view.free_memory == {host: 16.0 - used[host] for host in stock}
    for gpus in taken:
        view.give(gpus, request)
    assert (view.free_cpus, view.free_memory, view.free) == (stock, stock, sizes)


steps = st.lists(st.one_of(asks, st.integers(0, 20), st.just("restart")), min_size=1, max_size=15)
"""Jobs that are submitted, the picks of running ones that end, and restarts of asrptd."""


@settings(max_examples=examples(40), deadline=None)
@given(steps, st.sampled_from(["asrpt", "asrpt-gated"]))
def test_every_job_that_names_a_type_gets_it_and_none_is_refused(walk, policy):
    slurm = FakeSlurm((6, 6))
    slurm.table = [typed_node(name, index, {"a100": 2, "1g": 4}) for index, name in ((1, "n1"), (2, "n2"))]
    with tempfile.TemporaryDirectory(prefix="asrpt-types-") as folder:
        bench = Bench(Path(folder), slurm, policy=policy)
        asked = {}
        for step in walk:
            if step == "restart":
                bench.restart()
            elif isinstance(step, int):
                running = [r.job_id for r in slurm.records.values() if r.state == "RUNNING"]
                if running:
                    slurm.end(running[step % len(running)])
            elif step[0] in ("a100", "1g"):
                job_id = slurm.submit(step[1], tres_per_task=f"gres:gpu:{step[0]}:1")
                asked[job_id] = step[:2]
            bench.cycle()
            for (name, kind), used in slurm.used_by_type().items():
                assert used <= {"a100": 2, "1g": 4}[kind], name
        bench.cycle(2)
        for job_id, (kind, gpus) in asked.items():
            types = Counter()
            for each in slurm.records[job_id].gpus_by_type.values():
                types.update(each)
            assert +types == ({kind: gpus} if slurm.starts[job_id] else {}), job_id
            assert not bench.audit("not-started", job_id)
            too_large = gpus > {"a100": 4, "1g": 8}[kind]
            job = bench.scheduling.jobs.get(job_id)
            assert job is None or (job.state is JobState.LEFT_TO_SLURM) <= too_large
        bench.close()
