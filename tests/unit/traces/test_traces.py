"""Each trace format: detected by its contents, rows converted by its rules, skipped rows counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slurm_asrpt.errors import InputError
from slurm_asrpt.traces import Trace, formats, read_trace, write_trace
from slurm_asrpt.traces.parsing import normal_name
from slurm_asrpt.traces.registry import PROCESSORS
from slurm_asrpt.traces.samples import HELIOS, ITP, PHILLY
from slurm_asrpt.traces.samples.cut import cut
from slurm_asrpt.traces.swf import PARTIAL
from slurm_asrpt.traces.trace import ROUNDED

SHARED = Path(__file__).parents[4] / "shared" / "traces"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def check(trace: Trace) -> None:
    """Invariants of every trace."""
    assert trace.rows == len(trace) + sum(trace.left_out.values()) + sum(trace.merged.values())
    assert len(trace) == 0 or trace.jobs["submit_s"].iloc[0] == 0
    assert trace.jobs["submit_s"].is_monotonic_increasing
    assert trace.jobs["job_id"].is_unique
    assert (trace.jobs["gpus"] >= 1).all()


def test_the_samples_match_their_readme() -> None:
    philly, itp, helios = (read_trace(path) for path in (PHILLY, ITP, HELIOS))
    for trace in (philly, itp, helios):
        check(trace)
        assert (len(trace), trace.rows) == (400, 400)
    assert (philly.jobs["gpus"] == 1).sum() == 296
    assert philly.jobs["submit_s"].max() < 29 * 3600
    assert (itp.jobs["gpus"] == 1).sum() == 368
    assert itp.jobs["queue"].nunique() == 5
    assert (helios.jobs["gpus"] > 64).sum() == 269
    assert helios.jobs["user"].nunique() == 3
    readme = (PHILLY.parent / "README.md").read_text()
    for text in ("CC-BY-4.0", "USENIX ATC 2019", "msr-fiddle/philly-traces", "Copyright (c) Microsoft", "SC 2021"):
        assert text in readme
    for path in (PHILLY, ITP, HELIOS):
        assert path.stat().st_size < 60_000
        assert f"## {path.name}" in readme


def test_a_cut_copies_rows_unchanged() -> None:
    lines = ["titles\n", "a\n", "b\n", "c\n"]
    assert cut(lines, 1, 2) == ["titles\n", "b\n", "c\n"]
    with pytest.raises(ValueError, match="has 3 rows, not 4"):
        cut(lines, 2, 2)


def test_the_philly_list_has_the_time_of_day() -> None:
    assert read_trace(PHILLY).first_s == 12 * 3600 + 41 * 60 + 55  # the first row's submit_local


PHILLY_JSON = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:09",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0"]}],
            },
            {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-07 01:15:30", "detail": []},
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    },
    {"status": "Killed", "vc": "v", "jobid": "never", "attempts": [], "submitted_time": "2017-10-07 01:11:40"},
    {
        "status": "Failed",
        "jobid": "runs",
        "submitted_time": "2017-10-07 01:11:40",
        "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": None, "detail": [{"gpus": ["gpu0"]}]}],
    },
    "no job",
]


def test_phillys_own_json(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY_JSON, indent=4))
    trace = read_trace(path)
    check(trace)
    (job,) = trace.jobs.to_dict("records")
    assert (job["gpus"], job["duration_s"], job["wait_s"], job["queue"]) == (3, 180, 30, "ee9e8c")
    assert trace.left_out == {"no job": 1, "no GPUs": 1, "no run time": 1}
    assert trace.first_s == 4299


PAI_TITLES = (
    "job_id,user,num_gpu,num_cpu,num_pod,duration,job_name,submit_time,group,gpu_type,wait_time,"
    "user_dur,group_dur,group_gpu_dur"
)


def test_the_pai_list_rounds_fractions_of_gpus_up(tmp_path: Path) -> None:
    rows = [
        f"{i},u,{gpus},6.0,1.0,{duration},n{i},{i},g,T4,3,1.0,1.0,1.0"
        for i, (gpus, duration) in enumerate(
            [(0.25, 10), (1.0, 10), (2.5, 10), (0.0, 10), ("", 10), (-1, 10), (1, 0), (1, -5), (1, "x"), (2e6, 10)]
        )
    ]
    trace = read_trace(write(tmp_path / "pai.csv", PAI_TITLES, *rows, "short,row"))
    check(trace)
    assert trace.jobs["gpus"].tolist() == [1, 1, 3]
    assert trace.jobs["wait_s"].tolist() == [3, 3, 3]
    assert trace.changed == {ROUNDED: 2}
    assert trace.left_out == {
        "wrong number of fields": 1,
        "no GPUs": 1,
        "no number of GPUs": 1,
        "negative number of GPUs": 1,
        "zero run time": 1,
        "negative run time": 1,
        "no run time": 1,
        "absurd number of GPUs": 1,
    }


JOBS = [
    "j1,i1,u1,Terminated,1000.0,2000.0",
    "j2,i2,u2,Failed,1100.0,1900.0",
    "j3,i3,u1,Running,1200.0,",
    "j4,i4,u1,Terminated,1300.0,1400.0",
    "j5,i5,u1,Terminated,1300.0,1400.0",
]
TASKS = [
    "j1,ps,1.0,Terminated,1010.0,2000.0,600.0,29.3,,",
    "j1,worker,3.0,Terminated,1020.0,2000.0,600.0,29.3,50.0,V100",
    "j2,tensorflow,2.0,Failed,1150.0,1900.0,600.0,29.3,100.0,MISC",
    "j3,worker,1.0,Running,1250.0,,600.0,29.3,100.0,T4",
    "j4,worker,1.0,Terminated,1350.0,1400.0,600.0,29.3,,CPU",
    "j5,worker,-1.0,Terminated,1350.0,1400.0,600.0,29.3,100.0,T4",
    "other,worker,1.0,Terminated,1350.0,1400.0,600.0,29.3,100.0,T4",
]
TAGS = ["i1,u1,,g1,bert", "i1,u1,,g1,bert", "i2,u2,,,"]
INSTANCES = ["j2,tensorflow,n,w,i2,Failed,1160.0,1900.0,m", "j2,tensorflow,n,w2,i2,Failed,1155.0,1900.0,m"]


@pytest.mark.parametrize("titled", [False, True])
def test_the_official_pai_tables(tmp_path: Path, titled: bool) -> None:
    from slurm_asrpt.traces.pai import TABLES

    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in (("job", JOBS), ("task", TASKS), ("group_tag", TAGS), ("instance", INSTANCES)):
        write(folder / f"pai_{name}_table.csv", *([",".join(TABLES[name])] if titled else []), *rows)
    trace = read_trace(folder)
    check(trace)
    assert trace.name == "data"
    jobs = trace.jobs.set_index("job_id")
    assert jobs.index.tolist() == ["j1", "j2"]
    assert jobs["gpus"].tolist() == [2, 2]  # 3 x 50% are one and a half
    assert jobs["duration_s"].tolist() == [990, 745]  # of the first task, or instance
    assert jobs["wait_s"].tolist() == [10, 55]
    assert jobs["group"].tolist() == ["g1", ""]
    assert trace.changed == {ROUNDED: 1}
    assert trace.left_out == {
        "no run time": 1,
        "no GPUs": 1,
        "no number of GPUs": 1,
        "task of no job in the table": 1,
    }
    assert trace.merged == {"task of a job": 6, "instance of a job": 2, "group tag of a job": 3}
    assert trace.first_s == (1000 + 8 * 3600) % 86400
    assert len(read_trace(folder / "pai_job_table.csv")) == 2
    (folder / "pai_task_table.csv").unlink()
    with pytest.raises(InputError, match="no pai_task_table"):
        read_trace(folder)


def test_itp_as_published_is_a_file_for_each_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for number in (1, 2):
        row = f"uuid-{number},{number}00,3890,4"
        write(folder / f"cluster0{number}.csv", "job_id,submission_time,duration,num_gpu", row)
    trace = read_trace(folder)
    check(trace)
    assert trace.jobs["queue"].tolist() == ["cluster01", "cluster02"]
    assert len(read_trace(folder / "cluster01.csv")) == 1


HELIOS_TITLES = "job_id,user,vc,{}gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
HELIOS_ROW = "{},uXBbc,vcJkd,{}{},1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:31,2020-06-10 04:55:09,36848,30"


def test_helios_as_published_and_with_lucids_names(tmp_path: Path) -> None:
    rows = [HELIOS_ROW.format(1, "", 1), HELIOS_ROW.format(2, "", 0)]
    trace = read_trace(write(tmp_path / "cluster_log.csv", HELIOS_TITLES.format(""), *rows))
    check(trace)
    assert trace.left_out == {"no GPUs": 1}
    (job,) = trace.jobs.to_dict("records")
    assert (job["wait_s"], job["queue"], job["group"], job["status"]) == (30, "vcJkd", "", "COMPLETED")
    assert trace.first_s == 18 * 3600 + 41 * 60 + 1
    names = [HELIOS_ROW.format(i, f"train-{i},", 1) for i in (1, 2)]
    trace = read_trace(write(tmp_path / "lucid.csv", HELIOS_TITLES.format("jobname,"), *names))
    assert trace.jobs["group"].tolist() == ["uXBbc/train", "uXBbc/train"]


def test_openb_pods_with_a_fraction_of_a_gpu(tmp_path: Path) -> None:
    titles = "name,num_gpu,gpu_milli,pod_phase,creation_time,deletion_time,scheduled_time"
    rows = ["p0,1,460,Running,10,110,20", "p1,8,1000,Running,20,110,", "p2,0,0,Running,20,110,"]
    trace = read_trace(write(tmp_path / "openb_pod_list_default.csv", titles, *rows))
    check(trace)
    assert trace.jobs["gpus"].tolist() == [1, 8]
    assert trace.jobs["duration_s"].tolist() == [90, 90]
    assert trace.changed == {ROUNDED: 1}


SWF = """; Version: 2.2
; UnixStartTime: 1000000000
; TimeZone: 3600
 1 0 5 100 8 -1 -1 8 200 -1 1 3 1 7 2 1 -1 -1
 2 10 -1 100 -1 -1 -1 4 -1 -1 0 -1 -1 -1 -1 -1 -1 -1
 3 10 5 50 4 -1 -1 4 200 -1 2 3 1 7 2 1 -1 -1
 3 10 5 90 4 -1 -1 4 200 -1 1 3 1 7 2 1 -1 -1
 4 10 5 -1 4 -1 -1 4 200 -1 5 3 1 7 2 1 -1 -1
 5 10 5
"""


@pytest.mark.parametrize("name", ["log.swf", "log.swf.gz"])
def test_swf_requires_an_option_that_processors_are_gpus(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(SWF.encode()) if name.endswith("gz") else SWF.encode())
    with pytest.raises(InputError, match="--processors-as-gpus"):
        read_trace(path)
    trace = read_trace(path, processors_as_gpus=True)
    check(trace)
    assert trace.name == "log"
    assert trace.jobs["job_id"].tolist() == ["1", "2", "3"]
    assert trace.jobs["gpus"].tolist() == [8, 4, 4]  # the request if the allocation is unknown
    assert trace.jobs["group"].tolist() == ["u3/x7", "", "u3/x7"]
    assert trace.jobs["time_limit_s"].tolist() == [200, np.inf, 200]
    assert trace.jobs["status"].tolist() == ["COMPLETED", "FAILED", "COMPLETED"]
    assert trace.merged == {PARTIAL: 1}
    assert trace.left_out == {"wrong number of fields": 1, "no run time": 1}
    assert trace.changed == {PROCESSORS: 3}
    assert trace.first_s == (1_000_000_000 + 3600) % 86400


def test_csv_with_common_headers_dates_and_durations(tmp_path: Path) -> None:
    path = write(
        tmp_path / "jobs-of-us.csv",
        "ID,Submit_Time,Start_Time,End_Time,GPUs,User,Name,time_limit",
        '1,2024-01-01T00:00:10,2024-01-01T00:01:10,2024-01-01T01:01:10,2,ann,"fine, tune 1",1-00:00:00',
        "2,2024-01-01 00:00:11,,,2,ann,x,",
        '3,2024-01-01 00:00:11,"2024-01-01',
        '00:00:12",2,ann,x,',
    )
    trace = read_trace(path)
    check(trace)
    (job,) = trace.jobs.to_dict("records")
    assert (job["duration_s"], job["wait_s"], job["time_limit_s"], job["group"]) == (3600, 60, 86400, "ann/fine, tune")
    assert trace.left_out == {"no run time": 1, "quotes that span lines": 2}
    assert trace.first_s == 10


def test_a_negative_submission_time_is_unknown(tmp_path: Path) -> None:
    rows = ("a,-1,60,1", "b,1790000000,60,1", "c,1790000100,60,1")
    trace = read_trace(write(tmp_path / "own.csv", "job_id,submit_s,duration_s,gpus", *rows))
    assert trace.left_out == {"no submission time": 1}
    assert trace.jobs["submit_s"].tolist() == [0, 100]


def test_csv_with_columns_named_by_the_user(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "Key;x,When,Cards,Took", "a,5,1.5,60", "b,6,1,60")
    with pytest.raises(InputError, match="not a trace in a known format"):
        read_trace(path)
    columns = {"job_id": "key;X", "submit_s": "When", "gpus": "Cards", "duration_s": "Took"}
    trace = read_trace(path, columns=columns)
    assert trace.jobs["gpus"].tolist() == [2, 1]
    with pytest.raises(InputError, match=r"no column gone; there are: key;x, when"):
        read_trace(path, columns={**columns, "gpus": "gone"})
    with pytest.raises(InputError, match="unknown column; valid ones: job_id"):
        read_trace(path, columns={**columns, "cards": "Cards"})
    with pytest.raises(InputError, match=r"--column duration_s=TITLE"):
        read_trace(path, columns={k: v for k, v in columns.items() if k != "duration_s"})
    with pytest.raises(InputError, match=r"known title for gpus and duration_s; specify: --column gpus=TITLE --column"):
        read_trace(path, columns={k: v for k, v in columns.items() if k not in ("gpus", "duration_s")})
    with pytest.raises(InputError, match="for the format csv only"):
        read_trace(path, "itp", columns=columns)


def test_rows_without_an_id_are_numbered(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "When,Cards,Took", "5,1,60", "6,2,60")
    trace = read_trace(path, columns={"submit_s": "When", "gpus": "Cards", "duration_s": "Took"})
    check(trace)
    assert trace.jobs["job_id"].tolist() == ["1", "2"]


def test_muri_times_are_in_milliseconds(tmp_path: Path) -> None:
    titles = "job_id,num_gpu,submit_time,model_name,duration,iteration_time,resource_time_0"
    trace = read_trace(write(tmp_path / "m.csv", titles, "0,8,0,gpt2,5095000,437,0.6"))
    assert trace.jobs["duration_s"].tolist() == [5095]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_written_trace_is_read_back_unchanged(tmp_path: Path, name: str) -> None:
    rows = [f"{i},ü,{0.1 * i},1,1,{i / 7},n,{i / 3},g,T4,3,1,1,1" for i in range(50)]
    source = write(tmp_path / "p.csv", PAI_TITLES, *rows)
    trace = read_trace(source)
    write_trace(trace, tmp_path / name)
    again = read_trace(tmp_path / name)
    pd.testing.assert_frame_equal(again.jobs, trace.jobs, check_exact=True)
    assert again.__dict__ | {"jobs": 0} == trace.__dict__ | {"jobs": 0}
    first = (tmp_path / name).read_bytes()
    write_trace(trace, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["p.csv", name])


def test_an_edited_canonical_file_is_recounted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_trace(read_trace(PHILLY), path)
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace(",1,", ",-1,", 1)
    path.write_text("\n".join([lines[0].replace("philly-sample", "mine"), *lines[1:300]]))
    trace = read_trace(path)
    check(trace)
    assert (trace.name, trace.rows, len(trace)) == ("mine", 298, 297)
    path.write_text("\n".join(["# asrpt-trace 1 {broken", *lines[1:300]]))
    check(read_trace(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe\x00j", "not a trace in a known format"),
        (b"SQLite format 3\0", "asrpt-admin history export makes a CSV file"),
        (b'{"job_id": "3_1", "start_time": 5}\n', "JSON of no known trace; .*asrpt-admin history export"),
        (b"#!/bin/bash\nsrun train\n", "a script, not a trace"),
        (b"job_id,submit_s,user\n1,2,a\n", "no column has a known title for gpus and duration_s; specify"),
        (b"job_id;submit_s;gpus;duration_s\n1;2;3;4\n", "has commas between its fields"),
        (b"JobID|JobName|Partition|State\n1|a|gpu|COMPLETED\n", "no JobID, Submit and State in sacct's header line"),
        (b"JobID|Submit|State|Elapsed\n1|2|COMPLETED|3\n", "so no job's GPUs are known; add AllocTRES"),
        (b"\x1f\x8bno gzip", "cannot be read"),
        (gzip.compress(b"job_id,submit_s,gpus,duration_s\n" + b"1,2,3,4\n" * 9999)[:-9], "cannot be read"),
        (b"x" * 2_000_000, "a line of more than"),
        (gzip.compress(b"job_id,submit_s,gpus,duration_s" + b"\n" * 40_000_000), "unpacks to more than"),
        (b'[{"jobid": 1, "attempts": [' + b"[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_trace_is_a_one_line_error(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "absent")
    with pytest.raises(InputError, match="a directory without the tables"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="not a regular file"):
        read_trace(Path("/dev/zero"))
    with pytest.raises(InputError, match=r"unknown format 'nope'; valid ones: asrpt, pai,"):
        read_trace(PHILLY, "nope")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(read_trace(PHILLY), tmp_path / "absent" / "x.csv")


def test_terminal_escapes_in_names_are_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "job_id,user,submit_s,gpus,duration_s", "a\x1b[31m,b\x07,1,1,1")
    (job,) = read_trace(path).jobs.to_dict("records")
    assert (job["job_id"], job["user"]) == ("a?[31m", "b?")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("train_17", "train"),
        ("lr-0.1-run-7", "lr-0.1-run"),
        ("sweep 3-12", "sweep"),
        ("job20240131", "job"),
        ("resnet50", "resnet50"),
        ("resnet101", "resnet101"),
        ("eval (3)", "eval"),
        ("1234567", "1"),
        ("_12", "_12"),
        ("", ""),
    ],
)
def test_counters_at_the_end_of_a_name_are_ignored(name: str, plain: str) -> None:
    assert normal_name(name) == plain


def test_formats_has_one_line_per_format() -> None:
    assert set(formats()) >= {"asrpt", "pai", "philly", "itp", "helios", "openb", "swf", "sacct", "csv"}
    assert all(10 < len(about) < 100 and "\n" not in about for about in formats().values())


EXPECTED = {
    "alibaba-openb-2023/jobs.csv.gz": (5706, 4885),
    "alibaba-pai-2020-aux/pai_job_duration_estimate_sample.csv": (15, 13),
    "helios-venus-2vc-2020/jobs.csv.gz": (1306, 1306),
    "msr-itp-2021/jobs.csv.gz": (44910, 44910),
    "msr-philly-2017/jobs.csv.gz": (57572, 57572),
    "nasa-ipsc-1993/jobs.csv.gz": (12767, 12656),
    "nrel-eagle-2019-sample/jobs_raw.csv.gz": (1000, 4),
    "riken-ricc-2010/jobs.csv.gz": (313456, 313446),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_public_traces_next_to_the_repository(name: str) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    trace = read_trace(path, processors_as_gpus=True)
    check(trace)
    assert (trace.rows, len(trace)) == EXPECTED[name]
