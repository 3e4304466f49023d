"""The lab's spec and its configuration files, as texts."""

import tomllib
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import FabricSettings, parse_settings
from slurm_asrpt.errors import InputError
from slurm_asrpt.lab import conf, topology, train
from slurm_asrpt.lab.spec import LabPaths, LabSpec, parse_nodes

ROOT = Path("/tmp/lab")


def spec(**options):
    return LabSpec(directory=ROOT, **options)


def slurm_conf(given, scripts=None, lua=False):
    return conf.slurm_conf(given, LabPaths(ROOT), "host", scripts or {}, lua).splitlines()


def test_nodes_of_several_groups_are_numbered_consecutively():
    nodes = parse_nodes("2x8:h100,1x2:a100+4:1g.10gb", base_port=17000)
    assert [(n.name, n.gpus, n.types, n.port) for n in nodes] == [
        ("n1", 8, (("h100", 8),), 17010),
        ("n2", 8, (("h100", 8),), 17011),
        ("n3", 6, (("a100", 2), ("1g.10gb", 4)), 17012),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read ''"),
        ("8", "cannot read '8'"),
        ("4y8", "cannot read '4y8'"),
        ("4x8,", "cannot read ''"),
        ("4x8:", "cannot read '4x8:'"),
        ("4x8:h100;rm", "cannot read"),
        ("4x8:h100 x", "cannot read"),
        ("0x8", "no node"),
        ("2x0", "valid: 1 to 64"),
        ("2x65", "valid: 1 to 64"),
        ("999999x1", "more than 1000 nodes"),
        ("1x2:t4,1x2", "give all GPUs a type"),
        ("1x2:t4+2", "give all GPUs a type"),
        ("1x2:t4+2:t4", "has a GPU type twice"),
        ("1x2:t4+0:a100", "valid: 1 to 64"),
        ("1x2:t4+", "cannot read"),
        ("٣x8", "cannot read"),
    ],
)
def test_bad_node_specs_are_errors_that_say_what_is_wrong(text, says):
    with pytest.raises(InputError, match="--nodes") as error:
        parse_nodes(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"base_port": 80},
        {"base_port": 65530},
        {"users": -1},
        {"users": 100},
        {"cpus": 0},
        {"memory_mb": 0},
        {"scheduler": "fifo"},
        {"partitions": ()},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(InputError):
        spec(**options)


@pytest.mark.parametrize("directory", ["/tmp/" + "x" * 60, "/tmp/a b", "/tmp/a\nSlurmUser=x", "/tmp/a#b"])
def test_a_directory_that_slurm_conf_cannot_contain_is_refused(directory):
    with pytest.raises(InputError):
        LabSpec(directory=Path(directory))


def test_a_spec_is_restored_from_its_json():
    given = spec(nodes="1x2:t4", settings={"daemon": {"mode": "shadow"}}, hooks_dir=Path("/x"), partitions=("a", "b"))
    assert LabSpec.from_json(given.to_json()) == given


@pytest.mark.parametrize(
    ("nodes", "names", "ports", "gres"),
    [
        ("2x4:h100,1x8:h100", ["n1", "n2", "n3"], ["17110", "17111", "17112"], ["4", "4", "8"]),
        ("40x4:h100,1x8:h100", ["n[1-40]", "n41"], ["[17110-17149]", "17150"], ["4", "8"]),
    ],
)
def test_nodes_have_distinct_ports_and_large_labs_fold_their_lines(nodes, names, ports, gres):
    lines = slurm_conf(spec(nodes=nodes, base_port=17100, cpus=16))
    found = [line.split() for line in lines if line.startswith("NodeName=")]
    assert [line[0] for line in found] == [f"NodeName={name}" for name in names]
    assert [line[3] for line in found] == [f"Port={port}" for port in ports]
    assert [line[-2] for line in found] == [f"Gres=gpu:h100:{gpus}" for gpus in gres]
    assert all("CoresPerSocket=16" in line for line in found)


def test_partitions_span_all_nodes_and_the_first_is_the_default():
    lines = [line for line in slurm_conf(spec(nodes="3x1")) if line.startswith("PartitionName")]
    assert [line.split()[:3] for line in lines] == [
        ["PartitionName=gpu", "Nodes=n[1-3]", "Default=YES"],
        ["PartitionName=other", "Nodes=n[1-3]", "Default=NO"],
    ]


def test_backfill_is_as_fast_as_slurm_allows():
    [parameters] = [line for line in slurm_conf(spec()) if line.startswith("SchedulerParameters=")]
    assert {"batch_sched_delay=0", "bf_interval=1", "bf_continue"} <= set(parameters.partition("=")[2].split(","))


def test_hook_scripts_and_extra_lines_are_optional():
    plain = slurm_conf(spec())
    assert not any(line.startswith(("JobSubmitPlugins", "Prolog")) for line in plain)
    full = slurm_conf(spec(slurm_conf_extra="MaxArraySize=7"), {"Prolog": ROOT / "p"}, lua=True)
    assert {"JobSubmitPlugins=lua", "Prolog=/tmp/lab/p", "MaxArraySize=7"} <= set(full)


def test_gpu_tres_and_fair_share_need_accounting():
    without = "\n".join(slurm_conf(spec(multifactor=True)))
    assert "AccountingStorageTRES" not in without  # slurmctld would not start
    assert "PriorityWeightFairshare" not in without
    with_it = "\n".join(slurm_conf(spec(multifactor=True, accounting=True)))
    assert "AccountingStorageTRES=gres/gpu" in with_it
    assert "PriorityWeightFairshare" in with_it


def test_gres_conf_groups_equal_adjacent_nodes():
    text = conf.gres_conf(spec(nodes="2x8:h100,1x1:t4,1x8:h100"), LabPaths(ROOT))
    assert text.splitlines() == [
        "NodeName=n[1-2] Name=gpu Type=h100 File=/tmp/lab/dev/gpu[0-7]",
        "NodeName=n3 Name=gpu Type=t4 File=/tmp/lab/dev/gpu0",
        "NodeName=n4 Name=gpu Type=h100 File=/tmp/lab/dev/gpu[0-7]",
    ]


def test_a_node_may_have_several_gpu_types():
    given = spec(nodes="2x2:a100+4:1g.10gb")
    assert sum("Gres=gpu:a100:2,gpu:1g.10gb:4 " in line for line in slurm_conf(given)) == 2
    assert conf.gres_conf(given, LabPaths(ROOT)).splitlines() == [
        "NodeName=n[1-2] Name=gpu Type=a100 File=/tmp/lab/dev/gpu[0-1]",
        "NodeName=n[1-2] Name=gpu Type=1g.10gb File=/tmp/lab/dev/gpu[2-5]",
    ]


def test_asrpt_toml_is_valid_and_has_all_paths_in_the_lab():
    given = spec(settings={"daemon": {"mode": "order"}, "policy": {"tau": 0.5}})
    settings = parse_settings(tomllib.loads(conf.toml(conf.lab_settings(given, LabPaths(ROOT)))), "lab")
    assert (settings.daemon.mode, settings.daemon.interval_s, settings.policy.tau) == ("order", 1.0, 0.5)
    folders = (settings.paths.state, settings.paths.run, settings.paths.hook, settings.paths.spool)
    assert all(folder.is_relative_to(ROOT) for folder in folders)
    assert settings.slurm.partitions == ["gpu"]


def test_asrptd_waits_as_long_for_an_answer_on_a_fast_clock():
    for speed, seconds in ((1.0, 30.0), (60.0, 1800.0)):
        tables = conf.lab_settings(spec(speed=speed), LabPaths(ROOT))
        assert parse_settings(tomllib.loads(conf.toml(tables)), "lab").slurm.timeout_s == seconds


def test_train_and_the_daemon_have_the_same_fabric_by_default():
    fabric = FabricSettings()
    assert (fabric.inter_bytes_per_s, fabric.intra_bytes_per_s) == (train.DEFAULT_INTER, train.DEFAULT_INTRA)
    table = conf.lab_settings(spec(), LabPaths(ROOT))["fabric"]
    assert FabricSettings(**table) == fabric


@pytest.mark.parametrize(
    ("form", "nodes", "lines"),
    [
        (
            "tree:2x4",
            8,
            ["leaf1 Nodes=n[1-4]", "leaf2 Nodes=n[5-8]", "spine1 Switches=leaf[1-2]"],
        ),
        (
            "tree:2x2x1",
            4,
            [
                *("leaf1 Nodes=n1", "leaf2 Nodes=n2", "leaf3 Nodes=n3", "leaf4 Nodes=n4"),
                *("spine1 Switches=leaf[1-2]", "spine2 Switches=leaf[3-4]", "core1 Switches=spine[1-2]"),
            ],
        ),
        ("tree:3", 3, ["leaf1 Nodes=n[1-3]"]),
    ],
)
def test_a_tree_is_written_from_its_leaves_to_its_root(form, nodes, lines):
    assert topology.topology_conf(form, nodes).splitlines() == [f"SwitchName={line}" for line in lines]


def test_blocks_have_their_size():
    lines = ["BlockName=block1 Nodes=n[1-4]", "BlockName=block2 Nodes=n[5-8]", "BlockSizes=4"]
    assert topology.topology_conf("block:4", 8).splitlines() == lines


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("tree", "cannot read 'tree'"),
        ("tree:2x", "cannot read"),
        ("tree:2x2x2x2", "cannot read"),
        ("ring:4", "cannot read"),
        ("tree:٣", "cannot read"),
        ("tree:2x4\n", "cannot read"),
        ("tree:0x4", "nothing below it"),
        ("block:0", "nothing below it"),
        ("tree:2x4", "needs 8 nodes, but --nodes has 6"),
        ("block:4", "needs a multiple of 4 nodes, but --nodes has 6"),
    ],
)
def test_a_topology_of_another_form_or_size_is_refused_in_one_line(form, says):
    with pytest.raises(InputError, match="--topology") as error:
        spec(nodes="6x4", topology=form)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("form", "plugin", "beyond"),
    [
        ("tree:2x3", "topology/tree", [1.25e9 / 4]),
        ("tree:1x2x3", "topology/tree", [1.25e9 / 4, 1.25e9 / 16]),
        ("tree:6", "topology/tree", []),
        ("block:3", "topology/block", [1.25e9 / 4]),
        ("block:6", "topology/block", []),
    ],
)
def test_each_level_of_a_lab_has_a_quarter_of_the_bandwidth_of_the_one_below(form, plugin, beyond):
    given = spec(nodes="6x4", topology=form)
    assert f"TopologyPlugin={plugin}" in slurm_conf(given)
    settings = parse_settings(tomllib.loads(conf.toml(conf.lab_settings(given, LabPaths(ROOT)))), "lab")
    assert settings.fabric.beyond_bytes_per_s == beyond
    assert LabSpec.from_json(given.to_json()) == given


def test_the_lua_file_names_the_module_and_the_hook_directory():
    assert 'dofile("/tmp/lab/etc/job_submit_asrpt.lua").open("/tmp/lab/asrpt/hook")' in conf.lua_conf(LabPaths(ROOT))


def test_down_may_delete_all_top_level_directories_of_the_lab():
    tops = {folder.name for folder in LabPaths(ROOT).top_level()}
    assert tops == {"etc", "log", "pids", "munge", "dev", "ctld", "d", "db", "asrpt", "lib", "bin", "home"}


@pytest.mark.parametrize(
    ("release", "there", "text"),
    [
        ((24, 11), True, "CgroupPlugin=disabled\n"),
        ((22, 5), True, "IgnoreSystemdOnFailure=yes\n"),
        ((22, 5), False, "IgnoreSystemdOnFailure=yes\n"),
    ],
)
def test_a_lab_needs_no_systemd_for_cgroups(release: tuple[int, int], there: bool, text: str, tmp_path: Path) -> None:
    if there:
        (tmp_path / "cgroup.controllers").touch()
    assert conf._cgroup_conf(release, tmp_path) == text
    assert (tmp_path / "system.slice").exists() == (there and release < (23, 11))
