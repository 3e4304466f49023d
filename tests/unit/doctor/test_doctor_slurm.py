"""asrpt-admin doctor: findings about Slurm, the hook in Slurm, and permissions."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slurm_asrpt_cli.admin import app
from typer.testing import CliRunner

from slurm_asrpt import __version__, switch
from slurm_asrpt.config.settings import Mode, Settings, parse_settings
from slurm_asrpt.doctor import Snapshot, State, checks, examine, take_snapshot
from slurm_asrpt.hook.hook_conf import WAKEUP
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.job_submit import PLUGIN
from slurm_asrpt.install.site import placed
from slurm_asrpt.install.slurm_conf import SCRIPTS
from slurm_asrpt.shipped import HOOKS, shipped
from slurm_asrpt.slurm.parse import parse_config, parse_config_time
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.topology import Topology
from slurm_asrpt.status.document import JobStatus, Status, write_status
from tests.benches.fake_slurm import node, typed_node

NOW = 1_800_000_000.0
RECORDED = Path(__file__).parents[2] / "recorded"
TAG = Tag("0123456789abcdef").format()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = {name: str(tmp_path / name) for name in ("state", "run", "hook", "scripts", "spool")}
    for name, path in paths.items():
        Path(path).mkdir(mode=0o700 if name == "state" else 0o755)
    return parse_settings({"paths": paths, "daemon": {"mode": "enforce"}}, "test")


def status_of(settings: Settings, mode: str, *queued: str, ahead: Sequence[str] = ()) -> None:
    rows = [
        JobStatus(
            *(job, "train", "u", "gpu", 1, "", "", 0, NOW, "delayed", "gpus", "", {}, {}, rank),
            released_ahead=job in ahead,
        )
        for rank, job in enumerate(queued, start=1)
    ]
    write_status(settings.paths.run, Status(NOW, mode, "asrpt", 5.0, 8, 8, rows, release=__version__))


def job(job_id: str, lease: float = 600.0, tag: str = TAG, age: float = 60.0, **more: object) -> JobRecord:
    record = JobRecord(
        job_id, "train", "u", 1001, "gpu", "PENDING", "BeginTime", NOW - age, tres_per_job="gres:gpu:1",
        eligible_time=NOW + lease, priority=1, admin_comment=tag,
    )  # fmt: skip
    return replace(record, **more)  # type: ignore[arg-type]


@pytest.fixture
def snapshot(settings: Settings, tmp_path: Path) -> Snapshot:
    """A sound installation on the recorded lab."""
    config = parse_config((RECORDED / "22.05" / "config.txt").read_text())
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / PLUGIN).touch()
    (tmp_path / "job_submit.lua").write_bytes(shipped(HOOKS, "job_submit.lua"))
    (settings.paths.scripts / job_submit.MODULE).write_bytes(shipped(HOOKS, job_submit.MODULE))
    config |= {"SLURM_CONF": str(tmp_path / "slurm.conf"), "PluginDir": str(tmp_path / "plugins")}
    config["SlurmUser"] = f"me({os.getuid()})"
    for key, name in SCRIPTS.items():
        script = settings.paths.scripts / name
        script.write_bytes(placed(name, settings.paths))
        script.chmod(0o755)
        config[key] = str(script)
    status_of(settings, "enforce", "1", "2")
    (settings.paths.hook / WAKEUP).touch()
    os.utime(settings.paths.hook / WAKEUP, (NOW, NOW))
    return Snapshot(config, (-0.5, 0.6), [node("n1", 0, 4), node("n2", 1, 4)], [job("1"), job("2")])


def findings_of(settings: Settings, snapshot: Snapshot, check: str) -> list[tuple[State, str]]:
    """The findings of a check, each with its remedy."""
    findings = [f for f in examine(settings, NOW, snapshot) if f.check == check]
    assert all(f.remedy for f in findings if f.state is not State.OK)
    return [(f.state, f"{f.text} -> {f.remedy}") for f in findings]


def with_config(snapshot: Snapshot, **changes: str) -> Snapshot:
    return replace(snapshot, config={**snapshot.config, **changes})


NOT_SLURM = ("hook", "table", "model", "drift")


def test_a_sound_installation_has_no_findings(settings: Settings, snapshot: Snapshot) -> None:
    findings = [f for f in examine(settings, NOW, snapshot) if f.check not in NOT_SLURM]
    assert {f.state for f in findings} == {State.OK}, findings
    assert len(findings) == 16


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_the_configuration_of_each_release_is_read(settings: Settings, snapshot: Snapshot, release: str) -> None:
    text = (RECORDED / release / "config.txt").read_text()
    config = parse_config(text) | {key: snapshot.config[key] for key in ("SLURM_CONF", "PluginDir", "SlurmUser")}
    for key in SCRIPTS:
        config[f"{key}[0]" if f"{key}[0]" in config else key] = snapshot.config[key]
    findings = [f for f in examine(settings, NOW, replace(snapshot, config=config)) if f.check not in NOT_SLURM]
    assert {f.state for f in findings} == {State.OK}, findings
    assert parse_config_time(text) > 1_700_000_000


def test_a_slurm_that_does_not_answer_is_a_single_finding(settings: Settings) -> None:
    (only,) = [f for f in examine(settings, NOW, Snapshot(trouble="scontrol failed: away")) if f.check == "slurm"]
    assert (only.state, only.text) == (State.FAILURE, "scontrol failed: away")


@pytest.mark.parametrize(
    ("changes", "check", "state", "words"),
    [
        ({"SLURM_VERSION": "21.08.8"}, "slurm", State.FAILURE, "older than 22.05"),
        ({"JobSubmitPlugins": "(null)"}, "lua", State.FAILURE, "JobSubmitPlugins=lua"),
        ({"JobSubmitPlugins": "lua,throttle"}, "lua", State.WARNING, "JobSubmitPlugins=throttle,lua"),
        ({"PluginDir": "/nowhere"}, "lua", State.WARNING, "if this is the controller"),
        ({"SLURM_CONF": "/nowhere/slurm.conf"}, "include", State.WARNING, "if this is the controller"),
        ({"GresTypes": "(null)"}, "slurm.conf", State.FAILURE, "GresTypes=gpu"),
        ({"SelectType": "select/linear"}, "slurm.conf", State.FAILURE, "cons_tres"),
        ({"Prolog": "(null)"}, "slurm.conf", State.WARNING, "asrpt-prolog"),
        (
            {"PreemptType": "preempt/partition_prio", "PreemptMode": "GANG,SUSPEND"},
            *("preemption", State.WARNING, "PreemptMode=REQUEUE or CANCEL"),
        ),
        ({"PrologFlags": "Alloc,NoHold"}, "prolog", State.WARNING, "NoHold"),
        ({"MinJobAge": "5 sec"}, "memory", State.WARNING, "MinJobAge=300"),
        ({"MaxJobCount": "2"}, "room", State.WARNING, "2 of at most 2"),
        ({"SchedulerParameters": "sched_min_interval=20000000"}, "pace", State.WARNING, "may take 20 s"),
        ({"SchedulerParameters": "defer,batch_sched_delay=15"}, "pace", State.WARNING, "batch_sched_delay"),
        ({"SchedulerParameters": "sched_interval=-1"}, "pace", State.WARNING, "may take 30 s"),
        (
            {"SchedulerParameters": "sched_interval=-1", "SchedulerType": "sched/builtin"},
            *("pace", State.FAILURE, "no job starts"),
        ),
        (
            {"PriorityType": "priority/multifactor", "PriorityWeightAge": "4000000000"},
            *("priority", State.WARNING, "add up to 4e+09"),
        ),
        (
            {"PriorityType": "priority/multifactor", "PriorityWeightQOS": "100000000"},
            *("priority", State.WARNING, "add up to 1e+08"),
        ),
        (
            {"PriorityType": "priority/multifactor", "PrioritySiteFactorPlugin": "site_factor/example"},
            *("priority", State.WARNING, "overwrites"),
        ),
        ({"SlurmUser": "nobody(65534)"}, "permissions", State.FAILURE, "chown nobody"),
    ],
)
def test_conflicting_settings_of_slurm_are_found(settings, snapshot, changes, check, state, words) -> None:
    if check == "permissions" and os.getuid() == 0:
        os.chown(settings.paths.state, 4711, -1)
    findings = findings_of(settings, with_config(snapshot, **changes), check)
    assert state in [s for s, _ in findings]
    assert any(words in text for _, text in findings)


def test_fast_schedulers_have_no_finding(settings: Settings, snapshot: Snapshot) -> None:
    for parameters in ("defer,sched_min_interval=2000000", "sched_interval=-1,bf_interval=5", "(null)"):
        assert findings_of(settings, with_config(snapshot, SchedulerParameters=parameters), "pace") == []


def test_slurm_counts_the_age_of_leased_jobs_only_with_accrue_always(settings: Settings, snapshot: Snapshot) -> None:
    weighs = {"PriorityType": "priority/multifactor", "PriorityWeightAge": "1000"}
    enforce = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"mode": Mode.ENFORCE})})
    order = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"mode": Mode.ORDER})})
    ((state, text),) = findings_of(enforce, with_config(snapshot, **weighs), "age")
    assert (state, "ACCRUE_ALWAYS" in text) == (State.WARNING, True)
    assert findings_of(order, with_config(snapshot, **weighs), "age") == []
    for other in ({"PriorityFlags": "DEPTH_OBLIVIOUS,ACCRUE_ALWAYS"}, {"PriorityWeightAge": "0"}):
        assert findings_of(enforce, with_config(snapshot, **weighs | other), "age") == []


def test_powered_down_cloud_nodes_must_be_visible(settings: Settings, snapshot: Snapshot) -> None:
    saving = {"SuspendProgram": "/etc/slurm/suspend"}
    ((state, text),) = findings_of(settings, with_config(snapshot, **saving, PrivateData="jobs"), "cloud")
    assert (state, "State=CLOUD" in text) == (State.WARNING, True)
    assert findings_of(settings, with_config(snapshot, **saving, PrivateData="cloud,jobs"), "cloud") == []
    assert findings_of(settings, with_config(snapshot, SuspendProgram="(null)"), "cloud") == []


def test_hlas_needs_requeue(settings: Settings, snapshot: Snapshot) -> None:
    forbidden = with_config(snapshot, JobRequeue="0")
    assert findings_of(settings, forbidden, "interrupt") == []
    policy = settings.policy.model_copy(update={"name": "hlas"})
    hlas = settings.model_copy(update={"policy": policy})
    ((state, text),) = findings_of(hlas, forbidden, "interrupt")
    assert (state, "--requeue" in text, "JobRequeue=1" in text) == (State.WARNING, True, True)
    assert findings_of(hlas, with_config(snapshot, JobRequeue="1"), "interrupt") == []


@pytest.mark.parametrize("where", [{"partitions": ["gpu", "cpu"]}, {"partition_signals": {"cpu": "USR1"}}])
def test_partitions_whose_jobs_may_be_preempted_are_managed(
    settings: Settings, snapshot: Snapshot, where: dict[str, Any]
) -> None:
    """Under every policy: jobs yield to maintenance."""
    interrupt = settings.interrupt.model_copy(update=where)
    ((state, text),) = findings_of(settings.model_copy(update={"interrupt": interrupt}), snapshot, "interrupt")
    assert (state, "cpu is not managed" in text) == (State.FAILURE, True)


def test_mode_order_needs_multifactor(settings: Settings, snapshot: Snapshot) -> None:
    daemon = settings.daemon.model_copy(update={"mode": Mode.ORDER})
    assert findings_of(settings.model_copy(update={"daemon": daemon}), snapshot, "priority")[0][0] is State.FAILURE


def test_leases_that_are_not_renewed_are_found(settings: Settings, snapshot: Snapshot) -> None:
    for lease in (-5.0, 30.0, 180.0):
        weak = replace(snapshot, jobs=[job("1"), job("2", lease=lease)])
        assert findings_of(settings, weak, "leases")[0][0] is State.FAILURE
    assert findings_of(settings, replace(snapshot, jobs=[job("1"), job("2", lease=190.0)]), "leases")[0][0] is State.OK
    not_queued = replace(snapshot, jobs=[job("1"), job("3", lease=-5.0)])
    assert findings_of(settings, not_queued, "leases")[0][0] is State.OK
    status_of(settings, "enforce", "1", "2", ahead=["2"])
    assert findings_of(settings, weak, "leases")[0][0] is State.OK
    assert "1 waiting job with a valid lease, 1 released ahead" in findings_of(settings, weak, "leases")[0][1]
    status_of(settings, "disabled", "1", "2")
    assert findings_of(settings, weak, "leases")[0] == (State.OK, "none are used in mode disabled -> ")
    (settings.paths.run / "status.json").unlink()
    assert findings_of(settings, weak, "leases") == []
    assert findings_of(settings, weak, "asrptd")[0][0] is State.WARNING


TREE = Topology({"n1": ("leaf1", "top"), "n2": ("leaf2", "top")})
LEAF = Topology({"n1": ("leaf1",), "n2": ("leaf1",)})
BLOCKS = Topology({"n1": ("b1",), "n2": ("b2",)}, blocks=True)


@pytest.mark.parametrize(
    ("topology", "beyond", "state", "words"),
    [
        (Topology(), [], State.OK, "Slurm has none (topology/x): all nodes count as under one switch"),
        (LEAF, [], State.OK, "topology/x: 1 switch of level 1, 1 level in all, above 2 nodes"),
        (TREE, [1e9], State.OK, "topology/x: 2 switches of level 1, 2 levels in all, above 2 nodes"),
        (BLOCKS, [1e9], State.OK, "topology/x: 2 blocks, 1 level in all, above 2 nodes"),
        (Topology(), [1e9], State.WARNING, "but Slurm has no topology"),
        (TREE, [], State.WARNING, "counts all placements as equally fast"),
        (BLOCKS, [], State.WARNING, "counts all placements as equally fast"),
        (TREE, [1e9, 5e8], State.WARNING, "has 2 bandwidths, but Slurm's topology has 1 level above"),
        (Topology({"n1": ("leaf1",)}), [], State.WARNING, "1 node missing from Slurm's topology, e.g. n2"),
    ],
)
def test_the_settings_have_a_bandwidth_for_each_level_of_slurms_topology(
    settings: Settings, snapshot: Snapshot, topology: Topology, beyond: list[float], state: State, words: str
) -> None:
    fabric = settings.fabric.model_copy(update={"beyond_bytes_per_s": beyond})
    found = replace(with_config(snapshot, TopologyPlugin="topology/x"), topology=topology)
    ((is_state, text),) = findings_of(settings.model_copy(update={"fabric": fabric}), found, "topology")
    assert (is_state, words in text) == (state, True), text


@pytest.mark.parametrize(
    ("ahead", "state"),
    [((-1.2, 1.1), State.OK), ((5.0, 6.0), State.WARNING), ((-300.0, -299.0), State.FAILURE)],
)
def test_clock_differences_are_found(
    settings: Settings, snapshot: Snapshot, ahead: tuple[float, float], state: State
) -> None:
    ((is_state, text),) = findings_of(settings, replace(snapshot, ahead_s=ahead), "clock")
    assert is_state is state
    assert state is not State.FAILURE or "299 s behind" in text


def test_remedies_name_the_first_step_first(settings: Settings, snapshot: Snapshot, tmp_path: Path) -> None:
    """slurmctld does not start without job_submit.lua, and drains nodes whose prolog is missing."""
    bare = with_config(snapshot, JobSubmitPlugins="(null)", Prolog="(null)")
    assert "install" not in findings_of(settings, bare, "lua")[0][1] + findings_of(settings, bare, "slurm.conf")[0][1]
    (tmp_path / "job_submit.lua").unlink()
    (settings.paths.scripts / SCRIPTS["Prolog"]).unlink()
    assert (
        "install --apply (without job_submit.lua slurmctld does not start" in findings_of(settings, bare, "lua")[0][1]
    )
    assert "install --apply, then copy" in findings_of(settings, bare, "slurm.conf")[0][1]


def test_wake_ups_that_do_not_come(settings: Settings, snapshot: Snapshot) -> None:
    assert findings_of(settings, snapshot, "wake-ups")[0][0] is State.OK
    path = settings.paths.hook / WAKEUP
    os.utime(path, (NOW - 90, NOW - 90))
    requeued = replace(snapshot, jobs=[job("7", restarts=1), job("8", tag="")])
    assert findings_of(settings, requeued, "wake-ups")[0][0] is State.OK, "the hook does not see these"
    [(state, text)] = findings_of(settings, snapshot, "wake-ups")
    assert state is State.WARNING
    assert f"chown SlurmUser {path}" in text
    path.unlink()
    [(state, text)] = findings_of(settings, snapshot, "wake-ups")
    assert (state, "restart asrptd" in text) == (State.WARNING, True)


def test_an_untagged_job_before_later_tagged_ones_needs_no_action(settings: Settings, snapshot: Snapshot) -> None:
    bare = job("7", tag="", age=20)
    [(_, last)] = findings_of(settings, replace(snapshot, jobs=[job("1"), bare]), "tags")
    [(_, fixed)] = findings_of(settings, replace(snapshot, jobs=[job("1"), bare, job("8", age=10)]), "tags")
    assert "the last one 7" in last
    assert ("fixed" in last, "fixed (1 later job with a tag)" in fixed) == (False, True)


def test_missing_tags_show_that_the_hook_does_not_run(settings: Settings, snapshot: Snapshot) -> None:
    bare = job("7", tag="", age=10)
    cases = {
        State.FAILURE: [bare],
        State.WARNING: [bare, job("1")],
        State.OK: [job("1"), replace(bare, submit_time=NOW - 7200), replace(bare, partition="gpu,other")],
    }
    for state, jobs in cases.items():
        assert findings_of(settings, replace(snapshot, jobs=jobs), "tags")[0][0] is state
    started = with_config(
        replace(snapshot, jobs=[bare]), BOOT_TIME=f"{NOW - 5:.0f}"
    )  # slurmctld started after that job, with the hook
    assert findings_of(settings, started, "tags")[0][0] is State.OK


def test_missing_and_outdated_includes_are_found(settings: Settings, snapshot: Snapshot, tmp_path: Path) -> None:
    script, module = tmp_path / "job_submit.lua", settings.paths.scripts / job_submit.MODULE
    os.utime(script, (1000, 1000))
    assert "touch" in findings_of(settings, snapshot, "include")[0][1]
    module.write_text("return {}")
    assert "not of this release" in findings_of(settings, snapshot, "include")[0][1]
    module.unlink()
    assert findings_of(settings, snapshot, "include")[0][0] is State.OK  # this script loads it from another path
    script.write_bytes(b"dofile('%s/x.lua') " % bytes(settings.paths.scripts) + script.read_bytes())
    assert findings_of(settings, snapshot, "include")[0][0] is State.FAILURE
    script.write_text("function slurm_job_submit() end\n")
    assert findings_of(settings, snapshot, "include")[0][0] is State.FAILURE
    script.write_text("-- >>> slurm-asrpt\n")
    assert "by hand" in findings_of(settings, snapshot, "include")[0][1]


def test_a_module_loaded_from_another_path_is_checked_there(
    settings: Settings, snapshot: Snapshot, tmp_path: Path
) -> None:
    script, module = tmp_path / "job_submit.lua", tmp_path / job_submit.MODULE
    script.write_text(f'local asrpt = dofile("{module}").open("/var/lib/asrpt-hook")\n')
    assert findings_of(settings, snapshot, "include")[0][0] is State.FAILURE
    module.write_text("return {}")  # of the previous release: an upgrade replaces only the one in paths.scripts
    state, text = findings_of(settings, snapshot, "include")[0]
    assert (state, f"cp {settings.paths.scripts / job_submit.MODULE} {module}" in text) == (State.WARNING, True)
    module.write_bytes(shipped(HOOKS, job_submit.MODULE))
    assert findings_of(settings, snapshot, "include")[0][0] is State.OK


def test_includes_that_do_not_load_or_are_redefined_are_found(
    settings: Settings, snapshot: Snapshot, tmp_path: Path
) -> None:
    script, block = (
        tmp_path / "job_submit.lua",
        b"-- >>> slurm-asrpt\ndofile('job_submit_asrpt.lua')\n-- <<< slurm-asrpt\n",
    )
    script.write_bytes(block)
    assert findings_of(settings, snapshot, "include")[0][0] is State.OK
    for more in (b"function slurm_job_submit(a, b, c) return 0 end\n", b"slurm_job_submit = function() end\n"):
        script.write_bytes(block + more)
        assert "redefines slurm_job_submit" in findings_of(settings, snapshot, "include")[0][1]
        script.write_bytes(more + block + b"-- function slurm_job_submit()\nreturn slurm.SUCCESS\n")
        assert findings_of(settings, snapshot, "include")[0][0] is State.OK
    (tmp_path / "plugins" / PLUGIN).write_bytes(b"\0liblua5.1.so.0\0")  # the Lua that it links
    script.write_bytes(b"function broken(\n" + block)
    state, text = findings_of(settings, snapshot, "include")[0]
    assert (state, "fail to start after a restart" in text, f"fix {script}" in text) == (State.FAILURE, True, True)


def test_missing_outdated_and_non_executable_prologs_are_found(settings: Settings, snapshot: Snapshot) -> None:
    prolog = settings.paths.scripts / "asrpt-prolog"
    prolog.write_text("#!/bin/sh\n")
    assert "not of this release" in findings_of(settings, snapshot, "scripts")[0][1]
    prolog.chmod(0o644)
    said = f"{prolog} is not executable -> chmod 755 {prolog}"
    assert findings_of(settings, snapshot, "scripts")[0] == (State.FAILURE, said)
    prolog.unlink()
    ((state, text),) = findings_of(settings, snapshot, "scripts")
    assert state is State.WARNING
    assert "Slurm drains nodes without it" in text
    assert findings_of(settings, with_config(snapshot, **dict.fromkeys(SCRIPTS, "(null)")), "scripts") == []


UNITS = {
    "good": [(State.OK, "are active and enabled")],
    "absent": [(State.WARNING, "does not know asrptd.service (not-found)"), (State.WARNING, "asrpt-retrain.timer")],
    "stopped": [
        (State.FAILURE, "systemctl start asrptd.service"),
        (State.WARNING, "systemctl enable asrptd.service"),
        (State.FAILURE, "systemctl start asrpt-retrain.timer"),
        (State.WARNING, "systemctl enable asrpt-retrain.timer"),
    ],
    "changed": [(State.WARNING, "systemctl daemon-reload; systemctl restart asrptd.service")],
    "failed": [(State.FAILURE, "asrptd.service has failed (exit-code) -> journalctl -u asrptd.service")],
}


@pytest.mark.parametrize(("case", "expected"), UNITS.items())
def test_states_of_systemd_units_are_reported(
    settings: Settings, snapshot: Snapshot, case: str, expected: list[tuple[State, str]]
) -> None:
    answer = checks.parse_units((RECORDED / "systemd" / f"{case}.txt").read_text())
    for looked in (replace(snapshot, units=answer), Snapshot(trouble="away", units=answer)):
        said = findings_of(settings, looked, "units")
        assert [state for state, _ in said] == [state for state, _ in expected]
        assert all(words in text for (_, text), (_, words) in zip(said, expected, strict=True))


def test_without_systemd_units_are_not_reported(
    settings: Settings, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.read_units() == []
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\necho 'System has not been booted with systemd as init system' >&2; exit 1\n")
    program.chmod(0o755)
    assert checks.read_units() == []
    assert findings_of(settings, snapshot, "units") == []


def test_nodes_without_usable_gpus_are_found(settings: Settings, snapshot: Snapshot) -> None:
    nodes = list(snapshot.nodes)
    cases = {
        "partitions with nodes: other": [replace(n, partitions=frozenset({"other"})) for n in nodes],
        "no node of the managed partitions has GPUs": [replace(n, gpus=0) for n in nodes],
        "some have none": [replace(nodes[0], gpu_type="h100"), nodes[1]],
        "asrptd does not use them": [replace(nodes[0], other_gres=True), nodes[1]],
    }
    for words, changed in cases.items():
        ((state, text),) = findings_of(settings, replace(snapshot, nodes=changed), "gpus")
        assert state is not State.OK
        assert words in text


def test_gpus_of_nodes_with_several_types_have_types(settings: Settings, snapshot: Snapshot) -> None:
    several = typed_node("n1", 0, {"a100": 2, "1g.10gb": 4})
    for other, state in (("h100", State.OK), ("", State.WARNING)):
        nodes = [several, replace(snapshot.nodes[1], gpu_type=other)]
        ((found, _),) = findings_of(settings, replace(snapshot, nodes=nodes), "gpus")
        assert found is state


def test_files_that_others_can_write_are_found(settings: Settings, snapshot: Snapshot) -> None:
    module = settings.paths.scripts / job_submit.MODULE
    module.chmod(0o664)
    assert f"chmod go-w {module}" in findings_of(settings, snapshot, "permissions")[0][1]
    module.chmod(0o644)
    settings.paths.state.chmod(0o755)
    assert findings_of(settings, snapshot, "permissions")[0][0] is State.WARNING


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which takes root")
def test_files_that_root_runs_must_be_owned_by_root(settings: Settings, snapshot: Snapshot) -> None:
    for path in (settings.paths.scripts, settings.paths.scripts / job_submit.MODULE):
        os.chown(path, 1, 1)
        slurms = with_config(snapshot, SlurmUser="daemon(1)")
        ((state, text),) = findings_of(settings, slurms, "permissions")
        assert state is State.FAILURE
        assert text == f"{path} is owned by user 1, but root runs it on the nodes -> chown root {path}"
        os.chown(path, 0, 0)


def test_a_disabled_asrptd_is_a_warning(settings: Settings, snapshot: Snapshot) -> None:
    switch.turn_off(settings.paths.state)
    assert findings_of(settings, snapshot, "switch") == [
        (State.WARNING, "asrptd is disabled and writes nothing to Slurm -> asrpt-admin enable")
    ]


def test_a_missing_slurm_conf_is_reported_at_once(tmp_path: Path) -> None:
    settings = parse_settings({"slurm": {"conf": str(tmp_path / "slurm.conf")}}, "test")
    assert "slurm.conf does not exist" in take_snapshot(settings).trouble


def fake_slurm(folder: Path) -> Path:
    """scontrol and squeue with recorded answers and the present time."""
    folder.mkdir()
    data = RECORDED / "22.05"
    config = f"date '+Configuration data as of %Y-%m-%dT%H:%M:%S'; tail -n +2 {data}/config.txt"
    scontrol = f'case "$*" in *config*) {config} ;; *node*) cat {data}/nodes.txt ;; esac'
    squeue = f'case "$*" in *version*) echo slurm-wlm 22.05.8 ;; *) cat {data}/squeue.json ;; esac'
    for name, text in {"scontrol": scontrol, "squeue": squeue}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def test_very_many_tasks_of_arrays_are_read_slowly_from_23_02_on(settings: Settings, snapshot: Snapshot) -> None:
    many = replace(snapshot, jobs=[job(str(number)) for number in range(500)])
    tasks = replace(many, jobs=[*many.jobs, job("900", array_tasks="0-6000")])
    for version, of, expected in (("24.11.5", tasks, True), ("24.11.5", many, False), ("22.05.8", tasks, False)):
        found = findings_of(settings, with_config(of, SLURM_VERSION=version), "queue")
        assert any("6001 tasks of arrays are pending" in text for _, text in found) is expected


def test_the_doctor_command_prints_findings_and_json(settings: Settings, tmp_path: Path) -> None:
    paths = {name: str(tmp_path / name) for name in ("state", "run", "hook", "spool")}
    lines = ["[slurm]", f"bin_dir = {json.dumps(str(fake_slurm(tmp_path / 'bin')))}", "[paths]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in paths.items()]
    (tmp_path / "asrpt.toml").write_text("\n".join(lines))
    snapshot = take_snapshot(parse_settings({"slurm": {"bin_dir": str(tmp_path / "bin")}}, "test"))
    assert (len(snapshot.nodes), len(snapshot.jobs) > 0, snapshot.trouble) == (4, True, "")
    assert snapshot.ahead_s[0] <= 0 <= snapshot.ahead_s[1]
    done = CliRunner().invoke(app, ["doctor", "--json", "--config", str(tmp_path / "asrpt.toml")])
    assert done.exit_code == 1  # no heartbeat
    states = {finding["check"]: finding["state"] for finding in json.loads(done.stdout)}
    assert {"slurm": "ok", "clock": "ok", "hook": "failure"}.items() <= states.items()
    plain = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "asrpt.toml")]).stdout
    assert "-> start asrptd" in plain
