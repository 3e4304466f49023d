"""asrpt-status --what-if: where and when a job script would start if it were submitted now.

Does not query Slurm, except for the caller's default account where a partition of the job admits some accounts only.
"""

from __future__ import annotations

import grp
import json
import math
import os
import pwd
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.submission import AsSbatch, Submission, as_submitted, read_script
from slurm_asrpt_cli._app.tables import clock_interval, fold_nodes, print_facts, safe
from slurm_asrpt_cli.status.status_file import staleness
from slurm_asrpt_cli.status.table import against_best, date, durations, gpus_in_words, learned_from

from slurm_asrpt.config.settings import Mode, Settings, load_settings
from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.core.units import Unit
from slurm_asrpt.daemon.what_if import Admitted, as_admitted, is_rejected, simulated, with_adjusted_interval
from slurm_asrpt.errors import AsrptError, InputError, SlurmError
from slurm_asrpt.forecast.estimate import SAMPLES
from slurm_asrpt.forecast.snapshot import MAX_JOBS, PUBLISHED, Snapshot, from_json
from slurm_asrpt.forecast.what_if import WhatIfResult
from slurm_asrpt.hook import table
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.predict.conformal import including
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.partitions import is_closed, refused_by, rejected_by
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.request import LeftToSlurm, asked_gpus
from slurm_asrpt.slurm.sbatch import as_record, read_submission
from slurm_asrpt.status.document import Status, read_published, read_status, withdrawn_after
from slurm_asrpt.status.reason_texts import LEFT_WORDS, in_words, text_of, why_open
from slurm_asrpt.text import counted, slurm_time

BUDGET_S = 3.0
"""CPU seconds for the simulation; the rest takes one. In a long queue, the simulated futures are shorter then."""

NO_GPUS = (
    "jobs without GPUs are not simulated; they start by priority, then submission, on CPUs that waiting GPU jobs do "
    "not need"
)
REJECTED = "sbatch would reject it: no node has the CPUs and memory that it needs with its GPUs"


@dataclass(frozen=True)
class WhatIf:
    """The answer; None and "" for what is unknown. start_...: seconds since the epoch.

    predicted_low, predicted_high: the table's, adjusted as asrptd does; unadjusted if asrptd has published nothing.
    predicted_unit: "seconds" of work if asrptd, which converts them into iterations, would not plan the job.
    communicates: it has no profile, and asrptd has learned that nodes far apart slow down such jobs.
    predicted_mean: the iterations that the order of the queue uses, and the predicted runtime; 0: predicted_iterations.
    trouble: why there is no placement or start. note: a problem with the prediction.
    unused_profile: why asrptd ignores the profile. array: the task IDs of a job array, of which this is the first task.
    slurm_chooses: why Slurm will choose its nodes at its turn. mode: who decides, if asrptd does not.
    not_before: its own begin time (--begin), if that is in the future: what follows then is not simulated.
    """

    script: str
    group: str
    profile: str
    gpus: int
    predicted_iterations: int
    predicted_low: int
    predicted_high: int
    predicted_by: str
    predicted_unit: str = Unit.ITERATIONS
    note: str = ""
    unused_profile: str = ""
    as_of: float | None = None
    placement: dict[str, int] | None = None
    alpha: float | None = None
    alpha_min: float | None = None
    rank: int | None = None
    reason: str = ""
    why: str = ""
    start_earliest: float | None = None
    start_median: float | None = None
    start_latest: float | None = None
    start_open: str = ""
    predicted_mean: int = 0
    trouble: str = ""
    promise: bool = False
    array: str = ""
    communicates: bool = False
    slurm_chooses: str = ""
    not_before: float | None = None
    mode: str = ""


def what_if_command(script: Path, words: Sequence[str], config: Path | None, as_json: bool) -> None:
    """Print the answer. words: sbatch's options and the script's arguments. Raises InputError, AsrptError."""
    settings = load_settings(config)
    text = read_script(script)
    if not text.startswith(b"#!"):
        raise InputError(f"{script}: not a job script; its first line must begin with #!, as in #!/bin/bash")
    asked = read_submission(text, words)
    record = as_record(asked, "", 0, settings.slurm.partitions[0], time.time())
    given = AsSbatch(
        *(asked.args, asked.options.get("job-name"), None, asked.options.get("comment")), gpus=asked_gpus(record)
    )
    submission = as_submitted(settings, script, given)
    record = replace(record, user=submission.user, uid=submission.subject.uid)
    found = _outlook(settings, script, submission, record)
    if as_json:
        print(json.dumps(vars(found)))
    else:
        _show(found)


def _outlook(settings: Settings, script: Path, submission: Submission, record: JobRecord) -> WhatIf:
    tag, found = _looked_up(settings, script, submission, record)
    try:
        status, snapshot = _published(settings)
        record = replace(record, account=record.account or _default_account(settings, record, snapshot))
        tag = with_adjusted_interval(tag, record.uid, snapshot)
        found = replace(found, predicted_low=tag.low, predicted_high=tag.high)
        admitted = as_admitted(settings, record, tag, status, snapshot)
    except LeftToSlurm as verdict:
        if verdict.why == "nogpu" and status.mode == Mode.ENFORCE:
            return replace(found, gpus=0, trouble=NO_GPUS)
        missing = _unknown_partitions(settings, record, status) if verdict.why == "partition" else ""
        return replace(found, reason="left", why=f"left to Slurm: {verdict}", trouble=missing)
    except AsrptError as error:
        return replace(found, trouble=str(error))
    found = _with_plan(found, admitted)
    if refused := _refused_by_partitions(found, record, snapshot):
        return refused
    if is_rejected(admitted.job, snapshot.slurm_nodes):
        return replace(found, reason="capacity", why=REJECTED)
    if held := _waits_for_slurm(record):
        return replace(found, trouble=held)
    if record.eligible_time > record.submit_time:
        why = in_words("begin", {"until": record.eligible_time})
        return replace(found, reason="begin", why=why, not_before=record.eligible_time)
    with progress("simulating", SAMPLES) as told:
        result = simulated(admitted, status, snapshot, BUDGET_S, told)
    found = _with_start(replace(found, as_of=snapshot.now), result)
    if status.mode == Mode.ENFORCE:
        return found
    return replace(found, mode=f"mode {status.mode}: Slurm decides; this is what mode enforce would do")


def _refused_by_partitions(found: WhatIf, record: JobRecord, snapshot: Snapshot) -> WhatIf | None:
    """The answer if no partition of the job takes or starts it; None if one may."""
    known = snapshot.partitions
    if rejected := rejected_by(record, known, _groups(record, snapshot)):
        return replace(found, reason="partition-closed", why=rejected, trouble="sbatch would reject it")
    if limit := refused_by(record, known):
        return replace(found, reason="over-limit", why=in_words("over-limit", {"limit": limit}))
    if is_closed(record, known):
        why = in_words("partition-closed", {"partition": record.partition})
        return replace(found, reason="partition-closed", why=why, trouble="its partition starts no jobs now")
    return None


def _default_account(settings: Settings, record: JobRecord, snapshot: Snapshot) -> str:
    """The caller's own, from Slurm, if a partition of the job admits some accounts only; "" if it is not known.

    The published snapshot has no accounts of users: everybody can read it.
    """
    of_job = [snapshot.partitions[name] for name in record.partition.split(",") if name in snapshot.partitions]
    if all(each.accounts.admit_all for each in of_job):
        return ""
    try:
        return CliClient(settings.slurm).default_account(record.user)
    except SlurmError:  # Slurm has the last word
        return ""


def _groups(record: JobRecord, snapshot: Snapshot) -> frozenset[str] | None:
    """The names of the caller's groups, if a partition asks for them; None for root, whom Slurm always admits."""
    if record.uid == 0 or all(each.groups is None for each in snapshot.partitions.values()):
        return None
    account = pwd.getpwuid(record.uid)
    found = set[str]()
    for number in os.getgrouplist(account.pw_name, account.pw_gid):
        with suppress(KeyError):  # a group without a name
            found.add(grp.getgrgid(number).gr_name)
    return frozenset(found)


def _looked_up(settings: Settings, script: Path, submission: Submission, record: JobRecord) -> tuple[Tag, WhatIf]:
    """The tag that the hook would write, and the answer without asrptd."""
    subject, profile = submission.subject, submission.profile
    path = settings.paths.hook / table.FILE_NAME
    answer, trouble = table.lookup(path, subject.keys, subject.features, subject.profiled_keys)
    tag = Tag(
        *(subject.group, answer.iterations, profile),
        left="off" if submission.hints.off else "",
        low=answer.low,
        high=answer.high,
        program=subject.program,
        sizes=submission.sizes,
        mean=answer.mean,
        unit=answer.unit,
    )
    found = WhatIf(
        *(str(script), subject.group, profile, subject.gpus),
        predicted_iterations=answer.iterations,
        predicted_low=answer.low,
        predicted_high=answer.high,
        predicted_by=answer.level,
        predicted_mean=answer.mean,
        predicted_unit=answer.unit if profile else Unit.ITERATIONS,
        note=_note(settings, trouble),
        array=record.array_tasks,
    )
    return tag, found


def _note(settings: Settings, trouble: str) -> str:
    """A problem with the prediction table; the hook treats such a job as unseen, too."""
    if trouble and not (settings.paths.hook / table.FILE_NAME).exists():
        return f"no prediction table in {settings.paths.hook} (asrpt-admin retrain creates it), so it counts as unseen"
    return f"{trouble}, so the job counts as unseen" if trouble else ""


def _published(settings: Settings) -> tuple[Status, Snapshot]:
    """The published status and snapshot. Raises AsrptError if there is none, or it is too old."""
    status = read_status(settings.paths.run)
    if not status.forecast_s:
        raise AsrptError("daemon.forecast_s is 0, so asrptd publishes no snapshot to simulate")
    path = settings.paths.run / PUBLISHED
    try:
        snapshot = from_json(read_published(settings.paths.run, PUBLISHED))
    except ValueError as error:
        raise AsrptError(f"{path} is damaged or from another release") from error
    if not snapshot.slurm_nodes:
        raise AsrptError(f"{path} is from another release; restart asrptd")
    if time.time() > snapshot.now + withdrawn_after(status.forecast_s):
        raise AsrptError(f"{path} is from {date(snapshot.now)}: asrptd may be down (systemctl status asrptd)")
    if old := staleness(status, time.time()):
        raise AsrptError(old)
    if status.written > snapshot.now and not _same_queue(status, snapshot):
        raise AsrptError(
            f"the queue has changed since {path} was written ({date(snapshot.now)}); try again in a moment"
        )
    return status, snapshot


def _same_queue(status: Status, snapshot: Snapshot) -> bool:
    """Whether the same jobs hold GPUs and wait in both; a snapshot has only the head of the queue."""
    holding = {job.job_id for job in status.jobs if job.state in (Phase.RUNNING, Phase.STARTING)}
    first = {job.job_id for job in status.jobs if job.rank is not None and job.rank <= MAX_JOBS}
    return holding == {str(run.job_id) for run in snapshot.running} and first == {
        str(each.job.id) for each in snapshot.waiting
    }


def _unknown_partitions(settings: Settings, record: JobRecord, status: Status) -> str:
    """That the job names partitions which do not exist, or have no managed nodes; "" if there are none.

    The status does not tell these two apart, and Slurm is not asked.
    """
    known = set(settings.slurm.partitions).union(*(node.partitions for node in status.nodes))
    missing = [name for name in record.partition.split(",") if name not in known]
    return f"partition {', '.join(missing)} does not exist, or has no managed nodes (sinfo)" if missing else ""


def _waits_for_slurm(record: JobRecord) -> str:
    if record.reason == "JobHeldUser":
        return "the job is held (--hold); it has no place in the queue until scontrol release"
    return "the job waits for its dependency first (--dependency)" if record.dependency else ""


def _with_plan(known: WhatIf, admitted: Admitted) -> WhatIf:
    """The answer with what asrptd would plan with."""
    tag = admitted.tag
    return replace(
        known,
        gpus=admitted.job.gpus,
        unused_profile=admitted.unused_profile,
        slurm_chooses=LEFT_WORDS.get(admitted.by_slurm, ""),
        communicates=admitted.communicates,
        predicted_iterations=tag.iterations,
        predicted_low=tag.low,
        predicted_high=tag.high,
        predicted_unit=Unit.ITERATIONS,
        predicted_mean=tag.mean,
    )


def _with_start(known: WhatIf, result: WhatIfResult) -> WhatIf:
    """The answer with the simulated start."""
    found = replace(known, alpha_min=result.alpha_min, rank=result.rank)
    if result.placement is not None:
        found = replace(found, placement=dict(result.placement.gpus), alpha=result.placement.alpha)
    if result.reason is not None:
        found = replace(found, reason=result.reason.kind, why=text_of(result.reason))
    start = result.start
    if start is None:
        return found
    earliest, median, latest = (
        at if math.isfinite(at) else None for at in (start.earliest, start.median, start.latest)
    )
    found = replace(found, start_earliest=earliest, start_median=median, start_latest=latest)
    return replace(found, start_open=str(start.open_end))


def _show(found: WhatIf) -> None:
    first = " (for job arrays, only the first task is shown)" if found.array else ""
    lines = [
        ("Job script", f"{safe(found.script)}, if submitted now{first}"),
        ("Start", _start(found)),
        ("Why not now", _why(found)),
        ("Placement", _placement(found)),
        ("GPUs", gpus_in_words(found.gpus, found.profile, found.unused_profile)),
        ("Prediction", _prediction(found)),
        ("Group", safe(found.group)),
        ("Note", safe(found.note) if found.note else ""),
        ("Mode", safe(found.mode.removeprefix("mode ")) if found.mode else ""),
        ("As of", _age(found.as_of) if found.as_of else ""),
    ]
    print_facts([line for line in lines if line[1]])


def _why(found: WhatIf) -> str:
    rank = f"position {found.rank} in the queue" if found.rank else ""
    return "; ".join(filter(None, [found.why and safe(found.why), rank]))


def _age(as_of: float) -> str:
    """asrptd reads the queue every few seconds; it does not know of jobs submitted in between."""
    ago = max(0.0, time.time() - as_of)
    return f"{date(as_of)} ({ago:.0f} s ago), without jobs submitted since; an estimate, not a promise"


def _prediction(found: WhatIf) -> str:
    if not found.predicted_iterations:
        return "none: no similar completed run"
    if not found.profile or found.unused_profile:
        return f"runtime {_seconds(found)}, {learned_from(found.predicted_by)}"
    run = _ordered_by(found) * (found.alpha or found.alpha_min or 0)
    within = f" (10-90%: {found.predicted_low}-{found.predicted_high})" if found.predicted_high else ""
    lasts = f", runtime {slurm_time(run)}" if run else ""
    return f"{_figure(found)}{within}{lasts}, {learned_from(found.predicted_by)}"


def _seconds(found: WhatIf) -> str:
    """The predicted runtime of a job without a profile, whose iterations are seconds in its best placement."""
    pace, ordered_by = found.alpha or found.alpha_min or 1.0, _ordered_by(found)
    low, high = including(ordered_by, found.predicted_low, found.predicted_high)
    low, high = low * pace, high * pace
    return slurm_time(ordered_by * pace) + (f" (10-90%: {durations(low, high)})" if high else "")


def _ordered_by(found: WhatIf) -> int:
    return found.predicted_mean or found.predicted_iterations


def _figure(found: WhatIf) -> str:
    if found.predicted_unit == Unit.ITERATIONS:
        return counted(found.predicted_iterations, "iteration")
    return f"{slurm_time(found.predicted_iterations)} of work"


def _start(found: WhatIf) -> str:
    if found.placement is not None:
        return "immediately, unless the queue has changed"
    if found.start_earliest is not None and found.as_of is not None:
        why = f", no upper bound: {why_open(found.start_open)}" if found.start_latest is None else ""
        return f"{clock_interval(found.start_earliest, found.start_latest, found.as_of)} (5-90%){why}"
    if found.not_before is not None:
        return f"{date(found.not_before)} at the earliest (--begin)"
    if found.reason == "left":
        return f"unknown: {safe(found.trouble)}" if found.trouble else "Slurm decides"
    if found.reason == "capacity":
        return "never on the current nodes"
    if found.reason == "over-limit" and found.as_of is None:
        return "never with this request"
    return f"unknown: {safe(found.trouble)}" if found.trouble else "unknown: it starts in too few simulations"


def _placement(found: WhatIf) -> str:
    if found.slurm_chooses and found.alpha_min:
        return f"Slurm will choose its nodes: {safe(found.slurm_chooses)}"
    if found.placement is None:
        return "decided when it starts" if found.alpha_min else ""
    if found.communicates and found.alpha and found.alpha_min:
        slower = f"{found.alpha / found.alpha_min:.2f} times the runtime of the best placement"
        return f"{fold_nodes(found.placement)}, {slower}, learned from earlier runs"
    if found.profile and not found.unused_profile and found.alpha and found.alpha_min:
        pace = f"{found.alpha:.4g} s per iteration, {against_best(found.alpha, found.alpha_min)}"
        return f"{fold_nodes(found.placement)}, {pace}"
    return fold_nodes(found.placement)
