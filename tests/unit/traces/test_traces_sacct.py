"""Traces from recorded and hand-made output of sacct."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurm_asrpt.errors import InputError
from slurm_asrpt.traces import Trace, read_trace
from slurm_asrpt.traces.sacct import (
    COMPONENT,
    EARLIER,
    NEVER_STARTED,
    NOT_ENDED,
    SACCT_FIELDS,
    STEP,
    parse_sacct,
    tres_gpus,
)

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = sorted(path.parent.name for path in RECORDED.glob("*/sacct.txt"))
TITLES = "JobID|User|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|AllocTRES|ReqTRES|AdminComment|JobName"


def row(**changes: str) -> str:
    cells = {
        "JobID": "1",
        "User": "ann",
        "Submit": "2024-05-01T10:00:00",
        "Start": "2024-05-01T10:00:30",
        "End": "2024-05-01T10:02:10",
        "ElapsedRaw": "100",
        "TimelimitRaw": "60",
        "State": "COMPLETED",
        "AllocTRES": "billing=2,cpu=2,gres/gpu=2,mem=1G,node=1",
        "ReqTRES": "cpu=2,gres/gpu=2",
        "AdminComment": "",
        "JobName": "train-3",
    }
    return "|".join((cells | changes)[title] for title in TITLES.split("|"))


def parse(*rows: str) -> Trace:
    trace = parse_sacct([TITLES, *rows])
    assert trace.rows == len(trace) + sum(trace.left_out.values()) + sum(trace.merged.values())
    return trace


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_dump_in_local_time(release: str) -> None:
    trace = read_trace(RECORDED / release / "sacct.txt")
    jobs = trace.jobs.set_index("job_id")
    assert set(jobs.index) == {"1", "2", "3", "4", "5_0", "5_1", "5_2", "5_3", "9", "11"}
    assert jobs["gpus"].to_dict() == {"1": 2, "9": 3, "11": 2, **dict.fromkeys(["2", "3", "4"], 1)} | {
        f"5_{i}": 1 for i in range(4)
    }
    assert jobs.loc["1", "time_limit_s"] == 300
    assert jobs.loc["3", "time_limit_s"] == np.inf
    assert jobs.loc["11", "status"] == "CANCELLED"
    assert jobs["group"].str.fullmatch("[0-9a-f]{16}").all()
    assert jobs.loc[["5_0", "5_1"], "group"].nunique() == 1
    assert (jobs["wait_s"] >= 0).all()
    assert trace.first_s is not None
    assert trace.merged == {STEP: 16, COMPONENT: 1}
    # here, names with a separator or a line break are in the middle of the row: such rows are ambiguous
    assert trace.left_out == {
        "wrong number of fields": 3,
        NEVER_STARTED: 2,
        NOT_ENDED: 1,
        "no submission time": 1,
        "no GPUs": 1,
        "zero run time": 1,
    }


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_dump_of_our_own_fields_survives_odd_names(release: str) -> None:
    with (RECORDED / release / "sacct-epoch.txt").open() as file:
        trace = parse_sacct(file)
    assert set(trace.jobs["job_id"]) >= {"7", "8"}  # a name with a separator, one with a line break
    assert trace.left_out["wrong number of fields"] == 1  # the rest of the line that was broken
    assert trace.merged[EARLIER] == 1
    assert trace.first_s is None


def test_the_queried_fields_end_with_the_name() -> None:
    assert SACCT_FIELDS[-1] == "JobName"
    assert {"JobID", "Submit", "Start", "ElapsedRaw", "State", "AllocTRES", "AdminComment"} <= set(SACCT_FIELDS)


def test_one_row() -> None:
    (job,) = parse(row()).jobs.to_dict("records")
    assert job == {
        "job_id": "1",
        "submit_s": 0,
        "user": "ann",
        "group": "ann/train",
        "gpus": 2,
        "duration_s": 100,
        "status": "COMPLETED",
        "time_limit_s": 3600,
        "wait_s": 30,
        "queue": "",
        "account": "",
        "qos": "",
        "tres": "billing=2,cpu=2,gres/gpu=2,mem=1G,node=1",
        "min_nodes": pytest.approx(np.nan, nan_ok=True),
        "max_nodes": pytest.approx(np.nan, nan_ok=True),
    }


@pytest.mark.parametrize(
    ("asked", "given", "bounds"),
    [(1, 1, (1, 1)), (2, 2, (2, 2)), (1, 3, (1, np.nan)), (2, 4, (2, np.nan)), (0, 1, (np.nan, np.nan))],
)
def test_the_nodes_asked_for_bound_those_of_a_job_that_got_no_more(
    asked: int, given: int, bounds: tuple[float, float]
) -> None:
    request = f"cpu=2,gres/gpu=4{f',node={asked}' if asked else ''}"
    (job,) = parse(row(ReqTRES=request, AllocTRES=f"cpu=2,gres/gpu=4,node={given}")).jobs.to_dict("records")
    assert (job["min_nodes"], job["max_nodes"]) == pytest.approx(bounds, nan_ok=True)


def test_the_nodes_of_a_heterogeneous_job_are_not_known() -> None:
    parts = [row(JobID=f"5+{part}", ReqTRES="gres/gpu=2,node=1") for part in range(2)]
    (job,) = parse(*parts).jobs.to_dict("records")
    assert job["gpus"] == 4
    assert np.isnan([job["min_nodes"], job["max_nodes"]]).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"State": "PENDING", "Start": "Unknown", "ElapsedRaw": "0", "AllocTRES": ""}, NEVER_STARTED),
        ({"State": "CANCELLED by 1000", "Start": "None", "ElapsedRaw": "0", "AllocTRES": ""}, NEVER_STARTED),
        ({"State": "CANCELLED by 1000", "ElapsedRaw": "0", "AllocTRES": ""}, NEVER_STARTED),
        ({"JobID": "7_[4-9%1]", "State": "PENDING", "Start": "Unknown"}, NEVER_STARTED),
        ({"State": "RUNNING", "End": "Unknown"}, NOT_ENDED),
        ({"State": "SUSPENDED", "End": "Unknown"}, NOT_ENDED),
        ({"AllocTRES": "cpu=2", "ReqTRES": "cpu=2"}, "no GPUs"),
        ({"AllocTRES": "gres/gpu=x"}, "no number of GPUs"),
        ({"Submit": "Unknown"}, "no submission time"),
        ({"ElapsedRaw": "0"}, "zero run time"),
        ({"JobID": "what"}, "no job id"),
    ],
)
def test_rows_that_are_skipped(changes: dict[str, str], reason: str) -> None:
    trace = parse(row(**changes), row(JobID="99"))
    assert trace.left_out == {reason: 1}
    assert trace.jobs["job_id"].tolist() == ["99"]


def test_steps_are_merged_for_every_job() -> None:
    steps = ["1.batch", "1.extern", "1.0", "1_3.batch", "1+0.0"]
    trace = parse(row(), *(row(JobID=step, User="") for step in steps))
    assert trace.merged == {STEP: 5}
    assert len(trace) == 1


def test_the_last_run_of_a_requeued_job_counts() -> None:
    again = row(Submit="2024-05-01T10:05:00", Start="2024-05-01T10:06:00", ElapsedRaw="7")
    trace = parse(row(State="NODE_FAIL"), again)
    assert trace.jobs["duration_s"].tolist() == [7]
    assert trace.merged == {EARLIER: 1}


def test_components_of_a_heterogeneous_job_are_one_job() -> None:
    trace = parse(row(JobID="5+0"), row(JobID="5+1", AllocTRES="gres/gpu=3", ElapsedRaw="120"), row(JobID="6"))
    jobs = trace.jobs.set_index("job_id")
    assert jobs["gpus"].to_dict() == {"5": 5, "6": 2}
    assert jobs.loc["5", "duration_s"] == 120
    assert trace.merged == {COMPONENT: 1}


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=1,gres/gpu=4,gres/gpu:h100=4,mem=1G", 4),
        ("gres/gpu:a100=2,gres/gpu:t4=1", 3),
        ("gres/gpu:a100=2", 2),
        ("gres/gpumem=80G,gres/shard=2", 0),
        ("", 0),
    ],
)
def test_gpus_from_tres(tres: str, gpus: float) -> None:
    assert tres_gpus(tres) == gpus


def test_gpus_from_the_request_without_an_allocation() -> None:
    assert parse(row(AllocTRES="", ReqTRES="gres/gpu=6")).jobs["gpus"].tolist() == [6]


def test_gpus_from_old_releases() -> None:
    titles = "JobID|Submit|Start|End|Elapsed|State|AllocGRES|NNodes"
    trace = parse_sacct([titles, "1|1000|1010|1070|00:01:00|COMPLETED|gpu:tesla:2|3"])
    assert trace.jobs[["gpus", "duration_s"]].to_numpy().tolist() == [[6, 60]]


def test_our_tag_is_the_group() -> None:
    trace = parse(row(AdminComment="asrpt1:g=00ff00ff00ff00ff;n=5"), row(JobID="2", AdminComment="billed: yes"))
    assert trace.jobs["group"].tolist() == ["00ff00ff00ff00ff", "ann/train"]


def test_limits() -> None:
    limits = ["60", "UNLIMITED", "Partition_Limit", ""]
    trace = parse(*(row(JobID=str(i + 1), TimelimitRaw=limit) for i, limit in enumerate(limits)))
    assert trace.jobs["time_limit_s"].tolist() == [3600, np.inf, np.inf, np.inf]


def test_times_with_a_zone_and_epochs() -> None:
    zoned = {"Submit": "2024-05-01T10:00:00+02:00", "Start": "2024-05-01T10:00:30+0200"}
    epoch = {"Submit": "1714550410", "Start": "1714550450", "JobID": "2"}
    trace = parse(row(**zoned), row(**epoch))
    assert trace.jobs["submit_s"].tolist() == [0, 10]
    assert trace.jobs["wait_s"].tolist() == [30, 40]
    assert trace.first_s is None


def test_a_trailing_and_a_different_separator(tmp_path: Path) -> None:
    path = tmp_path / "dump.txt"
    path.write_text(f"{TITLES}|\n{row()}|\n")  # sacct --parsable
    assert len(read_trace(path)) == 1
    mark = "\x01sep\x01"
    lines = [line.replace("|", mark) for line in (TITLES, row(JobName="a|b"))]
    assert len(parse_sacct(lines, separator=mark)) == 1


def test_missing_columns_are_named() -> None:
    with pytest.raises(InputError, match="no JobID, Submit and State"):
        parse_sacct(["1|2|3"])
    with pytest.raises(InputError, match="no ElapsedRaw"):
        parse_sacct(["JobID|Submit|State"])
    with pytest.raises(InputError, match="no JobID"):
        parse_sacct([])
    with pytest.raises(InputError, match="no AllocTRES in sacct's header line"):
        parse_sacct(["JobID|Submit|State|ElapsedRaw"])
    assert len(parse_sacct([TITLES])) == 0
