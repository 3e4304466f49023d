"""Creates a scheduler with all its parts: who uses what."""

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
from slurm_asrpt.daemon.job_rows import JobRows
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
from slurm_asrpt.daemon.state import StateSaver, StateStore
from slurm_asrpt.daemon.status import StatusBuilder
from slurm_asrpt.daemon.topology import TopologyWatch
from slurm_asrpt.daemon.writes.leases import Fences, Leases
from slurm_asrpt.daemon.writes.order import OrderWriter
from slurm_asrpt.daemon.writes.pins import Pins
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.daemon.writes.release import Release
from slurm_asrpt.daemon.writes.release_ahead import ReleaseAhead
from slurm_asrpt.daemon.writes.starts import Starts, StartWithdrawal, with_patience
from slurm_asrpt.predict.retrain import models_folder
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.switch import OperatingMode

ADJUSTMENT, ESTIMATES = "forecast_margins", "estimates"
STARTUP_DELAY, CHECKPOINT_TIMES = "startup_delay", "checkpoint_times"
"""Keys of state.json: the conformal adjustment of start times, and what has been learned of nodes and jobs."""


@dataclass(frozen=True)
class Scheduling:
    """What the daemon's loop uses; created when Slurm has answered, and again after a step of the clock."""

    scheduler: Scheduler
    jobs: JobTable
    snapshots: SnapshotMaker
    forecaster: Forecaster
    status: StatusBuilder
    leases: Leases


@dataclass(frozen=True)
class _Shared:
    """What nearly all parts need."""

    settings: Settings
    client: SlurmClient
    slurm: SlurmConfig
    policy: Policy
    jobs: JobTable
    cluster: ClusterState
    rules: SiteRules
    feed: PolicyFeed
    audit: AuditWriter
    mode: OperatingMode


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
    recent.load_adjustment(saved.get(ADJUSTMENT))
    jobs = JobTable(saved.get("jobs"))
    cluster = ClusterState(settings, slurm.memory_consumed, slurm.resume_timeout_s, slurm.whole_cores)
    cluster.startup_delay.load(saved.get(STARTUP_DELAY))
    rules = SiteRules(client, slurm, settings.policy.fairshare_bands, policy.preempting)
    feed = PolicyFeed(policy, settings.policy.name, saved, jobs, cluster, recent, audit)
    checkpoints = CheckpointTimes(settings.interrupt.grace_s)
    checkpoints.load(saved.get(CHECKPOINT_TIMES))
    shared = _Shared(settings, client, slurm, policy, jobs, cluster, rules, feed, audit, mode)

    # what several steps of a cycle use
    reports = EndedReports(Waits())
    runs = RunRecorder(history, recent, progress, reports, cluster)
    lifecycle = JobLifecycle(settings, jobs, cluster, feed, profiles, audit, mode, runs)
    preemption = Preemption(settings, policy, jobs, cluster, rules, checkpoints, client, audit, mode)
    communication = LearnedCommunication(models_folder(settings), settings.predict.communication)
    snapshots = SnapshotMaker(
        settings, policy, jobs, cluster, progress, recent, rules.limits, communication, preemption.preemptible
    )
    private, estimates = slurm.private_jobs, saved.get(ESTIMATES)
    forecaster = Forecaster(settings, jobs, cluster, recent, snapshots, mode, private, saved=estimates)
    learned = {
        ADJUSTMENT: recent.dump_adjustment,
        ESTIMATES: forecaster.dump,
        STARTUP_DELAY: cluster.startup_delay.dump,
        CHECKPOINT_TIMES: checkpoints.dump,
    }
    saver = StateSaver(store, saved, feed, jobs, lifecycle.ended, learned, mode)
    cpu_jobs = CpuJobs(jobs, cluster, feed, audit, policy.bands)
    leases = Leases(settings, jobs, client, mode, clock)
    rank_maps = RankMaps(settings.paths.spool, cluster, client, clock)

    topology = TopologyWatch(client, cluster, settings.slurm.partitions)
    reader = SlurmReader(client, lifecycle, rules, leases, topology)
    admission = Admission(settings, cluster, rules, profiles, communication, mode)
    eligibility = _eligibility(shared, admission, progress, preemption)
    decider = Decider(settings, policy, jobs, cluster, rules, preemption, cpu_jobs, audit, mode)
    writer = _writer(shared, saver, leases, rank_maps, preemption, cpu_jobs)
    scheduler = Scheduler(reader, eligibility, decider, writer, saver, rank_maps, audit, clock)

    rows = JobRows(cluster, profiles, recent, preemption, cpu_jobs, rules.limits, settings.policy.fairshare_bands)
    status = StatusBuilder(settings, policy, jobs, cluster, rows, progress, reports, mode, store.leader.name)
    return Scheduling(scheduler, jobs, snapshots, forecaster, status, leases)


def _eligibility(shared: _Shared, admission: Admission, progress: ProgressWatch, preemption: Preemption) -> Eligibility:
    jobs, audit = shared.jobs, shared.audit
    return Eligibility(
        jobs=jobs,
        admission=admission,
        turns=Turns(shared.cluster, shared.rules, shared.mode),
        feed=shared.feed,
        loss_sizes=LossSizes(shared.policy, jobs, progress, audit),
        preemption=preemption,
        predictions=LatePredictions(shared.settings.paths.hook, audit),
        audit=audit,
        mode=shared.mode,
    )


def _writer(
    shared: _Shared,
    saver: StateSaver,
    leases: Leases,
    rank_maps: RankMaps,
    preemption: Preemption,
    cpu_jobs: CpuJobs,
) -> SlurmWriter:
    daemon, jobs, client, audit, mode = shared.settings.daemon, shared.jobs, shared.client, shared.audit, shared.mode
    limits, feed, multifactor = shared.rules.limits, shared.feed, shared.slurm.multifactor
    fences = Fences(leases, feed, audit, saver.save)
    pins = Pins(client, shared.slurm, shared.cluster, limits, rank_maps)
    patient = with_patience(daemon, shared.slurm.start_delay_s)
    withdrawal = StartWithdrawal(patient, jobs, feed, fences, pins, shared.rules, audit, mode)
    return SlurmWriter(
        starts=Starts(jobs, client, leases, fences, pins, withdrawal, audit),
        withdrawal=withdrawal,
        release=Release(jobs, withdrawal, client, audit, mode, daemon.lease_s, multifactor),
        order=OrderWriter(shared.policy, jobs, shared.rules.priorities, client),
        ahead=ReleaseAhead(
            most=daemon.release_ahead,
            policy=shared.policy,
            jobs=jobs,
            cluster=shared.cluster,
            cpu_jobs=cpu_jobs,
            leases=leases,
            client=client,
            audit=audit,
            slurm=shared.slurm,
        ),
        preemption=preemption,
        saver=saver,
        audit=audit,
        mode=mode,
    )
