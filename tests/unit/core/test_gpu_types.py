"""GPU types: asrpt-gated rule by rule on a mixed cluster, and speeds in profiles and settings."""

from dataclasses import replace

import pytest

from slurm_asrpt.config.settings import parse_settings
from slurm_asrpt.core.cluster import ClusterView, Node
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.schema import format_profile, load_file, parse_file
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.metrics import bounds
from slurm_asrpt.sim.scenario import parse_types
from slurm_asrpt.sim.workload import build, offered_load
from slurm_asrpt.traces.synthetic import pai_like
from tests.benches.gated import Bench, job

TALKS = JobProfile("talks", (Stage(2, 0.05, 0.05, bytes_in=0, param_bytes=3e11),))  # 0.1 s of its 1.1 s is computation


class Mixed(Bench):
    """n0, n1 ... with types of these speeds and four GPUs each."""

    def __init__(self, **speeds):
        super().__init__(4)
        nodes = [Node(f"n{i}", 4, i, name, speed) for i, (name, speed) in enumerate(speeds.items())]
        self.view = ClusterView(nodes)
        self.policy.cluster_changed(nodes, 0.0)


def test_the_fastest_free_type_is_used_and_no_job_waits_for_a_faster_one():
    bench = Mixed(v100=0.5, h100=2.0)
    bench.submit(job("1", 4, 100), job("2", 4, 110))
    assert bench.decide() == {"1": {"n1": 4}, "2": {"n0": 4}}
    assert [bench.placed[name].placement.alpha for name in ("1", "2")] == [0.5, 2.0]


def test_a_communication_bound_job_leaves_the_fast_gpus_to_others():
    bench = Mixed(v100=0.9, h100=2.0)
    assert bench.submit(job("1", iterations=10, profile=TALKS)).decide() == {"1": {"n0": 2}}


def test_a_job_waits_for_the_type_on_which_its_time_limit_is_enough():
    bench = Mixed(v100=0.5, h100=2.0)
    bench.occupy("a", 50.0, n1=4)
    short = replace(job("1", 4, 100), time_limit=60.0)  # 50 s on an H100, 200 s on a V100
    assert bench.submit(short, job("2", 4, 100)).decide() == {"2": {"n0": 4}}
    assert bench.policy.reservation.mask == 0b10


def test_a_blocked_job_reserves_the_type_on_which_it_ends_first():
    bench = Mixed(v100=0.5, h100=2.0)
    bench.occupy("a", 10.0, n0=3)
    bench.occupy("b", 100.0, n1=3)
    bench.submit(job("1", 4, 100)).decide()  # ends on n0 at 10 + 200 s, on n1 at 100 + 50 s
    assert bench.policy.reservation.mask == 0b10


def test_a_job_mixes_types_only_if_none_can_hold_it_and_runs_at_the_slowest_speed():
    bench = Mixed(v100=0.5, h100=2.0)
    assert bench.submit(job("1", 8, 100)).decide() == {"1": {"n0": 4, "n1": 4}}
    assert bench.placed["1"].placement.speed == 0.5


SPEEDS = '\n[[gpu_type]]\nname = "h100"\nspeed = 2.5\norigin = "measured on n3"\n'


def test_a_profile_has_speeds_with_their_origin():
    text = format_profile(load_file("vgg19-dp4", ()))
    found = parse_file(text + SPEEDS, "x.toml")
    assert found.profile.speeds == (("h100", 2.5),)
    assert parse_file(format_profile(found), "x.toml") == found
    wrong = {"speed = 2.5": "speed = 0", 'name = "h100"': 'name = "a b"', 'origin = "measured on n3"': ""}
    for good, bad in wrong.items():
        with pytest.raises(InputError, match=r"x\.toml: line"):
            parse_file(text + SPEEDS.replace(good, bad), "x.toml")
    with pytest.raises(InputError, match="each once"):
        parse_file(text + SPEEDS + SPEEDS, "x.toml")


def test_speeds_in_a_profile_override_those_of_the_site():
    bench = Mixed(v100=0.5, h100=2.0)
    own = JobProfile("own", (Stage(4, 1.0, 0.0),), speeds=(("v100", 4.0),))
    assert bench.submit(job("1", iterations=10, profile=own)).decide() == {"1": {"n0": 4}}
    assert bench.placed["1"].placement.alpha == 0.25


def test_the_sites_speeds_are_positive():
    assert parse_settings({"gpu": {"speeds": {"h100": 2}}}, "x").gpu.speeds == {"h100": 2.0}
    with pytest.raises(InputError, match=r"gpu\.speeds\.h100"):
        parse_settings({"gpu": {"speeds": {"h100": 0}}}, "x")


def test_a_mixed_cluster_is_described_by_servers_types_and_speeds():
    types = parse_types("3:h100:2.28, 1:v100:0.42")
    nodes = Cluster(4, types=types).nodes
    assert sorted((node.gpu_type, node.speed) for node in nodes) == [("h100", 2.28)] * 3 + [("v100", 0.42)]
    for wrong in ("h100", "3:h100", "3:h100:fast", ","):
        with pytest.raises(InputError, match="SERVERS:TYPE:SPEED"):
            parse_types(wrong)
    with pytest.raises(ValueError, match="4 servers have a type"):
        Cluster(5, types=types)


def test_work_and_load_are_in_reference_gpus():
    cluster = Cluster(6, types=((3, "h100", 2.0), (3, "a100", 1.0)))
    made = build(pai_like(400, seed=3), cluster, Options(load=0.9, seed=3))
    plain = build(pai_like(400, seed=3), Cluster(6), Options(load=0.9, seed=3))
    assert made.table.iterations.tolist() == plain.table.iterations.tolist()
    assert offered_load(made.table, cluster) == pytest.approx(0.9)
    result = simulate_named("asrpt-gated", cluster.nodes, made.table, cluster.fabric)
    assert bounds(made.table, cluster)["sound"] <= result.completion_times.mean()
