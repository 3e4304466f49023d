"""asrpt-admin disable and release: asrptd releases the pending jobs; if no asrptd runs, this module does.

It must work whatever the problem is, so it does not use history, models and policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt import switch
from slurm_asrpt.audit.trail import FILE_NAME as AUDIT_FILE
from slurm_asrpt.audit.trail import Entry, entry_of
from slurm_asrpt.config.settings import Settings
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.leader import LeaderLock
from slurm_asrpt.daemon.lifecycle import JobLifecycle, RunSink
from slurm_asrpt.daemon.policy_feed import JobListener
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.state import StateStore
from slurm_asrpt.daemon.writes.leases import Fences, Leases
from slurm_asrpt.daemon.writes.pins import Pins
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.daemon.writes.release import DONE, REFUSED, Release
from slurm_asrpt.daemon.writes.starts import StartWithdrawal, with_patience
from slurm_asrpt.errors import AsrptError, InputError, SlurmError
from slurm_asrpt.files import as_owner
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import with_parts_and_indexes
from slurm_asrpt.status.document import read_status
from slurm_asrpt.switch import OperatingMode

PATIENCE_S = 30.0
"""How long to wait for asrptd, in addition to three cycles."""
POLL_S = 0.2
RETRY_S = 10.0
"""Between two attempts while Slurm does not answer."""


@dataclass(frozen=True)
class Released:
    """by: what released the jobs. jobs, refused: job ids; refused jobs start when their leases expire."""

    by: str
    jobs: list[str]
    refused: list[str]


def disable(settings: Settings, client: SlurmClient, on_wait: Callable[[float], None]) -> Released:
    """Disable asrptd and release the pending jobs. on_wait: called with the seconds waited for asrptd so far.

    Root acts as the daemon's user. Raises AsrptError, SlurmError, OSError; asrptd is disabled even then.
    """
    state, since = settings.paths.state, time.time()
    _check_ran(state)
    with as_owner(state):
        trail, leader = _TrailSince(state / AUDIT_FILE), LeaderLock(state)
        switch.turn_off(state)
        while not leader.take():
            if _disabled_since(settings.paths.run, since):
                return Released("asrptd", *trail.released())
            _be_patient(settings, time.time() - since)
            on_wait(time.time() - since)
            time.sleep(POLL_S)
        try:
            release_instead(settings, client, leader, time.time())
        finally:
            leader.close()
        return Released("asrpt-admin", *trail.released())


def release_if_gone(settings: Settings, client: SlurmClient) -> Released | None:
    """Release the jobs that wait, unless an asrptd leads (None). The next asrptd schedules as before.

    While Slurm does not answer, it is asked again until all leases have expired. Raises AsrptError, SlurmError,
    OSError.
    """
    state, until = settings.paths.state, time.monotonic() + settings.daemon.lease_s
    _check_ran(state)
    with as_owner(state):
        trail, leader = _TrailSince(state / AUDIT_FILE), LeaderLock(state)
        while leader.take():
            try:
                release_instead(settings, client, leader, time.time())
                return Released("asrpt-admin", *trail.released())
            except SlurmError:
                if time.monotonic() > until:
                    raise
            finally:
                leader.close()
            time.sleep(RETRY_S)
    return None


def _check_ran(state: Path) -> None:
    """Raises InputError where asrptd has never run."""
    if not state.is_dir():
        raise InputError(f"{state} is not there: asrptd has not run here, so there is nothing to release")


def _be_patient(settings: Settings, waited: float) -> None:
    """Raises AsrptError after the maximum wait for asrptd."""
    patience = PATIENCE_S + 3 * settings.daemon.interval_s
    if waited > patience:
        raise AsrptError(
            f"asrptd has not released the jobs within {patience:.0f} s. It will as soon as it can (see its log); "
            f"otherwise stop it (systemctl stop asrptd) and run this again"
        )


def _disabled_since(run: Path, since: float) -> bool:
    try:
        status = read_status(run)
    except AsrptError:
        return False
    return status.mode == "disabled" and status.written > since


def release_instead(settings: Settings, client: SlurmClient, leader: LeaderLock, now: float) -> None:
    """Do what asrptd does in its first cycle after it is disabled. Raises AsrptError, SlurmError, OSError."""
    store = StateStore(leader)
    saved = store.load() or {}
    if settings.paths.hook.is_dir():  # else the hook is removed, and does not lease jobs
        write_hook_conf(settings.paths.hook, settings.slurm.partitions, 0, now, settings.group)
    jobs, audit = JobTable(saved.get("jobs")), AuditWriter(settings.paths.state, settings.audit)

    def save(now: float) -> None:
        store.amend(saved, {job.record.job_id: job.dump() for job in jobs.pending()}, now)

    try:
        _release(settings, client, jobs, audit, save, now)
    finally:
        audit.flush()
    save(now)


def _release(
    settings: Settings,
    client: SlurmClient,
    jobs: JobTable,
    audit: AuditWriter,
    save: Callable[[float], None],
    now: float,
) -> None:
    """Release the jobs without a policy and a history; the next asrptd records the runs that end meanwhile."""
    slurm, operating = client.config(), OperatingMode(settings.daemon.mode, disabled=True)
    cluster, listener = ClusterState(settings, slurm.memory_consumed), JobListener()
    profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
    lifecycle = JobLifecycle(settings, jobs, cluster, listener, profiles, audit, operating, RunSink())
    records, nodes = with_parts_and_indexes(client.jobs(), client.nodes(), bool(cluster.fabric.domain))
    lifecycle.follow_nodes(nodes, now)
    lifecycle.follow_jobs(records, now)
    rules = SiteRules(client, slurm, fairshare_bands=0, preempting=False)
    rules.limits.follow(records, now, nodes)
    fences = Fences(Leases(settings, jobs, client, operating, time), listener, audit, save)
    pins = Pins(client, slurm, cluster, rules.limits, RankMaps(settings.paths.spool, cluster, client, time))
    patient = with_patience(settings.daemon, slurm.start_delay_s)
    withdrawal = StartWithdrawal(patient, jobs, listener, fences, pins, rules, audit, operating)
    Release(jobs, withdrawal, client, audit, operating, settings.daemon.lease_s, slurm.multifactor).release_all(now)


class _TrailSince:
    """The entries of the audit trail from now on."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size if path.exists() else 0

    def released(self) -> tuple[list[str], list[str]]:
        """Jobs released, and those that Slurm refused to update."""
        done: dict[str, bool] = {}
        for entry in self._entries():
            if entry.get("event") in (DONE, REFUSED):
                done[str(entry.get("job"))] = entry["event"] == DONE
        return [job for job, good in done.items() if good], [job for job, good in done.items() if not good]

    def _entries(self) -> Iterator[Entry]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.size if self.path.stat().st_size >= self.size else 0)  # else the file was rotated
            yield from filter(None, map(entry_of, file))
