"""asrpt-status --what-if: what would become of a job script that was submitted now. Asks Slurm nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.submission import AsSbatch, Submission, as_submitted
from slurm_asrpt_cli._app.tables import clock_interval, fold_nodes, print_facts, safe
from slurm_asrpt_cli.admin.common import read_file
from slurm_asrpt_cli.status.columns import date, gpus_in_words, learned_from
from slurm_asrpt_cli.status.read import staleness

from slurm_asrpt.config.settings import Mode, Settings, load_settings
from slurm_asrpt.core.durations import slurm_time
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.plurals import counted
from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.daemon.forecasts.run_lengths import span_of
from slurm_asrpt.daemon.jobs.admission import request_of
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.forecast.estimate import SAMPLES
from slurm_asrpt.forecast.sampling import Span
from slurm_asrpt.forecast.snapshot import MOST_JOBS, PUBLISHED, Snapshot, from_json
from slurm_asrpt.forecast.what_if import Newcomer, submitted_now
from slurm_asrpt.hook import table
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.predict.conformal import whole_ends
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.request import LeftToSlurm
from slurm_asrpt.slurm.sbatch import as_record, read_submission
from slurm_asrpt.status.document import Status, read_published, read_status, withdrawn_after

BUDGET_S = 20.0
"""CPU time for the simulation; what is not done by then gives no interval."""
PROMISE = "no promise: jobs that come later may go first, predictions and nodes may fail"


@dataclass(frozen=True)
class WhatIf:
    """What is known; None and "" where it is not. start_...: seconds since the epoch.

    predicted_low, predicted_high: as asrptd moves the table's; the table's own where asrptd has published nothing.
    trouble: why there is no placement or start. note: what is wrong with the prediction.
    unused_profile: why the profile does not count, where it does not. array: its tasks, of which this is the first.
    """

    script: str
    group: str
    profile: str
    gpus: int
    predicted_iterations: int
    predicted_low: int
    predicted_high: int
    predicted_by: str
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
    trouble: str = ""
    promise: bool = False
    array: str = ""


def what_if_command(script: Path, words: Sequence[str], config: Path | None, as_json: bool) -> None:
    """Print it. words: sbatch's options and the script's arguments. Raises InputError, AsrptError."""
    settings = load_settings(config)
    text = read_file(script)
    if not text.startswith(b"#!"):
        raise InputError(f"{script}: sbatch takes no file whose first line does not begin with #!, as in #!/bin/bash")
    asked = read_submission(text, words)
    given = AsSbatch(asked.args, asked.options.get("job-name"), None, asked.options.get("comment"))
    submission = as_submitted(settings, script, given)
    record = as_record(asked, submission.user, submission.subject.uid, settings.slurm.partitions[0], time.time())
    found = _outlook(settings, script, submission, record)
    if as_json:
        print(json.dumps(vars(found)))
    else:
        _show(found)


def _outlook(settings: Settings, script: Path, submission: Submission, record: JobRecord) -> WhatIf:
    subject, hints = submission.subject, submission.hints
    answer, note = table.lookup(settings.paths.hook / table.FILE_NAME, subject.keys, subject.features)
    known: dict[str, Any] = {
        "script": str(script),
        "group": subject.group,
        "profile": submission.profile,
        "gpus": subject.gpus,
        "predicted_iterations": answer.iterations,
        "predicted_low": answer.low,
        "predicted_high": answer.high,
        "predicted_by": answer.level,
        "note": _note(settings, note),
        "array": record.array_tasks,
    }
    left, sizes = "off" if hints.off else "", submission.sizes
    tag = Tag(subject.group, answer.iterations, submission.profile, left=left, sizes=sizes, mean=answer.mean)
    try:
        status, snapshot = _published(settings)
        low, high = _told(snapshot, subject.uid, answer)
        tag = replace(tag, low=low, high=high)
        known |= {"predicted_low": low, "predicted_high": high}
        if record.array_tasks and status.mode != Mode.ENFORCE:
            raise LeftToSlurm("array")
        job, unused = _admitted(settings, record, tag, status)
    except LeftToSlurm as verdict:
        return WhatIf(**known, reason="left", why=f"left to Slurm: {verdict}")
    except AsrptError as error:
        return WhatIf(**known, trouble=str(error))
    known |= {"gpus": job.gpus, "unused_profile": unused}
    held = _waits_for_slurm(record)
    if held:
        return WhatIf(**known, trouble=held)
    with progress("simulating", SAMPLES) as told:
        newcomer = submitted_now(snapshot, job, lambda alpha: _span(tag, alpha, snapshot.unknown), BUDGET_S, told)
    return _with(WhatIf(**known, as_of=snapshot.now), newcomer)


def _told(snapshot: Snapshot, uid: int, found: table.Answer) -> tuple[int, int]:
    """The interval that asrptd would go by, of the table's; 0 and 0 where there is none."""
    return whole_ends(*snapshot.moves.around(uid, found.low, found.iterations, found.high)) if found.high else (0, 0)


def _note(settings: Settings, trouble: str) -> str:
    """What is wrong with the predictions: for the hook, too, such a job is unseen."""
    if trouble and not (settings.paths.hook / table.FILE_NAME).exists():
        return f"no predictions in {settings.paths.hook} here (asrpt-admin retrain makes them), so it counts as unseen"
    return f"{trouble}, so it counts as unseen" if trouble else ""


def _span(tag: Tag, alpha: float, unknown: Span) -> Span:
    return span_of(tag.iterations, tag.low, tag.high, alpha, unknown)


def _published(settings: Settings) -> tuple[Status, Snapshot]:
    """Raises AsrptError where there is nothing, or it is too old to say anything."""
    status = read_status(settings.paths.run)
    if not status.forecast_s:
        raise AsrptError("daemon.forecast_s is 0, so asrptd publishes nothing that could be simulated")
    path = settings.paths.run / PUBLISHED
    try:
        snapshot = from_json(read_published(settings.paths.run, PUBLISHED))
    except ValueError as error:
        raise AsrptError(f"{path} is damaged, or of another release") from error
    if time.time() > snapshot.now + withdrawn_after(status.forecast_s):
        raise AsrptError(f"{path} is of {date(snapshot.now)}: asrptd may be down (systemctl status asrptd)")
    if old := staleness(status, time.time()):
        raise AsrptError(old)
    if status.written > snapshot.now and not _same_queue(status, snapshot):
        raise AsrptError(
            f"the queue has changed since {path} was written ({date(snapshot.now)}); ask again in a moment"
        )
    return status, snapshot


def _same_queue(status: Status, snapshot: Snapshot) -> bool:
    """Whether the same jobs hold GPUs and wait in both; a snapshot has the first in line only."""
    holding = {job.job_id for job in status.jobs if job.state in (Phase.RUNNING, Phase.STARTING)}
    first = {job.job_id for job in status.jobs if job.rank is not None and job.rank <= MOST_JOBS}
    return holding == {str(run.job_id) for run in snapshot.running} and first == {
        str(each.job.id) for each in snapshot.waiting
    }


def _admitted(settings: Settings, record: JobRecord, tag: Tag, status: Status) -> tuple[Job, str]:
    """As asrptd would take it, and why its profile does not count. Raises LeftToSlurm."""
    nodes = [
        NodeRecord(n.name, i, n.gpus, 0, n.gpu_type, 0, 0, 0, 0, n.state, frozenset(n.partitions), n.other_gres)
        for i, n in enumerate(status.nodes)
    ]
    profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
    job = request_of(record, tag, nodes, settings.slurm.partitions, profiles)[1]
    return job, "" if job.profiled else profiles.problem(tag, job.gpus) if tag.profile else ""


def _waits_for_slurm(record: JobRecord) -> str:
    return "it waits for its dependency first (--dependency)" if record.dependency else ""


def _with(known: WhatIf, found: Newcomer) -> WhatIf:
    """Both together."""
    start, facts = found.start, vars(known) | {"alpha_min": found.alpha_min, "rank": found.rank}
    if found.placement is not None:
        facts |= {"placement": dict(found.placement.gpus), "alpha": found.placement.alpha}
    if found.reason is not None:
        facts |= {"reason": found.reason.kind, "why": found.reason.text}
    if start is not None:
        times = [at if math.isfinite(at) else None for at in (start.earliest, start.median, start.latest)]
        facts |= dict(zip(("start_earliest", "start_median", "start_latest"), times, strict=True))
    return WhatIf(**facts)


def _show(found: WhatIf) -> None:
    whole = "; of its tasks this is the first" if found.array else ""
    lines = [
        ("Job script", f"{safe(found.script)}, as if it were submitted now{whole}"),
        ("Group", safe(found.group)),
        ("Prediction", _prediction(found)),
        ("GPUs", gpus_in_words(found.gpus, found.profile, found.unused_profile)),
        ("Start", _start(found)),
        ("Why not now", safe(found.why) if found.why else ""),
        ("Line", f"number {found.rank}" if found.rank else ""),
        ("Placement", _placement(found)),
        ("Note", safe(found.note) if found.note else ""),
        ("As of", f"{_age(found.as_of)}; {PROMISE}" if found.as_of else ""),
    ]
    print_facts([line for line in lines if line[1]])


def _age(as_of: float) -> str:
    """asrptd looks every few seconds: of what somebody has submitted in between it does not know yet."""
    return f"{date(as_of)}, {max(0.0, time.time() - as_of):.0f} s ago, so without what was submitted since"


def _prediction(found: WhatIf) -> str:
    if not found.predicted_iterations:
        return "none: no finished job like it is known"
    run = found.predicted_iterations * (found.alpha or found.alpha_min or 0)
    within = f" (10-90%: {found.predicted_low}-{found.predicted_high})" if found.predicted_high else ""
    lasts = f", run time {slurm_time(run)}" if run else ""
    return f"{counted(found.predicted_iterations, 'iteration')}{within}{lasts}, {learned_from(found.predicted_by)}"


def _start(found: WhatIf) -> str:
    if found.placement is not None:
        return "at once, as the queue was then"
    if found.start_earliest is not None and found.as_of is not None:
        return f"{clock_interval(found.start_earliest, found.start_latest, found.as_of)} (10-90%)"
    if found.reason == "left":
        return "as Slurm decides"
    if found.reason == "capacity":
        return "not on the present nodes"
    return f"unknown: {safe(found.trouble)}" if found.trouble else "unknown: hardly within a day"


def _placement(found: WhatIf) -> str:
    if found.placement is None:
        return "chosen when it starts" if found.alpha_min else ""
    if found.profile and not found.unused_profile and found.alpha and found.alpha_min:
        times = found.alpha / found.alpha_min
        return f"{fold_nodes(found.placement)}, alpha {found.alpha:.4g} s an iteration, {times:.2f} times the best"
    return fold_nodes(found.placement)
