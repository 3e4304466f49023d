"""asrpt-admin disable: asrptd hands back what waits, or, where none runs, this does it in its stead.

The way back must not depend on what may be the trouble: history, models and policy are left alone here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_asrpt import switch
from slurm_asrpt.audit.trail import FILE_NAME as AUDIT_FILE
from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.daemon.jobs.admission import Profiles
from slurm_asrpt.daemon.leader import Lead
from slurm_asrpt.daemon.lifecycle import World
from slurm_asrpt.daemon.parts import Parts
from slurm_asrpt.daemon.record.audit import Audit
from slurm_asrpt.daemon.state import Store
from slurm_asrpt.daemon.writes.release import DONE, REFUSED, hand_back
from slurm_asrpt.daemon.writes.starts import Writer
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.files import as_owner
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.status.document import read_status

PATIENCE_S = 30.0
"""Beyond three cycles: how long asrptd is waited for."""
POLL_S = 0.2


@dataclass(frozen=True)
class HandedBack:
    """by: who did it. jobs, refused: job ids; a refused one starts by itself when its lease runs out."""

    by: str
    jobs: list[str]
    refused: list[str]


def disable(settings: Settings, client: SlurmClient, tell: Callable[[float], None]) -> HandedBack:
    """Switch asrptd off and hand back what waits. tell: hears of the seconds waited for asrptd.

    Root is the daemon's user for it. Raises AsrptError, SlurmError, OSError; the switch is off even then.
    """
    state, since = settings.paths.state, time.time()
    if not state.is_dir():
        raise InputError(f"{state} is not there: asrptd has not run here, so nothing is to be handed back")
    with as_owner(state):
        told, lead = _Told(state / AUDIT_FILE), Lead(state)
        switch.turn_off(state)
        while not lead.take():
            if _disabled_since(settings.paths.run, since):
                return HandedBack("asrptd", *told.since_then())
            _be_patient(settings, time.time() - since)
            tell(time.time() - since)
            time.sleep(POLL_S)
        try:
            in_its_stead(settings, client, lead, time.time())
        finally:
            lead.close()
        return HandedBack("asrpt-admin", *told.since_then())


def _be_patient(settings: Settings, waited: float) -> None:
    """Raises AsrptError where asrptd has been waited for too long."""
    patience = PATIENCE_S + 3 * settings.daemon.interval_s
    if waited > patience:
        raise AsrptError(
            f"asrptd has not handed back within {patience:.0f} s; it will as soon as it can (its log says what is "
            f"wrong), or stop it (systemctl stop asrptd) and run this again"
        )


def _disabled_since(run: Path, since: float) -> bool:
    try:
        status = read_status(run)
    except AsrptError:
        return False
    return status.mode == "disabled" and status.written > since


class _Nobody:
    """Records nothing and deletes nothing: the next asrptd shall find all that it is to learn from."""

    def record(self, tracked: Any) -> None:
        return None

    def record_cut(self, tracked: Any, until: float) -> None:
        return None

    def flush(self) -> None:
        return None

    def remove(self, number: str) -> None:
        return None


def in_its_stead(settings: Settings, client: SlurmClient, lead: Lead, now: float) -> None:
    """What asrptd would do in its first cycle after being disabled. Raises AsrptError, SlurmError, OSError."""
    store = Store(lead)
    saved = store.load() or {}
    if settings.paths.hook.is_dir():  # else it was removed before, and no hook leases anything
        write_hook_conf(settings.paths.hook, settings.slurm.partitions, 0, now, settings.group)
    parts = _parts(settings, client, store)
    world = World(parts, saved)
    world.follow(client.jobs(), client.nodes(), now)

    def save(now: float) -> None:
        store.amend(saved, {t.record.job_id: t.dump() for t in world.pending()}, now)

    try:
        hand_back(Writer(world, save), now)
    finally:
        parts.audit.flush()
    save(now)


def _parts(settings: Settings, client: SlurmClient, store: Store) -> Parts:
    nobody = _Nobody()
    return Parts(
        settings=settings,
        client=client,
        slurm=client.config(),
        policy=make_policy("fifo", fabric=Fabric(1.0, 1.0)),  # is never asked
        profiles=Profiles(lambda name: load_named(name, settings.paths.profiles)),
        store=store,
        audit=Audit(settings.paths.state, settings.audit),
        recorder=nobody,  # type: ignore[arg-type]
        watch=nobody,  # type: ignore[arg-type]
        disabled=True,
    )


class _Told:
    """What the audit trail says from now on."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size if path.exists() else 0

    def since_then(self) -> tuple[list[str], list[str]]:
        """Jobs handed back, and those that Slurm would not let go of."""
        done: dict[str, bool] = {}
        for entry in self._entries():
            if entry.get("event") in (DONE, REFUSED):
                done[str(entry.get("job"))] = entry["event"] == DONE
        return [job for job, good in done.items() if good], [job for job, good in done.items() if not good]

    def _entries(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as file:
            file.seek(self.size if self.path.stat().st_size >= self.size else 0)  # else a new file has been begun
            yield from (json.loads(line) for line in file if line.endswith("\n"))
