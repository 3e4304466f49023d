"""asrpt-admin boost: put a pending job before all others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli.admin.access import of_asrptd
from slurm_asrpt_cli.status.selection import Wanted, read_job

from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.records import PENDING, JobRecord

if TYPE_CHECKING:
    from slurm_asrpt.slurm.cli import CliClient


def boost_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="12, 12_3 or 12_[3-5]; 12 is all of an array.")],
    undo: Annotated[bool, typer.Option("--undo", help="The job goes before others no longer.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a pending job before all others.

    Subtracts a billion from the job's nice value, so Slurm and
    asrptd obey it in all modes, and squeue and sprio show it.
    With priority/basic, it sets the job's priority instead,
    and --undo gives the job that of a new one.
    Boosted jobs are ordered by predicted work.

    \b
    Examples:
      asrpt-admin boost 4711
      asrpt-admin boost 4711 --undo
    """
    from slurm_asrpt.slurm import writeback
    from slurm_asrpt.slurm.cli import CliClient

    client = CliClient(of_asrptd(config).slurm)
    records = _named(client.jobs(), read_job(job))
    waiting = [record for record in records if record.state == PENDING]
    if not waiting:
        state = "not pending: " + records[0].state if records else "unknown to Slurm"
        raise InputError(f"job {job} is {state}; only pending jobs can be boosted")
    multifactor = client.config().multifactor
    changed = [record for record in waiting if writeback.is_boosted(record, multifactor) == undo]
    if undo and not multifactor:
        _restore_default(client, changed)
    else:
        errors = sorted(set(filter(None, client.update([writeback.boost(r, multifactor, undo) for r in changed]))))
        if errors:
            raise SlurmError(f"job {job}: {'; '.join(errors)}")
    _tell(job, changed, undo, as_json)


def _named(every: Sequence[JobRecord], wanted: Wanted) -> list[JobRecord]:
    """The job, or the tasks of the array; of a heterogeneous job the first component, whose update changes all.

    A task that still shares its array's record gets one of its own, as in Slurm once it is updated.
    """
    if wanted.tasks:
        return [part for record in every if (part := _part(record, wanted))]
    job = wanted.job_id
    found = [record for record in every if job in (record.job_id, record.array_id)]
    array, _, task = job.partition("_")
    for record in every if task and not found else ():
        if record.job_id == array and any(int(task) in some for some in read_tasks(record.array_tasks)):
            return [replace(record, job_id=job, array_tasks="")]
    first = {record.het_id for record in found if record.het_id} - {record.job_id for record in found}
    return [record for record in every if record.job_id in first] or found


def _part(record: JobRecord, wanted: Wanted) -> JobRecord | None:
    """The job; of an array's remaining tasks those that are wanted. None if it is not. Raises InputError."""
    if record.job_id != wanted.job_id:
        return record if wanted.names(record.job_id) else None
    tasks = [task for some in read_tasks(record.array_tasks) for task in some]
    kept = [task for task in tasks if any(task in some for some in wanted.tasks)]
    part = record if len(kept) == len(tasks) else replace(record, array_tasks=",".join(map(str, kept)))
    if part is not record and not part.can_be_parted and kept:
        raise InputError(f"{wanted.name}: too many tasks to name at once; name fewer, or {wanted.job_id} for all")
    return part if kept else None


def _restore_default(client: CliClient, records: list[JobRecord]) -> None:
    """Slurm gives a job its default priority again when it is released. Raises SlurmError."""
    for record in records:
        client.run("scontrol", "hold", record.address)
        client.run("scontrol", "release", record.address)


def _tell(job: str, changed: list[JobRecord], undo: bool, as_json: bool) -> None:
    ids = [record.address for record in changed]
    if as_json:
        print(json.dumps({"boosted": not undo, "changed": ids}))
    elif not changed:
        print(f"job {job} {'was not boosted' if undo else 'is boosted already'}")
    elif len(ids) > 1:
        print(f"{len(ids)} jobs {'no longer ' if undo else ''}go before all others: {' '.join(ids)}")
    else:
        components = " with all its components" if changed[0].het else ""
        print(f"job {ids[0]}{components} {'no longer ' if undo else ''}goes before all others")
