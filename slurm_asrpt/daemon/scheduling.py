"""Creates a scheduler with all its parts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.checkpoint_times import CheckpointTimes
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.communication import LearnedCommunication
from slurm_asrpt.daemon.cpu_jobs import CpuJobs
from slurm_asrpt.daemon.cycle import Scheduler, SlurmReader
from slurm_asrpt.daemon.decider import Decider
from slurm_asrpt.daemon.eligibility import Eligibility
from slurm_asrpt.daemon.forecasts.forecaster import Forecaster
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.forecasts.snapshot import SnapshotMaker
from slurm_asrpt.daemon.jobs.admission import Admission
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.jobs.turns import Turns
from slurm_asrpt.daemon.late_predictions import LatePredictions
from slurm_asrpt.daemon.lifecycle import JobLifecycle, RunRecorder
from slurm_asrpt.daemon.loss_sizes import LossSizes
from slurm_asrpt.daemon.policy_feed import PolicyFeed
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.record.ended import EndedReports, Waits
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.slurm_writer import SlurmWriter
from slurm_asrpt.daemon.state import StateSaver, StateStore, saved_adjustment
from slurm_asrpt.daemon.status import JobRows, StatusBuilder
from slurm_asrpt.daemon.topology import TopologyWatch
from slurm_asrpt.daemon.writes.leases import Fences, Leases
from slurm_asrpt.daemon.writes.order import OrderWriter
from slurm_asrpt.daemon.writes.pins import Pins
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.daemon.writes.release import Release
from slurm_asrpt.daemon.writes.release_ahead import ReleaseAhead
from slurm_asrpt.daemon.writes.starts import Starts, StartWithdrawal
from slurm_asrpt.predict.retrain import models_folder
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.switch import OperatingMode


@dataclass(frozen=True)
class Scheduling:
    """What the daemon's loop uses; created when Slurm has answered, and again after a step of the clock."""

    scheduler: Scheduler
    jobs: JobTable
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
    """Create a scheduler from the saved state. Raises InputError, AsrptError if the state cannot be read."""
    saved = store.load() or {}
    recent.start_adjustment = saved_adjustment(saved)
    jobs = JobTable(saved.get("jobs"))
    cluster = ClusterState(settings, slurm.memory_consumed, slurm.resume_timeout_s, slurm.whole_cores)
    cluster.startup_delay.load(saved.get("startup_delay"))
    rules = SiteRules(client, slurm, settings.policy.fairshare_bands, policy.preempting)
    feed = PolicyFeed(policy, settings.policy.name, saved, jobs, cluster, recent, audit)
    reports = EndedReports(Waits())
    runs = RunRecorder(history, recent, progress, reports, cluster)
    lifecycle = JobLifecycle(settings, jobs, cluster, feed, profiles, audit, mode, runs)
    checkpoints = CheckpointTimes(settings.interrupt.grace_s)
    checkpoints.load(saved.get("checkpoint_times"))
    preemption = Preemption(settings, policy, jobs, cluster, rules, checkpoints, client, audit, mode)
    communication = LearnedCommunication(models_folder(settings), settings.predict.communication)
    admission = Admission(settings, cluster, rules, profiles, communication, mode)
    loss_sizes = LossSizes(policy, jobs, progress, audit)
    late = LatePredictions(settings.paths.hook, audit)
    eligibility = Eligibility(
        jobs, admission, Turns(cluster, rules, mode), feed, loss_sizes, preemption, late, audit, mode
    )
    cpu_jobs = CpuJobs(jobs, cluster, feed, audit, policy.bands)
    decider = Decider(settings, policy, jobs, cluster, rules, preemption, cpu_jobs, audit, mode)

    saver = StateSaver(store, saved, policy, feed, jobs, lifecycle.ended, recent, cluster, checkpoints, mode)
    leases, rank_maps = (
        Leases(settings, jobs, client, mode, clock),
        RankMaps(settings.paths.spool, cluster, client, clock),
    )
    fences, pins = Fences(leases, feed, audit, saver.save), Pins(client, slurm, cluster, rules.limits, rank_maps)
    withdrawal = StartWithdrawal(settings.daemon, jobs, feed, fences, pins, rules.limits, audit, mode)
    starts = Starts(jobs, client, leases, fences, pins, withdrawal, audit)
    release = Release(jobs, withdrawal, client, audit, mode, settings.daemon.lease_s, slurm.multifactor)
    order = OrderWriter(policy, jobs, rules.priorities, client)
    most = settings.daemon.release_ahead
    ahead = ReleaseAhead(most, policy, jobs, cluster, cpu_jobs, leases, client, audit, slurm.multifactor)
    writer = SlurmWriter(starts, withdrawal, release, order, ahead, preemption, saver, audit, mode)

    topology = TopologyWatch(client, cluster, settings.slurm.partitions)
    reader = SlurmReader(client, lifecycle, rules, leases, topology)
    scheduler = Scheduler(reader, eligibility, decider, writer, saver, rank_maps, audit, clock)
    snapshots = SnapshotMaker(settings, policy, jobs, cluster, progress, recent, communication, preemption.preemptible)
    forecaster = Forecaster(settings, jobs, cluster, recent, snapshots, mode, slurm.private_jobs)
    rows = JobRows(cluster, profiles, recent, preemption, cpu_jobs, rules.limits, settings.policy.fairshare_bands)
    status = StatusBuilder(settings, policy, jobs, cluster, rows, progress, reports, mode, store.leader.name)
    return Scheduling(scheduler, jobs, snapshots, forecaster, status, leases)
