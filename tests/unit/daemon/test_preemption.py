"""Preemption on a Slurm in memory: signal, checkpoint, requeue, and crashes in between."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_asrpt_cli.admin.audit import what
from slurm_asrpt_cli.status.explain import explain_command

from slurm_asrpt.daemon.cluster import CLEANING_S
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.preemption import MAINTENANCE_S
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.records import JobRecord, Reservation
from slurm_asrpt.spool import progress_dir
from slurm_asrpt.status.document import JobStatus
from slurm_asrpt.status.explain import explain
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import GROUP

HLAS = {"queues": 3, "first_gpu_s": 40.0, "max_interruptions": 2, "min_run_s": 5.0}
GRACE_S = 8.0


@pytest.fixture
def make(make_bench: Callable[..., Bench]) -> Callable[..., Bench]:
    def bench(mode: str = "enforce", **policy: Any) -> Bench:
        """One node of four GPUs."""
        tables = {"policy": {**HLAS, **policy}, "interrupt": {"grace_s": GRACE_S}}
        return make_bench((4,), mode=mode, policy="hlas", tables=tables)

    return bench


@pytest.fixture
def hlas(make: Callable[..., Bench]) -> Bench:
    return make()


def submit(bench: Bench, gpus: int = 4, interrupt: str = "B:USR1", **fields: Any) -> str:
    tag = Tag(GROUP, interrupt=interrupt).format()
    return bench.slurm.submit(gpus, **{"requeue": True, "admin_comment": tag, **fields})


def long_and_short(bench: Bench, **fields: Any) -> tuple[str, str]:
    """A running job with 80 GPU-seconds of service, and one that has just been submitted."""
    long = submit(bench, **fields)
    bench.cycle(20)
    assert bench.state(long) == "RUNNING"
    return long, bench.slurm.submit(4)


def checkpoint(bench: Bench, job_id: str, iteration: int) -> None:
    folder: Path = progress_dir(bench.settings.paths.spool) / job_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint").write_text(f"{iteration}\n", encoding="utf-8")
    os.utime(folder / "checkpoint", (bench.slurm.now, bench.slurm.now))


def row(bench: Bench, job_id: str) -> JobStatus:
    return next(job for job in bench.status(bench.slurm.now).jobs if job.job_id == job_id)


def test_a_preempted_job_is_signaled_requeued_and_runs_again(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    checkpoint(hlas, long, 3)
    hlas.cycle(1)
    assert hlas.slurm.signals == [(long, "USR1", True)]
    assert (row(hlas, long).reason, row(hlas, short).reason) == ("interrupting", "room")
    hlas.cycle(2)
    assert hlas.state(long) == "RUNNING", "a checkpoint from before the signal does not count"
    checkpoint(hlas, long, 20)
    hlas.cycle(3)
    assert (hlas.state(long), hlas.state(short)) == ("PENDING", "RUNNING")
    assert hlas.slurm.records[long].required_nodes == ""
    assert row(hlas, long).reason == "interrupted"
    hlas.slurm.end(short)
    hlas.cycle(4)
    assert hlas.state(long) == "RUNNING", "it does not wait for Slurm's pause of two minutes"
    assert hlas.slurm.signals == [(long, "USR1", True)]
    assert [entry["reported"] for entry in hlas.audit("requeued", long)] == [True]
    assert hlas.audit("interrupt", long)[0]["head"] == short
    service = hlas.job(long).service
    assert (service.interruptions, service.head) == (1, "")
    assert service.past == pytest.approx(sum(4 * (e["ended"] - e["began"]) for e in hlas.audit("cut", long)))


@pytest.mark.parametrize(("min_run_s", "waits_s"), [(600.0, 120.0), (50.0, 50.0), (0.0, 0.0)])
def test_no_signal_is_sent_before_a_program_can_have_set_its_handler(
    make: Callable[..., Bench], min_run_s: float, waits_s: float
) -> None:
    """A policy may preempt a job that has just started, as one on GPUs that are kept for another."""
    bench = make(min_run_s=min_run_s)
    long = submit(bench)
    bench.cycle(3)
    began = bench.slurm.records[long].start_time
    bench.job(long).interruption_decided(bench.slurm.now, "9")
    bench.cycle(200)
    assert [at - began for at in signalled(bench, long)] == [pytest.approx(max(waits_s, 3.0), abs=2.0)]


def signalled(bench: Bench, job_id: str) -> list[float]:
    return [float(entry["time"]) for entry in bench.audit("signalled") if entry["job"] == job_id]


PREEMPTING = [
    {"name": "hlas", **HLAS},
    {"name": "asrpt-gated", "interrupts": True, "interruption_gain": 1.0, "interruption_s": 10.0, "min_run_s": 5.0},
]


@pytest.mark.parametrize("policy", PREEMPTING, ids=lambda policy: policy["name"])
def test_while_a_node_cleans_up_no_other_job_is_preempted(
    make_bench: Callable[..., Bench], policy: dict[str, Any]
) -> None:
    """Slurm starts nothing there until the epilog has ended."""
    bench = make_bench(
        (4, 4), mode="enforce", policy=policy["name"], tables={"policy": policy, "interrupt": {"grace_s": 300.0}}
    )
    for _ in range(2):
        submit(bench, admin_comment=Tag(GROUP, 50_000, interrupt="B:USR1").format())
    bench.cycle(150)
    short = submit(bench, admin_comment=Tag(GROUP, 100, interrupt="B:USR1").format())
    bench.cycle(70)
    ((first, _, _),) = bench.slurm.signals
    where = bench.slurm.records[first].nodes
    bench.slurm.node_state(where, "IDLE+COMPLETING")
    checkpoint(bench, first, 20)
    bench.cycle(100)
    assert (bench.state(first), bench.state(short)) == ("PENDING", "PENDING")
    assert len(bench.slurm.signals) == 1
    bench.restart()
    bench.cycle(20)
    assert len(bench.slurm.signals) == 1, "nor after a restart"
    bench.slurm.node_state(where, "IDLE")
    bench.cycle(3)
    assert bench.slurm.records[short].nodes == where


def test_nobody_waits_for_a_node_whose_epilog_hangs(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench((4, 4), mode="enforce", policy="hlas", tables={"policy": HLAS})
    long = submit(bench)
    bench.cycle(20)
    other = {"n1", "n2"} - {bench.slurm.records[long].nodes}
    bench.slurm.node_state(other.pop(), "IDLE+COMPLETING")
    short = bench.slurm.submit(4)
    bench.cycle(int(CLEANING_S) - 20)
    assert (bench.slurm.signals, row(bench, short).reason) == ([], "gpus")
    bench.cycle(40)
    assert bench.slurm.signals == [(long, "USR1", True)]


def test_without_a_checkpoint_report_the_job_keeps_its_grace_time(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    hlas.cycle(1)
    hlas.cycle(int(GRACE_S) - 1)
    assert hlas.state(long) == "RUNNING"
    hlas.cycle(4)
    assert (hlas.state(long), hlas.state(short)) == ("PENDING", "RUNNING")
    assert [entry["reported"] for entry in hlas.audit("requeued", long)] == [False]


@pytest.mark.parametrize(
    ("interrupt", "fields", "signal"),
    [
        ("", {}, ("USR2", False)),
        ("B:USR1", {}, ("USR1", True)),
        ("off", {}, None),
        ("", {"partition": "gpu,other"}, None),
        ("", {"qos": "cheap"}, ("USR1", False)),
        ("off", {"qos": "cheap"}, ("USR1", False)),
        ("off", {"qos": "normal"}, None),
    ],
)
def test_a_partition_or_qos_may_agree_for_its_jobs(
    make_bench: Callable[..., Bench], interrupt: str, fields: dict[str, Any], signal: tuple[str, bool] | None
) -> None:
    agreed = {"partition_signals": {"gpu": "USR2"}, "qos_signals": {"cheap": "USR1"}}
    tables = {"policy": HLAS, "interrupt": {"grace_s": GRACE_S, **agreed}, "slurm": {"partitions": ["gpu", "other"]}}
    bench = make_bench((4,), mode="enforce", policy="hlas", tables=tables)
    long, _ = long_and_short(bench, interrupt=interrupt, **fields)
    bench.cycle(20)
    assert bench.slurm.signals == ([] if signal is None else [(long, *signal)])


def test_a_job_is_not_signaled_once_its_partition_no_longer_agrees(make_bench: Callable[..., Bench]) -> None:
    tables = {"policy": HLAS, "interrupt": {"grace_s": GRACE_S, "qos_signals": {"cheap": "USR1"}}}
    bench = make_bench((4,), mode="enforce", policy="hlas", tables=tables)
    long, _ = long_and_short(bench, interrupt="", qos="cheap")
    bench.slurm.errors[long] = "Socket timed out"
    bench.cycle(2)
    assert bench.job(long).interruption is not None
    bench.slurm.change(long, qos="normal")
    del bench.slurm.errors[long]
    bench.cycle(5)
    assert bench.slurm.signals == []
    assert bench.job(long).interruption is None


def test_slurms_pause_after_a_requeue_by_somebody_else_is_kept(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    hlas.slurm.requeue(long)
    hlas.cycle(4)
    assert hlas.state(short) == "RUNNING"
    hlas.slurm.end(short)
    hlas.cycle(60)
    assert hlas.state(long) == "PENDING"
    hlas.cycle(60)
    assert hlas.state(long) == "RUNNING"


@pytest.mark.parametrize("disabled", [True, False])
def test_the_owners_begin_time_after_a_preemption_is_kept(hlas: Bench, disabled: bool) -> None:
    long, short = long_and_short(hlas)
    hlas.cycle(1)
    checkpoint(hlas, long, 20)
    hlas.cycle(3)
    hlas.slurm.change(long, eligible_time=hlas.slurm.now + 300.0)
    hlas.cycle(2)
    hlas.mode.disabled = disabled
    hlas.slurm.end(short)
    hlas.cycle(30)
    assert hlas.state(long) == "PENDING"
    assert hlas.slurm.records[long].eligible_time > hlas.slurm.now + 200.0


def test_jobs_handed_back_in_the_second_of_a_requeue_do_not_start_in_it(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    hlas.cycle(1)
    checkpoint(hlas, long, 20)
    hlas.slurm.end(short)
    while hlas.job_state(long) is JobState.RUNNING:
        hlas.cycle(1)
    requeued = hlas.slurm.records[long].submit_time
    hlas.mode.disabled = True
    hlas.cycle(6)
    assert hlas.state(long) == "RUNNING"
    assert hlas.slurm.records[long].start_time >= requeued + 2.0


def before_maintenance(make_bench: Callable[..., Bench], in_s: float, **fields: Any) -> tuple[Bench, str]:
    """A long job on the first of two nodes, for which maintenance is announced."""
    bench = make_bench((4, 4), mode="enforce", policy="asrpt-gated", tables={"interrupt": {"grace_s": GRACE_S}})
    long = submit(bench, **fields)
    bench.cycle(5)
    assert bench.slurm.records[long].nodes == "n1"
    start = bench.slurm.now + in_s
    bench.slurm.reserved = [
        Reservation("upgrade", start, start + 7200.0, frozenset({"n1"}), plain=False, maintenance=True)
    ]
    return bench, long


def test_a_job_yields_to_maintenance_in_time(make_bench: Callable[..., Bench]) -> None:
    bench, long = before_maintenance(make_bench, in_s=400.0)
    bench.cycle(int(400.0 - MAINTENANCE_S - GRACE_S) - 5)
    assert bench.slurm.signals == []
    bench.cycle(10)
    assert bench.slurm.signals == [(long, "USR1", True)]
    assert row(bench, long).reason == "yielding"
    assert [entry["reservation"] for entry in bench.audit("yields", long)] == ["upgrade"]
    checkpoint(bench, long, 20)
    bench.cycle(4)
    assert bench.state(long) == "PENDING"
    bench.restart()
    bench.cycle(130)
    assert bench.slurm.records[long].nodes == "n2"
    assert bench.slurm.notes == []
    assert bench.job(long).service.interruptions == 0
    assert len(bench.slurm.signals) == 1


@pytest.mark.parametrize(
    "fields", [{"interrupt": ""}, {"interrupt": "off"}, {"requeue": False}, {"time_limit": 100.0}, {"reserved": "n2"}]
)
def test_jobs_that_must_not_or_need_not_yield_run_on(make_bench: Callable[..., Bench], fields: dict[str, Any]) -> None:
    node = fields.pop("reserved", "n1")
    bench, long = before_maintenance(make_bench, in_s=150.0, **fields)
    bench.slurm.reserved = [dataclasses.replace(bench.slurm.reserved[0], nodes=frozenset({node}))]
    bench.cycle(140)
    assert bench.slurm.signals == []
    assert bench.state(long) == "RUNNING"


def silent(hlas: Bench) -> str:
    """A job that has reported no checkpoint, and runs again."""
    long, short = long_and_short(hlas)
    hlas.cycle(int(GRACE_S) + 5)
    hlas.slurm.end(short)
    hlas.slurm.tick(120.0)
    hlas.cycle(4)
    assert hlas.state(long) == "RUNNING"
    return long


def test_a_job_that_reports_no_checkpoint_is_told_so_once_and_left_alone(hlas: Bench) -> None:
    long = silent(hlas)
    ((told, text),) = hlas.slurm.notes
    assert told == long
    assert "no checkpoint within 8 s of SIGUSR1" in text
    assert "\n" not in text
    hlas.restart()
    hlas.cycle(20)
    other = hlas.slurm.submit(4)
    hlas.cycle(20)
    assert (hlas.state(long), hlas.state(other)) == ("RUNNING", "PENDING")
    assert len(hlas.slurm.signals) == len(hlas.slurm.notes) == len(hlas.audit("owner-told", long)) == 1
    assert "no checkpoint in time" in str(row(hlas, long).never_interrupted)


def test_slurm_may_refuse_to_tell_the_owner(hlas: Bench) -> None:
    hlas.slurm.notify = refused  # type: ignore[method-assign]
    long = silent(hlas)
    hlas.cycle(10)
    assert [entry["error"] for entry in hlas.audit("owner-told", long)] == ["Invalid job id specified"]


def refused(job_id: str, text: str) -> None:
    raise SlurmError("Invalid job id specified")


def test_a_job_that_reports_checkpoints_has_more_time_for_one(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    checkpoint(hlas, long, 3)
    hlas.cycle(int(3 * GRACE_S) - 2)
    assert hlas.state(long) == "RUNNING"
    checkpoint(hlas, long, 20)
    hlas.cycle(4)
    assert (hlas.state(long), hlas.state(short)) == ("PENDING", "RUNNING")
    assert hlas.slurm.notes == []


def test_the_time_for_a_checkpoint_is_learned_for_the_group(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    checkpoint(hlas, long, 3)
    hlas.cycle(21)
    checkpoint(hlas, long, 20)
    hlas.cycle(3)
    assert hlas.state(long) == "PENDING"
    hlas.restart()
    for job_id in (long, short):
        hlas.slurm.end(job_id)
    hlas.cycle(2)
    again, _ = long_and_short(hlas)
    hlas.cycle(1)
    assert hlas.slurm.signals[1:] == [(again, "USR1", True)]
    hlas.cycle(29)
    assert hlas.state(again) == "RUNNING", "1.5 times the 20 s that the group has needed"
    hlas.cycle(5)
    assert hlas.state(again) == "PENDING"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"interrupt": ""}, "its owner has not agreed"),
        ({"admin_comment": "", "leased": False}, "the hook has not tagged it"),
        ({"requeue": False}, "--requeue"),
        ({"partition": "gpu,other"}, "interrupt.partitions"),
        ({"exclusive": "user", "leased": False}, "leaves such jobs to Slurm"),
        ({"contiguous": True, "leased": False}, "leaves such jobs to Slurm"),
    ],
)
def test_jobs_that_did_not_opt_in_or_are_unmanaged_are_never_preempted(
    hlas: Bench, fields: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    long, short = long_and_short(hlas, **fields)
    hlas.cycle(30)
    assert hlas.slurm.signals == []
    assert (hlas.state(long), hlas.state(short)) == ("RUNNING", "PENDING")
    assert row(hlas, short).reason == "gpus"
    explain_command(hlas.status(hlas.slurm.now), row(hlas, long), as_json=False)
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Preemption")]
    assert "never" in said
    assert why in said
    assert row(hlas, short).never_interrupted is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "allowed, but policy asrpt-gated without policy.interrupts preempts no jobs"),
        ({"requeue": False}, "never: Slurm may not requeue it"),
        ({"interrupt": ""}, ""),
    ],
)
def test_a_job_that_consented_is_told_if_its_policy_preempts_none(
    make_bench: Callable[..., Bench], fields: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = make_bench((4,), policy="asrpt-gated")
    job_id = submit(bench, **fields)
    bench.cycle(3)
    explain_command(bench.status(bench.slurm.now), row(bench, job_id), as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert (f"Preemption {text}" in said) == bool(text)
    assert ("Preemption" in said) == bool(text)


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_only_mode_enforce_preempts(make: Callable[..., Bench], mode: str) -> None:
    bench = make(mode)
    bench.slurm.multifactor = True
    long = submit(bench, leased=False)
    bench.cycle(20)
    bench.slurm.submit(4)
    bench.cycle(20)
    assert bench.slurm.signals == []
    assert bench.state(long) == "RUNNING"


def test_disabling_asrptd_during_a_preemption_lets_the_job_run_on(hlas: Bench) -> None:
    long, _ = long_and_short(hlas)
    hlas.cycle(1)
    hlas.mode.disabled = True
    hlas.cycle(int(2 * GRACE_S))
    assert hlas.state(long) == "RUNNING"
    assert hlas.job(long).interruption is None


def test_after_a_restart_the_preemption_signal_is_sent_again(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    hlas.cycle(1)
    checkpoint(hlas, long, 20)
    hlas.slurm.tick(1000.0)
    hlas.restart()
    hlas.cycle(2)
    assert hlas.slurm.signals == [(long, "USR1", True)] * 2
    assert hlas.state(long) == "RUNNING", "the checkpoint may be old"
    checkpoint(hlas, long, 900)
    hlas.cycle(3)
    assert (hlas.state(long), hlas.state(short)) == ("PENDING", "RUNNING")
    assert hlas.job(long).service.interruptions == 1


def test_a_preempted_job_requeued_while_asrptd_is_down_counts_once(hlas: Bench) -> None:
    """By a daemon that died right after the requeue, or by the job's own signal handler."""
    long, short = long_and_short(hlas)
    hlas.cycle(1)
    hlas.stop()
    hlas.slurm.tick(3.0)
    began = hlas.slurm.records[long].start_time
    hlas.slurm.requeue(long)
    served = 4 * (hlas.slurm.now - began)
    hlas.start()
    hlas.cycle(3)
    service = hlas.job(long).service
    assert (service.past, service.interruptions, service.head) == (pytest.approx(served), 1, short)
    assert (hlas.state(short), hlas.job_state(long)) == ("RUNNING", JobState.QUEUED)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_requeued_after_its_end_keeps_its_service(hlas: Bench, restarted: bool) -> None:
    long = submit(hlas)
    hlas.cycle(20)
    served = 4 * (hlas.slurm.now - hlas.slurm.records[long].start_time)
    hlas.slurm.end(long)
    hlas.cycle(5)
    if restarted:
        hlas.restart()
        hlas.cycle(5)
    hlas.slurm.requeued(long)
    hlas.cycle()
    assert hlas.job(long).service.past == pytest.approx(served)


def lost_requeue(bench: Bench) -> tuple[str, JobRecord]:
    """A job that asrptd has requeued, and its record from before, which slurmctld restores after a crash."""
    long, _ = long_and_short(bench)
    bench.cycle(1)
    checkpoint(bench, long, 20)
    before = bench.slurm.records[long]
    bench.slurm.starts_jobs = False
    bench.cycle(2)
    assert bench.audit("cut", long)
    bench.slurm.starts_jobs = True
    return long, before


@pytest.mark.parametrize("restarted", [False, True])
def test_a_requeue_lost_by_slurmctld_is_requested_again(hlas: Bench, restarted: bool) -> None:
    long, before = lost_requeue(hlas)
    served, short = hlas.job(long).service.past, str(int(long) + 1)
    hlas.slurm.records[long] = before
    if restarted:
        hlas.restart()
    hlas.cycle(1)
    assert hlas.state(long) == "PENDING"
    hlas.cycle(2)
    assert (hlas.state(short), hlas.slurm.records[long].required_nodes) == ("RUNNING", "")
    service = hlas.job(long).service
    assert (service.past, service.interruptions, service.head) == (pytest.approx(served), 1, short)
    assert len(hlas.slurm.signals) == len(hlas.audit("interrupt", long)) == 1, "there is no process to signal"
    assert len(hlas.audit("cut", long)) == len(hlas.audit("running", long)) == 1, "each run is audited once"
    (again,) = hlas.audit("requeued-again", long)
    assert "had lost the requeue" in what(again)
    hlas.slurm.end(short)
    hlas.slurm.tick(120.0)
    hlas.cycle(4)
    assert (hlas.state(long), len(hlas.audit("requeued-again", long))) == ("RUNNING", 1)


def end_killed_script(bench: Bench, before: JobRecord, state: str = "FAILED") -> None:
    """slurmctld restarts without the requeue, and the node reports the end of the script."""
    ended = dataclasses.replace(before, state=state, end_time=bench.slurm.now, exit_code=143)
    bench.slurm.records[before.job_id] = ended


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_a_job_that_a_lost_requeue_killed_is_requeued_again(hlas: Bench, seen: bool, restarted: bool) -> None:
    """seen: asrptd has seen the job pending before slurmctld died."""
    if seen:
        long, before = lost_requeue(hlas)
    else:
        long, _ = long_and_short(hlas)
        hlas.cycle(1)
        checkpoint(hlas, long, 20)
        before = hlas.slurm.records[long]
        hlas.scheduler.cycle(hlas.slurm.now)  # if asrptd dies, then before it saves the result
        assert hlas.audit("requeued", long)
        assert not hlas.audit("cut", long)
    short = str(int(long) + 1)
    end_killed_script(hlas, before)
    if restarted:
        hlas.restart()
    hlas.cycle(2)
    assert hlas.state(long) == "PENDING"
    hlas.cycle(1)
    assert hlas.slurm.records[long].required_nodes == ""
    assert hlas.state(short) == "RUNNING"
    assert (hlas.job(long).service.interruptions, hlas.job(long).service.head) == (1, short)
    assert [len(hlas.audit(event, long)) for event in ("signalled", "cut", "requeued-again")] == [1, 1, 1]
    hlas.slurm.end(short)
    hlas.slurm.tick(120.0)
    hlas.cycle(4)
    assert hlas.state(long) == "RUNNING"
    hlas.slurm.end(long)
    hlas.cycle(1)
    assert sorted(run.state for run in hlas.history.runs() if run.job_id == long) == ["COMPLETED", "REQUEUED"]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_other_end_states_after_a_lost_requeue_are_accepted(hlas: Bench, state: str) -> None:
    long, before = lost_requeue(hlas)
    end_killed_script(hlas, before, state)
    hlas.cycle(3)
    assert hlas.state(long) == state
    assert long not in hlas.scheduling.jobs


def test_a_job_that_fails_before_its_requeue_stays_failed(hlas: Bench) -> None:
    long, _ = long_and_short(hlas)
    hlas.cycle(1)
    checkpoint(hlas, long, 20)
    hlas.slurm.end(long, "FAILED")
    hlas.cycle(3)
    assert hlas.state(long) == "FAILED"
    assert not hlas.audit("requeued", long)
    assert [run.state for run in hlas.history.runs() if run.job_id == long] == ["FAILED"]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_killed_job_that_slurm_does_not_requeue_stays_failed(hlas: Bench, refuses: bool) -> None:
    """refuses: Slurm refuses; otherwise asrptd is disabled."""
    long, before = lost_requeue(hlas)
    end_killed_script(hlas, before)
    if refuses:
        hlas.slurm.errors[long] = "Requested operation is presently disabled"
        hlas.cycle(2)
        assert hlas.job_state(long) is JobState.INELIGIBLE
    else:
        hlas.mode.disabled = True
    hlas.cycle(int(7 * GRACE_S))
    assert hlas.state(long) == "FAILED"
    assert long not in hlas.scheduling.jobs
    assert len(hlas.audit("gone", long)) == 1


def test_a_requeued_job_that_restarts_in_the_same_second_runs_on(hlas: Bench) -> None:
    """The owner has set StartTime=now, and Slurm's times are whole seconds."""
    long, before = lost_requeue(hlas)
    hlas.slurm.records[long] = dataclasses.replace(before, submit_time=before.start_time, restarts=1)
    hlas.cycle(3)
    assert hlas.state(long) == "RUNNING"
    assert not hlas.audit("requeued-again", long)
    assert hlas.job(long).service.began == before.start_time


def test_a_lost_requeue_by_somebody_else_is_not_requested_again(hlas: Bench) -> None:
    long = submit(hlas)
    hlas.cycle(10)
    before = hlas.slurm.records[long]
    hlas.slurm.requeued(long)
    hlas.cycle(1)
    hlas.slurm.records[long] = before
    hlas.cycle(10)
    assert hlas.state(long) == "RUNNING"
    assert not hlas.audit("requeued-again", long)


@pytest.mark.parametrize("refuses", [True, False])
def test_retries_of_a_lost_requeue_are_bounded(make: Callable[..., Bench], refuses: bool) -> None:
    """Slurm refuses, or accepts the request and does nothing."""
    hlas = make(max_interruptions=1)
    long, before = lost_requeue(hlas)
    hlas.slurm.records[long] = before
    if refuses:
        hlas.slurm.errors[long] = "Requested operation is presently disabled"
    else:
        hlas.slurm.requeue = lambda job_id, failed=False: None  # type: ignore[method-assign]
    hlas.cycle(2)
    hlas.restart()
    hlas.cycle(int(5 * GRACE_S))
    (refused,) = hlas.audit("interrupt-refused", long)
    assert ("disabled" if refuses else "still shows the ended run") in refused["error"]
    asked = len(hlas.audit("requeued-again", long))
    hlas.cycle(20)
    assert len(hlas.audit("requeued-again", long)) == asked
    assert (hlas.state(long), hlas.job(long).interruption) == ("RUNNING", None)


def test_a_preemption_is_retried_for_a_while_and_then_given_up(hlas: Bench) -> None:
    long, short = long_and_short(hlas)
    hlas.slurm.errors[long] = "Requested operation is presently disabled"
    hlas.cycle(5)
    assert hlas.job(long).interruption is not None
    del hlas.slurm.errors[long]
    hlas.cycle(1)
    assert len(hlas.slurm.signals) == 1
    hlas.slurm.errors[long] = "Requested operation is presently disabled"
    hlas.cycle(int(4 * GRACE_S))
    (refused,) = hlas.audit("interrupt-refused", long)
    assert "disabled" in refused["error"]
    assert (hlas.state(long), hlas.state(short)) == ("RUNNING", "PENDING")


def test_a_job_is_preempted_at_most_max_interruptions_times(make: Callable[..., Bench]) -> None:
    bench = make(max_interruptions=1)
    long, short = long_and_short(bench)
    bench.cycle(15)
    assert bench.state(short) == "RUNNING"
    bench.slurm.end(short)
    bench.slurm.tick(120.0)
    bench.cycle(15)
    assert bench.state(long) == "RUNNING"
    another = bench.slurm.submit(4)
    bench.cycle(30)
    assert (bench.state(long), bench.state(another)) == ("RUNNING", "PENDING")
    assert len(bench.slurm.signals) == 1


def test_users_see_why_a_job_is_preempted(hlas: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    long, short = long_and_short(hlas)
    hlas.cycle(1)
    found = hlas.status(hlas.slurm.now)
    assert (row(hlas, long).queue, row(hlas, short).queue) == (2, 1)
    assert row(hlas, long).attained_gpu_s == pytest.approx(4 * (hlas.slurm.now - hlas.slurm.records[long].start_time))
    assert (row(hlas, long).interruptions, row(hlas, short).interruptions) == (1, 0)
    assert f"preempted for job {short}" in explain(found, row(hlas, long)).why
    assert f"preempting {long} to free 4 GPUs" in explain(found, row(hlas, short)).why
    explain_command(found, row(hlas, long), as_json=False)
    said = capsys.readouterr().out
    assert "0.0233 GPU-hours so far; queue 2 (queue 1 runs first); preempted once" in said
    assert "Preemption       allowed" in said
    assert f"preempted for job {short}" in what(hlas.audit("interrupt", long)[0])
    hlas.cycle(12)
    events = [event for event in hlas.audit(job_id=long) if event["event"] in ("signalled", "requeued")]
    assert [what(event) for event in events] == [
        "signal B:USR1: asked to write a checkpoint",
        "the time for its checkpoint is over",
    ]
