"""A Scheduler on a FakeSlurm with its paths in a directory of the test, and helpers to inspect it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_asrpt.config.settings import Settings, parse_settings
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.policies import make_policy, policy_settings
from slurm_asrpt.daemon.forecasts.forecaster import Computation, Forecaster, Process
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.leader import LeaderLock
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.scheduling import assemble
from slurm_asrpt.daemon.state import StateStore
from slurm_asrpt.errors import InputError
from slurm_asrpt.history.store import History, Run
from slurm_asrpt.spool import hosts_dir, progress_dir
from slurm_asrpt.status.document import Status
from slurm_asrpt.switch import OperatingMode
from tests.benches.fake_slurm import FakeSlurm

# the last stage communicates most: on servers of 1, 4 and 1 GPUs Heavy-Edge puts the last four ranks together
TAIL = JobProfile(
    "tail", (Stage(2, 0.01, 0.01, 0, 1e6, 1e6), Stage(2, 0.01, 0.01, 1e6, 1e6, 2e6), Stage(2, 0.01, 0.01, 1e6, 0, 2e7))
)
FLAT = JobProfile("flat", (Stage(4, 1.0, 1.0),))
SLICED = JobProfile("sliced", (Stage(4, 1.0, 1.0, param_bytes=1e9),), tensor=2)  # 8 GPUs in pairs
KNOWN = {"tail": TAIL, "flat": FLAT, "sliced": SLICED}


def load(name: str) -> JobProfile:
    if name not in KNOWN:
        raise InputError(f"no profile {name}")
    return KNOWN[name]


@dataclass
class Clock:
    """A clock that advances only when the daemon sleeps, so that tests need not wait."""

    slurm: FakeSlurm

    def time(self) -> float:
        return self.slurm.now

    def monotonic(self) -> float:
        return self.slurm.now

    def sleep(self, seconds: float) -> None:
        self.slurm.tick(seconds)


def make_settings(
    folder: Path,
    mode: str = "enforce",
    policy: str = "asrpt",
    fairshare_bands: int = 0,
    tau: float = 1.0,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    **daemon: Any,
) -> Settings:
    """tables: other sections, and further keys of ``policy``."""

    paths = {name: str(folder / name) for name in ("state", "run", "hook", "spool")}
    for path in paths.values():
        Path(path).mkdir(exist_ok=True)
    values = {"mode": mode, "interval_s": 1.0, "progress_s": 1.0, "lease_s": 600, "unpin_after_s": 10.0, **daemon}
    chosen = {"name": policy, "fairshare_bands": fairshare_bands, "tau": tau}
    more = dict(tables or {})
    chosen |= more.pop("policy", {})
    return parse_settings({"daemon": values, "paths": {**paths, "profiles": []}, "policy": chosen, **more}, "test")


class Bench:
    """The daemon's scheduler and the Slurm that it drives."""

    def __init__(self, folder: Path, slurm: FakeSlurm, mode: str = "enforce", tau: float = 1.0, **daemon: Any) -> None:
        """The policy is asrpt unless ``policy`` names another one."""
        self.folder, self.slurm = folder, slurm
        slurm.multifactor = slurm.multifactor or mode == "order"  # which has no order with priority/basic
        self.settings = make_settings(folder, mode, tau=tau, **daemon)
        self.history = History(folder / "state" / "history.sqlite")
        self.start()

    def start(self) -> None:
        """Start a new daemon on the same directories."""
        state, spool = self.settings.paths.state, self.settings.paths.spool
        name = self.settings.policy.name
        chosen = self.settings.policy.chosen(policy_settings(name))
        self.leader = LeaderLock(state)
        assert self.leader.take()
        clock = Clock(self.slurm)
        self.profiles, self.mode = Profiles(load), OperatingMode(self.settings.daemon.mode)
        self.recent, self.audit_writer = RecentJobs(), AuditWriter(state, listener=lambda *event: self.listen(*event))
        self.history_writer = HistoryWriter(lambda: self.history, spool, self.profiles)
        self.progress = ProgressWatch(spool, self.settings.daemon.progress_s, clock.monotonic)
        self.scheduling = assemble(
            settings=self.settings,
            client=self.slurm,
            slurm=self.slurm.config(),
            policy=make_policy(name, fabric=self.settings.fabric.to_core(), **chosen),
            profiles=self.profiles,
            store=StateStore(self.leader),
            audit=self.audit_writer,
            history=self.history_writer,
            progress=self.progress,
            recent=self.recent,
            mode=self.mode,
            clock=clock,
        )
        self.scheduler = self.scheduling.scheduler

    def listen(self, event: str, facts: Mapping[str, Any]) -> None:
        """Called for each event of the audit trail; tests may replace it."""

    def forecaster(self, begin: Callable[[bytes, float], Computation] = Process, saved: Any = None) -> Forecaster:
        """Another forecaster beside this daemon's. begin: starts a computation. saved: of one before a restart."""
        jobs, cluster, snapshots = self.scheduling.jobs, self.scheduler.decider.cluster, self.scheduling.snapshots
        return Forecaster(self.settings, jobs, cluster, self.recent, snapshots, self.mode, False, begin, saved)

    def status(self, now: float, forecaster: Forecaster | None = None) -> Status:
        return self.scheduling.status.build(now, forecaster or self.scheduling.forecaster)

    def stop(self) -> None:
        """End the daemon as a crash does: nothing is written."""
        self.leader.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        self.history.close()

    def cycle(self, times: int = 1, seconds: float = 1.0) -> None:
        """Run cycles, each followed by a pause of ``seconds``."""
        for _ in range(times):
            self.scheduler.cycle(self.slurm.now)
            self.scheduler.between_cycles(seconds)
            self.slurm.tick(seconds)

    def job(self, job_id: str) -> ManagedJob:
        return self.scheduling.jobs[job_id]

    def job_state(self, job_id: str) -> JobState:
        return self.job(job_id).state

    def state(self, job_id: str) -> str:
        return self.slurm.records[job_id].state

    def writes(self, job_id: str) -> list[dict[str, str]]:
        return [dict(update.fields) for update in self.slurm.writes if update.job_id == job_id]

    def audit(self, event: str = "", job_id: str = "") -> list[dict[str, Any]]:
        path = self.settings.paths.state / "audit.jsonl"
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [e for e in entries if event in ("", e["event"]) and job_id in ("", e.get("job"))]

    def hosts(self, job_id: str) -> Path:
        return hosts_dir(self.settings.paths.spool) / job_id

    def report(self, job_id: str, text: str) -> Path:
        """Write a job's progress file. Returns its directory."""
        folder = progress_dir(self.settings.paths.spool) / job_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "iterations").write_text(text, encoding="utf-8")
        os.utime(folder / "iterations", (self.slurm.now, self.slurm.now))
        return folder

    def runs(self) -> dict[str, Run]:
        return {run.job_id: run for run in self.history.runs()}
