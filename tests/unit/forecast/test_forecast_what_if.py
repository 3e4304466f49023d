"""--what-if: a job script parsed as by sbatch, and when the policy would start it now."""

from __future__ import annotations

import json
import math
import os
import pwd
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli.status import command

from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.daemon.forecasts.nameless import without_names
from slurm_asrpt.daemon.what_if import simulated
from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.files import replace_file
from slurm_asrpt.forecast.conformal import MIN_STARTS, ConformityScore, StartConformal
from slurm_asrpt.forecast.sampling import Quantiles
from slurm_asrpt.forecast.snapshot import PUBLISHED, from_json, to_json
from slurm_asrpt.forecast.what_if import simulate_submission
from slurm_asrpt.hook.group import describe, keys_of
from slurm_asrpt.hook.table import FILE_NAME, Entry, render_table
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.predict.conformal import rounded_interval
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.gpu_defaults import GpuDefaults, as_counted
from slurm_asrpt.slurm.partitions import Names, Partition
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.request import asked_gpus, asks_for_no_gpus
from slurm_asrpt.slurm.sbatch import as_record, read_submission
from slurm_asrpt.status.document import read_status, write_status
from slurm_asrpt.status.reason_texts import text_of
from tests.benches.daemon import Bench
from tests.unit.forecast.test_forecast import NODES, NOW, snapshot, waiting

SCRIPT = (
    b"#!/bin/bash\n#SBATCH -J train\n#SBATCH -n4 --gpus-per-task=1\n#SBATCH --time 1:30:00\nsrun train\n#SBATCH -n9\n"
)


def record(words: str = "", script: bytes = SCRIPT) -> JobRecord:
    return as_record(read_submission(script, words.split()), "ann", 7, "gpu", NOW)


def test_a_script_is_parsed_as_by_sbatch() -> None:
    found = record()
    assert (found.tasks, found.tres_per_task, found.time_limit, found.partition) == (4, "gres:gpu:1", 5400.0, "gpu")
    assert read_submission(SCRIPT, ["-n", "8", "--lr", "1"][:2]).options["ntasks"] == "8"
    asked = read_submission(SCRIPT, ["--exclusive=user", "-pbig", "-n8", "--gpus", "a100:8", "run", "--lr", "0.1"])
    assert asked.args == ("run", "--lr", "0.1")
    made = as_record(asked, "ann", 7, "gpu", NOW)
    assert (made.exclusive, made.partition, made.tres_per_job) == ("user", "big", "gres:gpu:a100:8")


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("-N2", {"min_nodes": 2, "max_nodes": 2}),
        ("-N 2-4 --ntasks-per-node=8", {"min_nodes": 2, "max_nodes": 4, "tasks_per_node": 8}),
        ("-c 4", {"cpus": 16}),
        ("--gres=gpu:2", {"tres_per_node": "gres:gpu:2"}),
        ("-n1 --gpus=h100", {"tres_per_job": "gres:gpu:h100"}),
        ("-n8 --gpus=h100:8", {"tres_per_job": "gres:gpu:h100:8"}),
        ("-n2 --gpus=1g.10gb:2", {"tres_per_job": "gres:gpu:1g.10gb:2"}),
        ("--mem 16G", {"memory_per_node": 16384.0}),
        ("--mem-per-gpu=512M", {"memory_per_gpu": 512.0}),
        ("-w n1 -x n2 -C big", {"required_nodes": "n1", "excluded_nodes": "n2", "features": "big"}),
        ("-a 1-4 --reservation=r --contiguous", {"array_tasks": "1-4", "reservation": "r", "contiguous": True}),
        ("-d afterok:1", {"dependency": "afterok:1"}),
        ("--exclusive", {"exclusive": "node"}),
        ("--exclusive=topo", {"exclusive": "topo"}),
        ("-t 30", {"time_limit": 1800.0}),
        ("-t 1:30", {"time_limit": 90.0}),
        ("-t 2-12", {"time_limit": 216000.0}),
        ("-t 1-1:01:01", {"time_limit": 90061.0}),
        ("-t UNLIMITED", {"time_limit": 0.0}),
    ],
)
def test_options_become_a_job_record_as_in_slurm(words: str, fields: dict[str, object]) -> None:
    found = vars(record(words))
    assert {key: found[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--gpus=6 --gpus-per-node=2", {"min_nodes": 3, "max_nodes": 3, "tasks": 3}),
        ("--gpus=6 --gpus-per-task=1", {"min_nodes": 1, "max_nodes": 0, "tasks": 6}),
        ("-N3 -n2 --gpus=3", {"min_nodes": 2, "max_nodes": 2, "tasks": 2}),
        ("-N1-2 --gpus=1", {"min_nodes": 1, "max_nodes": 1}),
        ("-n8 --gpus-per-node=4 --gpus-per-task=1", {"min_nodes": 1, "tasks": 8, "tasks_per_node": 4}),
        ("-N2 --gres=gpu:a:4 --gpus-per-task=2", {"tasks": 4, "tasks_per_node": 2}),
        ("-N1-2 --gpus-per-node=2 --ntasks-per-gpu=1", {"tasks": 2, "max_nodes": 2}),
        ("-n8 --ntasks-per-node=4 -c5 --mincpus=8", {"cpus": 40, "min_cpus_per_node": 20}),
        ("-n8 --gpus-per-task=2 --ntasks-per-node=2 --cpus-per-gpu=3", {"min_cpus_per_node": 12}),
        ("-n1 -N2 --ntasks-per-node=2 -c2", {"min_cpus_per_node": 2}),
        ("-n4 --gpus=1 --ntasks-per-gpu=2", {"cpus": 4, "tasks": 2}),
    ],
)
def test_sbatch_derives_nodes_and_tasks_from_gpus(words: str, fields: dict[str, object]) -> None:
    found = vars(record(words, b"#!/bin/sh\n"))
    assert {key: found[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("-n4 --ntasks-per-gpu=2", {"tasks": 4, "tres": "gres/gpu=2"}),
        ("-N2 --ntasks-per-gpu=2", {"tasks": 4, "tres": "gres/gpu=2"}),
        ("-n1 --ntasks-per-gpu=2", {"tasks": 1, "tres": ""}),
    ],
)
def test_tasks_per_gpu_alone_mean_gpus(words: str, fields: dict[str, object]) -> None:
    """Slurm 22.05 shows these GPUs in its count only."""
    found = record(words, b"#!/bin/sh\n")
    assert {key: getattr(found, key) for key in fields} == fields
    assert asked_gpus(found) == (2 if found.tres else 0)
    assert asks_for_no_gpus(found) == (not found.tres)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--gpus=4 --gpus-per-task=1 -n2", "mean 4 tasks, not 2"),
        ("--gpus=4 --gpus-per-task=1 -N2", "mean 4 tasks, not 2"),
        ("--gpus=4 --gpus-per-task=1 -N2 --ntasks-per-node=4", "mean 4 tasks, not 8"),
        ("--gpus=4 --gpus-per-node=2 --gpus-per-task=1 -n2", "mean 4 tasks, not 2"),
        ("--gpus=4 --gpus-per-node=2 -N1", "mean 2 nodes, not 1"),
        ("--gpus=4 --gpus-per-node=3", "--gpus=4 is no multiple of --gpus-per-node=3"),
        ("--gpus=5 --gpus-per-task=2", "--gpus=5 is no multiple of --gpus-per-task=2"),
        ("--gpus-per-node=3 --gpus-per-task=2 -N1", "--gpus-per-node=3 is no multiple of --gpus-per-task=2"),
        ("--gpus-per-task=1", "needs the number of tasks"),
        ("--gpus-per-node=4 --gpus-per-task=1", "needs the number of tasks"),
        ("-n2 --gpus-per-task=1 --ntasks-per-gpu=1", "exclude each other"),
        ("-n3 --ntasks-per-gpu=2", "no multiple"),
        ("--ntasks-per-gpu=2", "needs the number of tasks or GPUs"),
    ],
)
def test_gpus_that_contradict_the_tasks_are_rejected_as_by_sbatch(words: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        record(words, b"#!/bin/sh\n")


@pytest.mark.parametrize(
    "words",
    [
        "--gpus=4 --gpus-per-task=1 -N1-2",
        "--gpus=4 --gpus-per-task=2 -N2",
        "--gpus=4 --gpus-per-task=1 --ntasks-per-node=2 -N2",
        "--gpus=4 --gpus-per-node=2 --gpus-per-task=1",
        "--gpus=4 --gpus-per-node=2 -n1",
        "--ntasks-per-node=2 --gpus-per-task=1",
        "-N2 --gpus-per-task=1",
        "--gpus-per-node=4 --gpus-per-task=1 -n2",
        "-n2 --gpus=4 --ntasks-per-gpu=1",
    ],
)
def test_gpus_and_tasks_that_sbatch_accepts_are_no_error(words: str) -> None:
    assert asked_gpus(record(words, b"#!/bin/sh\n"))


@pytest.mark.parametrize(
    "words",
    ["--bogus", "-N x", "-t soon", "--mem lots", "-n -1", "--ntasks", "--gpus=1.5", "--gpus=h100:1:1", "--gpus=8:8"]
    + [f"{option}{10**19}" for option in ("--gpus=", "--gpus=h100:", "--gres=gpu:", "-N ", "-n ")],
)
def test_options_that_sbatch_would_reject_are_rejected(words: str) -> None:
    with pytest.raises(InputError):
        record(words)


def newcomer(gpus: int = 2, seconds: float = 100.0) -> Job:
    return Job(JobId("x"), "u", gpus, unprofiled(gpus), seconds)


def span(alpha: float) -> Quantiles:
    return Quantiles(50.0, 100.0, 200.0)


@pytest.mark.parametrize("policy", policy_names())
def test_on_idle_nodes_it_starts_as_soon_as_the_policy_allows(policy: str) -> None:
    margins = StartConformal(MIN_STARTS * (ConformityScore(0.0, 0.0, 0.0),))
    idle = snapshot([], policy, free={node.name: 2 for node in NODES}, running=(), margins=margins)
    found = simulate_submission(idle, newcomer(), span)
    assert found.alpha_min == 1.0
    if found.placement is not None:
        assert sum(found.placement.gpus.values()) == 2
        assert (found.reason, found.start) == (None, None)
    else:  # the virtual machine serves it first
        assert found.reason is not None
        assert found.start is not None
        assert NOW < found.start.earliest <= found.start.latest < NOW + 200


@pytest.mark.parametrize("policy", policy_names())
def test_on_busy_nodes_it_waits_for_a_reason_and_starts_later(policy: str) -> None:
    found = simulate_submission(snapshot([waiting(1), waiting(2)], policy), newcomer(), span)
    assert found.placement is None
    assert found.reason is not None
    assert text_of(found.reason)
    assert found.rank is not None
    assert found.start is not None
    assert NOW < found.start.earliest <= found.start.median <= found.start.latest


def test_a_shorter_job_overtakes_and_a_what_if_has_no_side_effects() -> None:
    now = snapshot([waiting(1, seconds=5000.0), waiting(2, seconds=5000.0)])
    short, long = (
        simulate_submission(now, newcomer(seconds=s), lambda a, s=s: Quantiles(s / 2, s, 2 * s)) for s in (10.0, 9000.0)
    )
    assert short.rank == 1
    assert long.rank == 3
    assert short.start is not None
    assert long.start is not None
    assert short.start.median < long.start.median
    assert simulate_submission(now, newcomer(seconds=10.0), lambda a: Quantiles(5.0, 10.0, 20.0)) == short


def test_a_job_that_fits_no_node_never_starts() -> None:
    found = simulate_submission(snapshot([]), newcomer(gpus=64), span)
    assert (found.placement, found.alpha_min, found.start) == (None, None, None)
    assert found.reason is not None
    assert found.reason.kind == "capacity"


def test_the_time_budget_ends_a_what_if() -> None:
    assert simulate_submission(snapshot([waiting(1)]), newcomer(), span, budget_s=-1.0).start is None


@pytest.fixture
def site(make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """asrptd in mode enforce, 12 GPUs of which 4 are free, and a current status."""
    bench = make_bench(policy="asrpt-gated")
    running = bench.slurm.submit(8, 100)
    bench.cycle(2)
    assert bench.state(running) == "RUNNING"
    publish(bench)
    paths = bench.settings.paths
    config = tmp_path / "asrpt.toml"
    config.write_text("".join(["[paths]\n", *(f'{k} = "{getattr(paths, k)}"\n' for k in ("run", "hook", "state"))]))
    monkeypatch.setenv("ASRPT_CONFIG", str(config))
    monkeypatch.setattr("time.time", lambda: bench.slurm.now)
    return bench


class NoAnswer:
    """A computation that does not end."""

    def answer(self) -> None:
        return None

    def stop(self) -> None:
        pass


def publish(bench: Bench) -> None:
    forecaster = bench.forecaster(lambda data, budget_s: NoAnswer())
    forecaster.step(bench.slurm.now)
    status = bench.status(bench.slurm.now, forecaster)
    write_status(bench.settings.paths.run, status)


def ask(
    script: bytes, words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    return dict(json.loads(shown(["--json"], script, words, folder, monkeypatch, capsys)))


def shown(
    flags: list[str],
    script: bytes,
    words: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    path = folder / "train.sh"
    path.write_bytes(script)
    monkeypatch.setattr(sys, "argv", ["asrpt-status", *flags, "--what-if", str(path), "--", *words])
    with pytest.raises(SystemExit) as ended:
        run_app(command.app)
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out


def test_published_data_has_no_user_names(site: Bench) -> None:
    site.slurm.submit(8, 100)
    site.cycle(1)
    data = site.settings.paths.run / PUBLISHED
    found = from_json(data.read_bytes())
    assert {each.job.user for each in (*found.waiting, *found.recent)} <= {""}
    assert b"asrpt1" not in data.read_bytes()


def test_published_data_has_no_user_names_of_jobs_that_may_be_preempted(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="hlas")
    tag = Tag("0123456789abcdef", 1000, interrupt="USR1")
    bench.slurm.submit(8, 1000, user="alice", requeue=True, admin_comment=tag.format())
    bench.cycle(4)
    publish(bench)
    data = (bench.settings.paths.run / PUBLISHED).read_bytes()
    assert len(from_json(data).preemption.consenting) == 1
    assert b"alice" not in data
    assert tag.group.encode() not in data


def test_published_data_names_no_limit_of_users_who_have_no_job(site: Bench) -> None:
    """Those of the others are in status.json, too."""
    found = from_json((site.settings.paths.run / PUBLISHED).read_bytes())
    alice, bob = (f"MaxTRESPU=gres/gpu of QOS normal, user {name}" for name in ("alice", "bob"))
    (run,) = found.running
    recent = tuple(
        replace(each, job=replace(each.job, user="bob", charges=((alice, 1.0), (bob, 1.0)))) for each in found.recent
    )
    named = replace(
        found, headroom={alice: 2.0, bob: 2.0}, running=(replace(run, charges=((bob, 8.0),)),), recent=recent
    )
    published = without_names(named)
    assert published.headroom == {bob: 2.0}
    assert recent
    assert {each.job.charges for each in published.recent} == {((bob, 1.0),)}
    assert b"alice" not in to_json(published)


def test_a_script_gets_its_prediction_and_its_position(site, tmp_path, monkeypatch, capsys):
    job = describe(os.getuid(), b"train", SCRIPT, [], b"", site.settings.group)
    entry = Entry(500.0, 400.0, 700.0)
    chain = keys_of(job.group, job.program, os.getuid(), 4, job.features)
    replace_file(site.settings.paths.hook / FILE_NAME, render_table({chain[0][1]: entry}))
    found = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert (found["group"], found["gpus"], found["predicted_iterations"]) == (job.group, 4, 500)
    assert (found["predicted_low"], found["predicted_high"]) == (400, 700)
    for _ in range(20):  # the user's runs, each ten times as long as the table's upper end
        site.recent.run_adjustment.learn(os.getuid(), 400, 500, 700, 7000)
    publish(site)
    moved = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    told = rounded_interval(*site.recent.run_adjustment.adjusted(os.getuid(), 400, 500, 700))
    assert (moved["predicted_low"], moved["predicted_high"]) == told
    assert told[1] > 5000
    assert found["promise"] is False
    assert sum(found["placement"].values()) == 4
    assert found["alpha"] == found["alpha_min"]
    site.slurm.submit(4, 500)
    site.cycle(1)
    publish(site)
    later = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert (later["placement"], later["reason"]) == (None, "gpus")
    assert site.slurm.now - 1 < later["start_earliest"] <= later["start_median"]


def test_the_command_takes_a_few_seconds_of_a_login_nodes_cpu_at_most(site, tmp_path, monkeypatch, capsys):
    budgets = []

    def simulate(admitted, status, snapshot, budget_s, progress):
        budgets.append(budget_s)
        return simulated(admitted, status, snapshot, budget_s, progress)

    monkeypatch.setattr("slurm_asrpt_cli.status.what_if.simulated", simulate)
    assert ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["placement"]
    assert len(budgets) == 1
    assert 0 < budgets[0] <= 3.0


def test_in_other_modes_the_answer_says_who_decides(site, tmp_path, monkeypatch, capsys):
    assert ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["mode"] == ""
    status = replace(site.status(site.slurm.now, site.forecaster(lambda data, budget_s: NoAnswer())), mode="shadow")
    write_status(site.settings.paths.run, status)
    told = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["mode"]
    assert told == "mode shadow: Slurm decides; this is what mode enforce would do"


def test_an_outdated_queue_gives_no_start_time(site, tmp_path, monkeypatch, capsys):
    """Jobs were submitted after the snapshot was published, and asrptd has not published a new one."""
    before = (site.settings.paths.run / PUBLISHED).read_bytes()
    site.slurm.submit(4, 500)
    site.cycle(1)
    publish(site)
    assert ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["reason"] == "gpus"
    (site.settings.paths.run / PUBLISHED).write_bytes(before)
    found = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert (found["placement"], found["start_earliest"]) == (None, None)
    assert "the queue has changed since" in found["trouble"]
    monkeypatch.setattr("time.time", lambda: site.slurm.now + 100)  # not old enough to withdraw estimates
    assert "asrptd may be down" in ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["trouble"]


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--comment=asrpt:off"], "asrpt:off"), (["-p", "other"], "managed"), (["--gres=shard:2"], "shards")],
)
def test_a_job_that_would_be_left_to_slurm_is_reported(words, why, site, tmp_path, monkeypatch, capsys):
    found = ask(SCRIPT, words, tmp_path, monkeypatch, capsys)
    assert found["reason"] == "left"
    assert why in found["why"]
    assert found["placement"] is None


def test_a_job_whose_nodes_slurm_must_choose_has_a_place_in_the_queue(site, tmp_path, monkeypatch, capsys):
    found = ask(SCRIPT, ["-C", "[a*2|b]"], tmp_path, monkeypatch, capsys)
    assert "its -C counts nodes" in found["slurm_chooses"]
    assert found["reason"] != "left"
    said = " ".join(shown([], SCRIPT, ["--contiguous", "-N1"], tmp_path, monkeypatch, capsys).split())
    assert "Placement Slurm will choose its nodes: " in said
    assert "Start immediately" in said


def test_a_job_with_too_many_nodes_has_no_place_in_the_queue(site, tmp_path, monkeypatch, capsys):
    site.slurm.submit(50)  # too large as well: it is not in the snapshot
    site.cycle(1)
    publish(site)
    found = ask(b"#!/bin/sh\n", ["-N8", "--gres=gpu:1"], tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["rank"], found["trouble"]) == ("capacity", None, "")
    assert found["why"] == "asks for 8 nodes; the nodes that it may use are 3"


def test_gpus_that_no_node_has_are_not_called_out_of_service(site, tmp_path, monkeypatch, capsys):
    found = ask(b"#!/bin/sh\n", ["--gpus=foo:1", "-n1"], tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["why"].partition(" (")[0]) == ("capacity", "no node has what it asks for")


@pytest.mark.parametrize(
    ("words", "gpus", "placement"),
    [
        ("-n3 --gpus-per-node=1 --ntasks-per-node=1", 3, None),  # three nodes, of which one has free GPUs
        ("--gpus=2 --mem=0", 2, {"n3": 2}),
        ("--gpus=2 -c60", 2, {"n3": 2}),
        ("--gpus=2 -n2 -c40", 2, None),  # two nodes
        ("--gpus=2", 2, {"n3": 2}),
    ],
)
def test_a_script_asks_for_nodes_cpus_and_memory_as_asrptd_will_count_them(
    words, gpus, placement, site, tmp_path, monkeypatch, capsys
):
    found = ask(b"#!/bin/sh\n", words.split(), tmp_path, monkeypatch, capsys)
    assert (found["gpus"], found["placement"]) == (gpus, placement)
    number = site.slurm.submit(gpus, 100)
    asked = record(words, b"#!/bin/sh\n")
    fields = ("min_nodes", "max_nodes", "tasks", "tasks_per_node", "cpus", "min_cpus_per_node")
    shown_by_slurm = {name: getattr(asked, name) for name in fields}
    whole = {"memory_per_node": 512_000.0} if "--mem=0" in words else {}
    requests = {name: getattr(asked, name) for name in ("tres_per_job", "tres_per_node", "tres_per_task")}
    site.slurm.change(number, **shown_by_slurm, **whole, **requests)
    site.cycle(1)
    assert site.job(number).job.gpus == gpus
    assert (site.job(number).pin is not None or site.state(number) == "RUNNING") == (placement is not None)


@pytest.mark.parametrize("words", ["--gpus=1 --mem-per-gpu=600G", "--gpus=1 -c70", "--gpus=4 -N1 --mem=600G"])
def test_a_job_with_too_many_cpus_or_too_much_memory_is_rejected(words, site, tmp_path, monkeypatch, capsys):
    found = ask(b"#!/bin/sh\n", words.split(), tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["placement"], found["start_earliest"]) == ("capacity", None, None)
    assert "sbatch would reject it" in found["why"]


def test_a_job_gets_what_its_partition_gives(site: Bench) -> None:
    nodes = from_json((site.settings.paths.run / PUBLISHED).read_bytes()).slurm_nodes
    defaults = {"gpu": GpuDefaults(cpus=6, per_cpu=2000.0)}
    counted = as_counted(record("--gpus=2", b"#!/bin/sh\n"), defaults, nodes)
    assert (counted.cpus_per_gpu, counted.memory_per_cpu) == (6, 2000.0)
    assert as_counted(record("--mem=0"), defaults, nodes).memory_per_node == 512_000.0
    assert as_counted(record("-p other"), defaults, nodes) == record("-p other")


def test_a_job_without_gpus_waits_in_the_queue(site, tmp_path, monkeypatch, capsys):
    found = ask(b"#!/bin/sh\n", ["-n8"], tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["placement"]) == ("", None)
    assert "jobs without GPUs are not simulated" in found["trouble"]


def test_options_that_take_the_scripts_gpus_away_leave_none(site, tmp_path, monkeypatch, capsys):
    script = b"#!/bin/sh\n#SBATCH -n2 --gpus-per-task=1\n"
    found = ask(script, ["--gpus-per-task=0"], tmp_path, monkeypatch, capsys)
    assert "jobs without GPUs are not simulated" in found["trouble"]
    assert found["gpus"] == 0


def test_the_answer_comes_before_what_it_is_based_on(site, tmp_path, monkeypatch, capsys):
    site.slurm.submit(12, 500)
    site.cycle(2)
    publish(site)
    lines = shown([], SCRIPT, [], tmp_path, monkeypatch, capsys).splitlines()
    assert [line[:17].strip() for line in lines] == [
        *("Job script", "Start", "Why not now", "Placement", "GPUs", "Prediction", "Group", "Note", "As of")
    ]
    assert lines[2].endswith("; position 2 in the queue")
    assert lines[-1].endswith("s ago), without jobs submitted since; an estimate, not a promise")


def table_entry(site, gpus, entry):
    """Runs of the script with so many GPUs have been learned from."""
    job = describe(os.getuid(), b"train", SCRIPT, [], b"", site.settings.group)
    chain = keys_of(job.group, job.program, os.getuid(), gpus, job.features)
    replace_file(site.settings.paths.hook / FILE_NAME, render_table({chain[0][1]: entry}))


def test_a_held_job_and_one_with_a_begin_time_do_not_start_immediately(site, tmp_path, monkeypatch, capsys):
    held = " ".join(shown([], SCRIPT, ["-H"], tmp_path, monkeypatch, capsys).split())
    assert "Start unknown: the job is held (--hold); it has no place in the queue until scontrol release" in held
    later = ask(SCRIPT, ["--begin=now+1hour"], tmp_path, monkeypatch, capsys)
    assert (later["reason"], later["placement"]) == ("begin", None)
    assert later["not_before"] == pytest.approx(site.slurm.now + 3600, abs=1)
    said = shown([], SCRIPT, ["--begin=now+1hour"], tmp_path, monkeypatch, capsys)
    assert "at the earliest (--begin)" in said
    assert "immediately" in shown([], SCRIPT, ["--begin=now"], tmp_path, monkeypatch, capsys)


def test_the_limits_of_its_user_hold_for_it(site, tmp_path, monkeypatch, capsys):
    limit = f"MaxTRESPU=gres/gpu of QOS normal, user {pwd.getpwuid(os.getuid()).pw_name}"
    path = site.settings.paths.run / PUBLISHED
    found = from_json(path.read_bytes())
    (run,) = found.running
    run = replace(run, charges=((limit, 8.0),))
    path.write_bytes(to_json(replace(found, headroom={limit: 2.0}, running=(run,))))
    assert ask(SCRIPT, ["-n2"], tmp_path, monkeypatch, capsys)["placement"] is not None
    over = ask(SCRIPT, ["-n4"], tmp_path, monkeypatch, capsys)
    assert (over["reason"], over["why"], over["placement"]) == ("over-limit", f"would exceed limit {limit}", None)
    assert over["start_earliest"] > site.slurm.now  # when the running job ends


def test_the_site_favors_it_as_the_jobs_that_wait(site, tmp_path, monkeypatch, capsys):
    for _ in range(2):
        site.slurm.submit(12, 5000)
    site.cycle(2)
    publish(site)
    assert ask(SCRIPT, ["-n8", "-t1"], tmp_path, monkeypatch, capsys)["rank"] == 1
    favor(site, 1000.0)
    assert ask(SCRIPT, ["-n8", "-t1"], tmp_path, monkeypatch, capsys)["rank"] == 1


def favor(site: Bench, weight: float) -> None:
    """All waiting jobs get this weight."""
    folder = site.settings.paths.run
    found, status = from_json((folder / PUBLISHED).read_bytes()), read_status(folder)
    waiting = tuple(replace(each, job=replace(each.job, weight=weight)) for each in found.waiting)
    (folder / PUBLISHED).write_bytes(to_json(replace(found, waiting=waiting)))
    write_status(folder, replace(status, jobs=[replace(job, weight=weight) for job in status.jobs]))


def with_partition(site: Bench, **rules: object) -> None:
    """The published partition gets these limits."""
    path = site.settings.paths.run / PUBLISHED
    found = from_json(path.read_bytes())
    path.write_bytes(to_json(replace(found, partitions={"gpu": Partition(**rules)})))


def test_a_job_that_slurm_refuses_has_no_place_in_the_queue_and_is_not_simulated(site: Bench) -> None:
    site.slurm.starts_jobs = False
    refused, waits = site.slurm.submit(4, 10, time_limit=7200.0), site.slurm.submit(12, 5000)
    site.cycle(1)
    site.slurm.change(refused, reason="PartitionTimeLimit")
    site.cycle(1)
    publish(site)
    rows = {job.job_id: job for job in read_status(site.settings.paths.run).jobs}
    assert rows[refused].text.startswith("Slurm refuses it: PartitionTimeLimit")
    assert (rows[refused].rank, rows[waits].rank) == (None, 1)
    found = from_json((site.settings.paths.run / PUBLISHED).read_bytes())
    assert [str(each.job.id) for each in found.waiting] == [waits]


def test_asrptd_publishes_the_limits_of_its_partitions(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    bench.slurm.partition_rules = {"gpu": Partition(max_time=600.0, min_nodes=2), "other": Partition()}
    bench.cycle(2)
    publish(bench)
    found = from_json((bench.settings.paths.run / PUBLISHED).read_bytes())
    assert found.partitions == {"gpu": Partition(max_time=600.0, min_nodes=2)}


@pytest.mark.parametrize(
    ("words", "rules", "why"),
    [
        (["-t", "30"], {"max_time": 600.0}, "PartitionTimeLimit (MaxTime=00:10:00 of partition gpu)"),
        (["-N2"], {"max_nodes": 1}, "PartitionNodeLimit (MaxNodes=1 of partition gpu)"),
        (["-N1"], {"min_nodes": 2}, "PartitionNodeLimit (MinNodes=2 of partition gpu)"),
    ],
)
def test_what_its_partition_never_starts_is_told(words, rules, why, site, tmp_path, monkeypatch, capsys):
    with_partition(site, **rules)
    found = ask(SCRIPT, words, tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["placement"], found["start_earliest"]) == ("over-limit", None, None)
    assert found["why"] == f"Slurm refuses it: {why}"
    assert "Start never with this request" in " ".join(shown([], SCRIPT, words, tmp_path, monkeypatch, capsys).split())
    for other in (["-q", "urgent"], ["-p", "gpu,other"]):  # a QOS may lift these limits; the other one is not known
        assert ask(SCRIPT, [*words, *other], tmp_path, monkeypatch, capsys)["reason"] != "over-limit"


@pytest.mark.parametrize(
    ("words", "default", "why"),
    [
        ([], "lab", "AccountNotAllowed (AllowAccounts=ml,physics of partition gpu)"),
        (["-A", "lab"], "physics", "AccountNotAllowed (AllowAccounts=ml,physics of partition gpu)"),
        (["-A", "ml"], "lab", ""),
        ([], "physics", ""),
        ([], "", ""),
        (["-q", "low"], "ml", "QOSNotAllowed (DenyQos=low of partition gpu)"),
        (["-p", "gpu,other"], "lab", ""),
    ],
)
def test_the_accounts_and_qos_of_a_partition_hold(words, default, why, site, tmp_path, monkeypatch, capsys):
    """A job without -A has its user's default account, which Slurm is asked for."""
    monkeypatch.setattr(CliClient, "default_account", lambda self, user: default)
    with_partition(site, accounts=Names(frozenset({"physics", "ml"})), qos=Names(None, frozenset({"low"})))
    found = ask(SCRIPT, words, tmp_path, monkeypatch, capsys)
    assert found["why"] == f"Slurm refuses it: {why}" if why else found["reason"] != "over-limit"


@pytest.mark.parametrize("accounts", [Names(), Names(frozenset({"physics"}))])
def test_slurm_is_asked_only_if_a_partition_admits_some_accounts(accounts, site, tmp_path, monkeypatch, capsys):
    asked = list[str]()

    def refuse(self: CliClient, user: str) -> str:
        asked.append(user)
        raise SlurmError("no answer")

    monkeypatch.setattr(CliClient, "default_account", refuse)
    with_partition(site, accounts=accounts)
    assert ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["reason"] != "over-limit"
    assert len(asked) == (0 if accounts.admit_all else 1)


def test_a_job_gets_as_many_nodes_as_its_partition_asks_for(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(CliClient, "default_account", lambda self, user: "")
    site.slurm.end("1")
    site.cycle(2)
    publish(site)
    with_partition(site, min_nodes=2, accounts=Names(frozenset({"physics"})))
    assert len(ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["placement"]) == 2


def test_a_partition_that_drains_takes_nothing(site, tmp_path, monkeypatch, capsys):
    with_partition(site, takes=False)
    found = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["placement"], found["start_earliest"]) == ("partition-closed", None, None)
    assert found["why"].startswith("partition gpu takes no jobs now")
    assert found["trouble"] == "sbatch would reject it"


def test_a_partition_that_is_down_starts_nothing(site, tmp_path, monkeypatch, capsys):
    with_partition(site, up=False)
    found = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["placement"]) == ("partition-closed", None)
    said = " ".join(shown([], SCRIPT, [], tmp_path, monkeypatch, capsys).split())
    assert "Start unknown: its partition starts no jobs now" in said


def test_a_partition_that_is_unknown_is_named(site, tmp_path, monkeypatch, capsys):
    found = ask(SCRIPT, ["-p", "nosuch"], tmp_path, monkeypatch, capsys)
    assert found["reason"] == "left"
    said = " ".join(shown([], SCRIPT, ["-p", "gpu,nosuch"], tmp_path, monkeypatch, capsys).split())
    assert "Start unknown: partition nosuch does not exist, or has no managed nodes (sinfo)" in said


@pytest.mark.parametrize("words", [["-p", "other"], ["--comment=asrpt:off"]])
def test_gpus_on_the_command_line_count_for_a_job_that_is_left_to_slurm_too(words, site, tmp_path, monkeypatch, capsys):
    found = ask(b"#!/bin/sh\n", ["--gpus=4", *words], tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["gpus"]) == ("left", 4)


def test_gpus_on_the_command_line_choose_the_prediction(site, tmp_path, monkeypatch, capsys):
    table_entry(site, 8, Entry(500.0, 400.0, 700.0))
    words = ["-n8", "--gpus-per-task=1"]
    assert ask(SCRIPT, words, tmp_path, monkeypatch, capsys)["predicted_iterations"] == 500


def test_a_prediction_without_a_profile_is_a_runtime(site, tmp_path, monkeypatch, capsys):
    table_entry(site, 4, Entry(500.0, 400.0, 700.0))
    for words in ([], ["--comment=asrpt:off"]):
        said = " ".join(shown([], SCRIPT, words, tmp_path, monkeypatch, capsys).split())
        assert "Prediction runtime 00:08:20 (10-90%: 00:06:40-00:11:40), learned from" in said
        assert "iteration" not in said


def test_for_an_array_only_the_first_task_is_shown(site, tmp_path, monkeypatch, capsys):
    said = " ".join(shown([], SCRIPT, ["--array=0-99%4"], tmp_path, monkeypatch, capsys).split())
    assert "if submitted now (for job arrays, only the first task is shown)" in said
    assert "Start immediately" in said
    assert ask(SCRIPT, ["--array=0-99%4"], tmp_path, monkeypatch, capsys)["array"] == "0-99%4"
    assert "tasks" not in shown([], SCRIPT, [], tmp_path, monkeypatch, capsys)
    status = json.loads((site.settings.paths.run / "status.json").read_text())
    (site.settings.paths.run / "status.json").write_text(json.dumps({**status, "mode": "shadow"}))
    found = ask(SCRIPT, ["--array=0-99%4"], tmp_path, monkeypatch, capsys)
    assert (found["reason"], found["why"]) == ("left", "left to Slurm: a job array")


def test_an_unused_profile_is_not_shown_as_used(site, tmp_path, monkeypatch, capsys):
    words = ["--comment=asrpt:profile=vgg19-dp16"]  # of 16 GPUs; the script asks for 4
    why = ask(SCRIPT, words, tmp_path, monkeypatch, capsys)["unused_profile"]
    assert why == "profile vgg19-dp16 is for 16 GPUs, but a job requests 4"
    said = " ".join(shown([], SCRIPT, words, tmp_path, monkeypatch, capsys).split())
    assert f"GPUs 4; profile ignored: {why}" in said
    assert "alpha" not in said  # of the substitute profile, which is meaningless


def test_without_asrptd_the_prediction_is_still_shown(site, tmp_path, monkeypatch, capsys):
    (site.settings.paths.run / PUBLISHED).unlink()
    found = ask(SCRIPT, [], tmp_path, monkeypatch, capsys)
    assert "does not exist" in found["trouble"]
    assert len(found["group"]) == 16
    publish(site)
    monkeypatch.setattr("time.time", lambda: site.slurm.now + 3600)
    assert "asrptd may be down" in ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["trouble"]
    (site.settings.paths.run / PUBLISHED).write_text("{")
    assert "damaged" in ask(SCRIPT, [], tmp_path, monkeypatch, capsys)["trouble"]


def test_behind_jobs_without_end_a_what_if_has_no_upper_bound() -> None:
    busy = snapshot([])
    for_ever = tuple(replace(run, span=Quantiles(1e9, 1e9, 1e9)) for run in busy.running)
    found = simulate_submission(replace(busy, running=for_ever), newcomer(), span)
    assert found.start is None or math.isinf(found.start.latest)
