"""Ended jobs in the output of ``sacct --parsable2`` (or ``--parsable``), with its header line, columns in any order.

    sacct --parsable2 --allusers --starttime=2025-01-01 --state=... --format=$(SACCT_FIELDS joined by commas)

With SLURM_TIME_FORMAT=%s the times have no gap or overlap when clocks change. Rows are treated as follows:

- Steps (``12.batch``) are not jobs: merged. The components of a heterogeneous job (``12+0``, ``12+1``) are merged into
  one job with the sum of their GPUs.
- Array tasks (``12_3``) are jobs. Pending array tasks (``12_[4-9]``), and any other job that never started or has not
  ended, are left out.
- Of several rows with one ID (``--duplicates``, after a requeue) the last counts; the others are merged.
- GPUs are those of AllocTRES, else of ReqTRES (``gres/gpu=N``, or the sum of ``gres/gpu:TYPE=N``); in old files those
  of AllocGRES or ReqGRES per node, times NNodes. Slurm only records them with AccountingStorageTRES=gres/gpu.
- The nodes asked for are those of ReqTRES (``node=N``).
- The group is the ID that the submit hook wrote into AdminComment, else user and job name (``parsing``).

Users choose job names, and a name may contain the separator or a line break. Therefore JobName is last in SACCT_FIELDS,
where a separator does no harm. Against forged lines, use an unguessable ``--delimiter`` and pass it here as
``separator``: a line without it then continues the name before it. In a file with ``|`` such a line may be anything,
as a message of sacct, and is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.slurm.gres import gpu_count
from slurm_asrpt.traces.files import LineFormat, Rows, TraceFile, lines, read_columns
from slurm_asrpt.traces.parsing import durations, instants, recurrent_names
from slurm_asrpt.traces.registry import ReadOptions, register
from slurm_asrpt.traces.trace import Trace, clean, numbers

SACCT_FIELDS = (
    *("JobID", "User", "Account", "QOS", "Partition", "Submit", "Start", "End", "ElapsedRaw", "TimelimitRaw", "State"),
    *("ReqTRES", "AllocTRES", "AdminComment", "JobName"),
)
"""Fields to query from sacct; JobName must be last."""

STEP, COMPONENT, EARLIER = "job step", "component of a heterogeneous job", "earlier run of a requeued job"
NEVER_STARTED, NOT_ENDED = "never started", "not ended yet"

_FREE_TEXT = ("jobname", "comment", "submitline", "workdir")
NO_END = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUE_HOLD", "RESIZING", "STAGE_OUT")
_GPU_COLUMNS = ("reqtres", "alloctres", "allocgres", "reqgres")
_COLUMNS = (
    *("jobid", "jobidraw", "cluster", "user", "partition", "jobname", "submit", "start", "end", "elapsedraw"),
    *("elapsed", "timelimitraw", "timelimit", "state", *_GPU_COLUMNS),
    *("nnodes", "allocnodes", "admincomment", "uid", "exitcode", "account", "qos"),
)
_STEP = r"^[0-9_+\[\]%,\-]+\."
_JOB = re.compile(r"[0-9]{1,12}(?:_(?:[0-9]{1,12}|\[.*)|\+[0-9]{1,9})?")


def _is_sacct(found: TraceFile) -> bool:
    titles = _titles(found.head[0], "|") if found.head else []
    return bool({"jobid", "jobidraw"} & set(titles)) and {"state", "submit"} <= set(titles)


def _has_job_ids(found: TraceFile) -> bool:
    titles = _titles(found.head[0], "|") if found.head else []
    return len(titles) > 1 and bool({"jobid", "jobidraw"} & set(titles))


@register("sacct", "what `sacct --parsable2` prints, with its line of titles", _is_sacct, _has_job_ids)
def read(found: TraceFile, options: ReadOptions) -> Trace:
    """Raises InputError for a missing column."""
    with lines(found.path) as opened:
        return parse_sacct(opened, found.name)


def parse_sacct(text: Iterable[str], name: str = "sacct", separator: str = "|") -> Trace:
    """Parse the output of sacct, header line first, by this module's rules. Raises InputError for missing columns."""
    rows = read_raw(text, separator)
    frame, merged, left_out = _jobs(rows.frame)
    left_out.update(rows.faults)
    midnights = frame.attrs["midnights"]
    frame, components = _whole(frame)
    merged[COMPONENT] += components
    return clean(name, frame, None, left_out, merged, midnights, epoch=True)


def _titles(line: str, separator: str) -> list[str]:
    return [title.strip().casefold() for title in line.rstrip("\r\n").split(separator)]


def read_raw(text: Iterable[str], separator: str = "|") -> Rows:
    """Known columns as text; a missing optional column is empty. Raises InputError for missing required ones."""
    opened = iter(text)
    titles = _titles(next(opened, ""), separator)
    if not {"jobid", "jobidraw"} & set(titles) or not {"submit", "state"} <= set(titles):
        needed = ",".join(SACCT_FIELDS)
        raise InputError(f"no JobID, Submit and State in sacct's header line; use --format={needed}")
    if not {"elapsedraw", "elapsed"} & set(titles) and not {"start", "end"} <= set(titles):
        raise InputError("no ElapsedRaw in sacct's header line, nor Start and End; add it to --format")
    if not set(_GPU_COLUMNS) & set(titles):
        raise InputError("no AllocTRES in sacct's header line, so no job's GPUs are known; add AllocTRES to --format")
    tail = titles[-1] in _FREE_TEXT
    there = [name for name in _COLUMNS if name in titles]
    if tail and len(separator) > 1:
        opened = _continued(opened, separator)
    lines_of_text = (line.rstrip("\r\n") + "\n" for line in opened)
    rows = read_columns(lines_of_text, LineFormat(titles, separator, quotes=False, tail=tail), there, [])
    for name in _COLUMNS:
        if name not in rows.frame:
            rows.frame[name] = ""
    return rows


def _continued(opened: Iterable[str], separator: str) -> Iterator[str]:
    """The rows, each in one piece: a job name at the end of a row may have line breaks."""
    row: list[str] = []
    for line in opened:
        if row and separator in line:
            yield "\n".join(row)
            row = []
        row.append(line.rstrip("\n"))
    if row:
        yield "\n".join(row)


def _jobs(raw: pd.DataFrame) -> tuple[pd.DataFrame, Counter[str], Counter[str]]:
    """Jobs and components of jobs; number of rows merged into others, and of rows left out, by reason."""
    raw, steps, strange = allocations(raw)
    merged, left_out = Counter({STEP: steps}), Counter({"no job id": strange})
    frame = columns_of(_last(raw, merged))
    unended, never = frame["unended"], ~frame["begun"]
    left_out += Counter({NOT_ENDED: int(unended.sum()), NEVER_STARTED: int(never.sum())})
    kept = frame[~unended & ~never].reset_index(drop=True)
    kept.attrs["midnights"] = frame.attrs["midnights"]
    return kept, merged, left_out


def allocations(raw: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """The rows that are jobs, with their ``id``; the number of steps, and of unrecognized rows."""
    raw = raw.assign(id=raw["jobid"].where(raw["jobid"] != "", raw["jobidraw"]))
    steps = raw["id"].str.contains(_STEP, regex=True)
    raw = raw[~steps]
    strange = ~raw["id"].map(lambda text: bool(_JOB.fullmatch(text))).astype(bool)
    return raw[~strange], int(steps.sum()), int(strange.sum())


def _last(raw: pd.DataFrame, merged: Counter[str]) -> pd.DataFrame:
    """The last row of each ID: sacct prints a job's runs in order."""
    earlier = raw.duplicated(["cluster", "id"], keep="last")
    merged[EARLIER] += int(earlier.sum())
    return raw[~earlier]


def columns_of(raw: pd.DataFrame) -> pd.DataFrame:
    """A trace's columns of ``allocations``, and which have ``begun`` and which of those are ``unended``.

    attrs["midnights"]: as for ``clean``.
    """
    submit, local = instants(raw["submit"])
    start, end = instants(raw["start"])[0], instants(raw["end"])[0]
    state = raw["state"].str.split(" ", n=1).str[0]  # "CANCELLED by 1000"
    ran = durations(raw["elapsedraw"].where(raw["elapsedraw"] != "", raw["elapsed"])).fillna(end - start)
    frame = pd.DataFrame(
        {
            "job_id": raw["id"].where(raw["cluster"] == "", raw["cluster"] + ":" + raw["id"]),
            "submit_s": submit,
            "user": raw["user"],
            "group": _group(raw),
            "gpus": _gpus(raw),
            "duration_s": ran,
            "status": state,
            "time_limit_s": _limits(raw),
            "wait_s": start - submit,
            "queue": raw["partition"],
            "account": raw["account"],
            "qos": raw["qos"],
            "tres": raw["alloctres"].where(raw["alloctres"] != "", raw["reqtres"]),
            **_asked_nodes(raw),
            # some releases record the cancellation of a pending job as its start
            "begun": start.notna()
            & ~((ran == 0) & (raw["alloctres"] == "") & (raw["allocgres"] == ""))
            & ~state.eq("PENDING"),
        }
    )
    frame["unended"] = frame["begun"] & state.isin(NO_END)
    frame.attrs["midnights"] = local
    return frame


def _limits(raw: pd.DataFrame) -> pd.Series:
    """Minutes, or [D-]HH:MM:SS; UNLIMITED and Partition_Limit are none that the user set."""
    minutes = numbers(raw["timelimitraw"]) * 60
    return minutes.fillna(durations(raw["timelimit"])).fillna(np.inf)


def _gpus(raw: pd.DataFrame) -> pd.Series:
    """GPUs of the allocation, else of the request; 0 if none are listed, nan if unreadable."""
    nodes = numbers(raw["allocnodes"].where(raw["allocnodes"] != "", raw["nnodes"])).fillna(1.0)
    found = _each(raw["alloctres"], tres_gpus)
    asked = raw["alloctres"] == ""
    found = found.where(~asked, _each(raw["reqtres"], tres_gpus))
    for column in ("allocgres", "reqgres"):
        old = asked & (raw["reqtres"] == "") & (found == 0) & (raw[column] != "")
        found = found.where(~old, _each(raw[column], _gres_gpus) * nodes)
    return found


def _asked_nodes(raw: pd.DataFrame) -> dict[str, pd.Series]:
    """The nodes that the job's owner asked for. ``-N2`` allows no more than two, which no column says.

    So a job that got as many as it asked for counts as one with this maximum; one that got more has none.
    """
    asked, given = (_each(raw[column], _tres_nodes) for column in ("reqtres", "alloctres"))
    return {"min_nodes": asked, "max_nodes": asked.where(asked == given)}


def _tres_nodes(tres: str) -> float:
    """Nodes in ``cpu=8,node=2``; nan without any."""
    found = re.search(r"(?:^|,)node=([1-9][0-9]{0,5})(?:,|$)", tres)
    return float(found[1]) if found else float("nan")


def _each(texts: pd.Series, count: Callable[[str], float]) -> pd.Series:
    """``count`` of each text, computed once per distinct text."""
    codes, kinds = pd.factorize(texts)
    values = np.array([count(str(kind)) for kind in kinds] or [0.0])
    return pd.Series(values[codes] if len(kinds) else 0.0, index=texts.index, dtype=float)


def tres_gpus(tres: str) -> float:
    """GPUs in ``cpu=8,gres/gpu=2,gres/gpu:h100=2,mem=1G``: the untyped figure, else the sum of the typed ones.

    nan if it is not a number.
    """
    pairs = [part.partition("=") for part in tres.split(",")]
    found = {name: _figure(figure) for name, _, figure in pairs if name == "gres/gpu" or name.startswith("gres/gpu:")}
    return found["gres/gpu"] if "gres/gpu" in found else float(sum(found.values()))


def _figure(text: str) -> float:
    return float(text) if re.fullmatch("[0-9]{1,9}", text) else float("nan")


def _gres_gpus(gres: str) -> float:
    """GPUs of one node in ``gpu:h100:2``."""
    try:
        return float(gpu_count(gres))
    except SlurmError:
        return float("nan")


def _group(raw: pd.DataFrame) -> pd.Series:
    """The tag's group, else user and job name."""
    codes, kinds = pd.factorize(raw["admincomment"])
    tags = [parse_tag(str(kind)) for kind in kinds]
    tagged = np.array([tag.group if tag else "" for tag in tags] or [""], dtype=object)
    group = pd.Series(tagged[codes] if len(kinds) else "", index=raw.index, dtype=object)
    return group.where(group != "", recurrent_names(raw["user"], raw["jobname"]))


def _whole(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Merge the components of heterogeneous jobs; and the number of rows that this removed.

    The first component gives the common columns; GPUs add up, and the job runs as long as its longest component.
    """
    whole = frame["job_id"].str.replace(r"\+[0-9]+$", "", regex=True)
    het = whole != frame["job_id"]
    if not het.any():
        return frame, 0
    parts = frame[het].assign(job_id=whole[het])
    by_job = parts.groupby("job_id", sort=False)
    joined = by_job.first().reset_index()
    joined["gpus"] = by_job["gpus"].sum(min_count=1).to_numpy()
    joined["duration_s"] = by_job["duration_s"].max().to_numpy()
    joined[["min_nodes", "max_nodes"]] = np.nan
    return pd.concat([frame[~het], joined[frame.columns]], ignore_index=True), len(parts) - len(joined)
