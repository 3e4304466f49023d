"""Puts a scheduler together: every class gets what it needs, and nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.cycle import Scheduler
from slurm_asrpt.daemon.forecasts.forecaster import Forecaster
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.forecasts.snapshot import SnapshotMaker
from slurm_asrpt.daemon.jobs.admission import Admission
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.lifecycle import Eligibility, JobLifecycle, RunRecorder
from slurm_asrpt.daemon.policy_feed import PolicyFeed
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.state import StateSaver, StateStore, saved_adjustment
from slurm_asrpt.daemon.status import StatusBuilder
from slurm_asrpt.daemon.writes.leases import Leases
from slurm_asrpt.daemon.writes.order import OrderWriter
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.daemon.writes.release import Release
from slurm_asrpt.daemon.writes.starts import Starts
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.switch import OperatingMode


@dataclass(frozen=True)
class Scheduling:
    """What the daemon's loop runs once Slurm has answered, and again after a step of the clock."""

    scheduler: Scheduler
    snapshots: SnapshotMaker
    forecaster: Forecaster
    status: StatusBuilder
    leases: Leases


def assemble(
    settings: Settings,
    client: SlurmClient,
    slurm: SlurmConfig,
    policy: Policy,
    profiles: Profiles,
    store: StateStore,
    audit: AuditWriter,
    history: HistoryWriter,
    progress: ProgressWatch,
    recent: RecentJobs,
    mode: OperatingMode,
    clock: Any = time,
) -> Scheduling:
    """A scheduler that goes on from the saved state. Raises InputError, AsrptError for a state that cannot be read."""
    saved = store.load() or {}
    recent.start_adjustment = saved_adjustment(saved)
    spool, lease_s = settings.paths.spool, settings.daemon.lease_s
    jobs = JobTable(saved.get("jobs"))
    cluster = ClusterState(settings, slurm.memory_consumed, slurm.resume_timeout_s)
    cluster.startup_delay.load(saved.get("startup_delay"))
    rules = SiteRules(client, slurm.preempt_by, settings.policy.fairshare_bands)
    feed = PolicyFeed(policy, settings.policy.name, jobs, cluster, recent, audit)
    runs = RunRecorder(history, recent, progress)
    lifecycle = JobLifecycle(settings, jobs, cluster, feed, profiles, audit, mode, runs)
    saver = StateSaver(store, saved, policy, feed, jobs, lifecycle.ended, recent, cluster)
    leases = Leases(settings, jobs, client, mode, clock)
    rank_maps = RankMaps(spool, cluster, client, clock)
    starts = Starts(settings, jobs, cluster, feed, client, slurm, leases, rank_maps, audit, mode, saver.save)
    preemption = Preemption(settings, policy, jobs, cluster, client, audit, mode)
    scheduler = Scheduler(
        settings=settings.policy,
        state_folder=settings.paths.state,
        policy=policy,
        jobs=jobs,
        cluster=cluster,
        client=client,
        lifecycle=lifecycle,
        rules=rules,
        eligibility=Eligibility(jobs, Admission(settings, cluster, rules, profiles, mode), feed, audit, mode),
        feed=feed,
        preemption=preemption,
        leases=leases,
        starts=starts,
        rank_maps=rank_maps,
        order=OrderWriter(policy, jobs, client),
        release=Release(jobs, starts, client, audit, mode, lease_s),
        saver=saver,
        audit=audit,
        mode=mode,
        clock=clock,
    )
    snapshots = SnapshotMaker(settings, policy, jobs, cluster, progress, recent)
    forecaster = Forecaster(settings, jobs, cluster, recent, snapshots, slurm.private_jobs)
    leader = store.leader.name
    status = StatusBuilder(settings, policy, jobs, cluster, preemption, profiles, progress, recent, mode, leader)
    return Scheduling(scheduler, snapshots, forecaster, status, leases)
