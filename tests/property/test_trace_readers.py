"""Any file gives a trace in which every row is accounted for, or a one-line error."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_asrpt.errors import InputError
from slurm_asrpt.traces import COLUMNS, Trace, clean, formats, read_trace, write_trace
from slurm_asrpt.traces.sacct import SACCT_FIELDS, parse_sacct
from slurm_asrpt.traces.statistics import statistics
from slurm_asrpt.traces.trace import LIMIT_COLUMNS, NODE_COLUMNS
from tests.examples import examples

TITLES = [
    ",".join(COLUMNS),
    "job_id,submit_s,user,group,num_gpus,gpu_type,duration_s,status,vc,submit_local",
    "job_id,submit_s,user,group,num_gpus,gpu_type,duration_s,status,gpu_milli",
    "job_id,submit_s,user,group,num_gpus,gpu_type,duration_s,status,user_class",
    "job_id,submission_time,duration,num_gpu",
    "job_id,user,num_gpu,num_cpu,num_pod,duration,job_name,submit_time,group,gpu_type,wait_time",
    "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue",
    "id,submit_time,start_time,end_time,gpus,name,time_limit",
    "|".join(SACCT_FIELDS),
    "; Version: 2",
    '[{"jobid": "a", "attempts": [{"start_time": "2017-10-07 01:12:09"}]}',
]
CELLS = st.one_of(
    st.sampled_from(["", "1", "2", "-1", "0", "0.5", "1e300", "nan", "inf", "9" * 400, "2020-06-09 18:41:01", "True"]),
    st.sampled_from(['"', '"a,b"', 'x"', "\\", "Unknown", "1-00:00:00", "12.batch", "5_[1-3]", "7+1", "gres/gpu=2"]),
    st.integers(-10, 10**20).map(str),
    st.text(max_size=8),
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    titles = draw(st.sampled_from(TITLES))
    separator = "|" if "|" in titles else " " if titles.startswith(";") else ","
    width = 18 if separator == " " else titles.count(separator) + 1
    rows = draw(st.lists(st.lists(CELLS, min_size=width, max_size=width) | st.lists(CELLS, max_size=width), max_size=8))
    return "\n".join([titles, *(separator.join(row) for row in rows)]).encode("utf-8", "surrogatepass")


def sound(trace: Trace) -> None:
    assert trace.rows == len(trace) + sum(trace.left_out.values()) + sum(trace.merged.values())
    assert list(trace.jobs.columns) in (list(COLUMNS), [*COLUMNS, *LIMIT_COLUMNS, *NODE_COLUMNS])
    assert trace.jobs["job_id"].is_unique
    assert (trace.jobs["gpus"] >= 1).all()
    assert (trace.jobs["duration_s"] > 0).all()
    assert np.isfinite(trace.jobs[["submit_s", "duration_s"]].to_numpy()).all()
    assert (trace.jobs["time_limit_s"] > 0).all()
    assert (trace.jobs["submit_s"] >= 0).all()
    assert all(0 <= count <= len(trace) for count in trace.changed.values())


@given(
    content=st.one_of(st.binary(max_size=300), files()), fmt=st.sampled_from(["auto", *formats()]), pack=st.booleans()
)
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_give_a_trace_or_a_one_line_error(content: bytes, fmt: str, pack: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(gzip.compress(content) if pack else content)
        try:
            trace = read_trace(path, fmt, processors_as_gpus=True)
        except InputError as error:
            said = str(error)
        else:
            said = ""
            sound(trace)
    assert "\n" not in said


@given(content=files())
@settings(max_examples=examples(200), deadline=None)
def test_no_line_is_lost(content: bytes) -> None:
    """rows counts every line that is not blank, except the header."""
    text = content.decode("utf-8", "replace")
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[1:] if line]
    if text.startswith((";", "[")):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(content)
        try:
            trace = read_trace(path, processors_as_gpus=True)
        except InputError:
            return
    assert len(lines) <= trace.rows <= len(lines) + content.count(b"\n") + content.count(b"\r")


@given(rows=st.lists(st.lists(CELLS, min_size=len(SACCT_FIELDS), max_size=len(SACCT_FIELDS)), max_size=6))
@example(rows=[[*[""] * (len(SACCT_FIELDS) - 2), "\n", ""]])
@settings(max_examples=examples(150), deadline=None)
def test_any_lines_of_sacct_are_accounted_for(rows: list[list[str]]) -> None:
    trace = parse_sacct(["|".join(SACCT_FIELDS), *("|".join(row) for row in rows)])
    sound(trace)


JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "job_id": st.text(min_size=1, max_size=5),
            "submit_s": st.floats(0, 1e9),
            "user": st.text(max_size=5),
            "group": st.text(max_size=5),
            "gpus": st.integers(1, 64),
            "duration_s": st.floats(1e-3, 1e8),
            "status": st.text(max_size=5),
            "time_limit_s": st.floats(1, 1e7) | st.just(float("inf")),
            "wait_s": st.floats(0, 1e7) | st.just(float("nan")),
            "queue": st.text(max_size=5),
        }
    ),
    min_size=1,
    max_size=12,
)


@given(jobs=JOBS, name=st.text(max_size=8), suffix=st.sampled_from(["csv", "csv.gz"]))
@settings(max_examples=examples(150), deadline=None)
def test_a_written_trace_is_read_back_unchanged(jobs: list[dict[str, object]], name: str, suffix: str) -> None:
    trace = clean(name or "t", pd.DataFrame(jobs), {"altered": 1}, {"lost": 2}, {"joined": 3}, midnights=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t.{suffix}"
        write_trace(trace, path)
        again = read_trace(path)
    pd.testing.assert_frame_equal(again.jobs, trace.jobs, check_exact=True)
    assert again.__dict__ | {"jobs": None} == trace.__dict__ | {"jobs": None}


@given(jobs=JOBS)
@settings(max_examples=examples(100), deadline=None)
def test_statistics_of_any_trace_are_valid_json(jobs: list[dict[str, object]]) -> None:
    import json

    trace = clean("t", pd.DataFrame(jobs))
    found = statistics(trace)
    json.dumps(found, allow_nan=False)
    assert (
        sum(size["job_share"] for size in found["sizes"]) == np.float64(1.0)
        or abs(sum(size["job_share"] for size in found["sizes"]) - 1) < 1e-9
    )
    assert abs(sum(size["gpu_time_share"] for size in found["sizes"]) - 1) < 1e-9
    assert abs(sum(found["arrivals"]["by_hour"]) - 1) < 1e-9
    assert 0 <= found["recurrence"]["recurrent_share"] <= 1
