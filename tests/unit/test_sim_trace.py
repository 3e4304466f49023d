"""Trace readers and the shipped sample."""

import gzip
from pathlib import Path

import pytest

from slurm_asrpt.errors import InputError
from slurm_asrpt.sim.samples.cut import cut
from slurm_asrpt.sim.trace import PHILLY_SAMPLE, TraceJob, read_philly

TITLES = "job_id,submit_s,user,group,num_gpus,gpu_type,duration_s,status,vc,submit_local\n"
ROW = "7,10,,,4,,300,,6214e9,2017-09-07 03:58:57\n"


def test_the_sample_is_what_its_readme_says() -> None:
    jobs = read_philly(PHILLY_SAMPLE)
    assert len(jobs) == 400
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
    assert sum(job.gpus == 1 for job in jobs) == 296
    assert {job.gpus for job in jobs} == {1, 2, 4, 8, 16, 32}
    assert jobs[-1].submit_s - jobs[0].submit_s < 29 * 3600
    assert min(job.duration_s for job in jobs) > 0
    assert PHILLY_SAMPLE.stat().st_size < 60_000
    readme = (PHILLY_SAMPLE.parent / "README.md").read_text()
    for text in ("CC-BY-4.0", "USENIX ATC 2019", "msr-fiddle/philly-traces"):
        assert text in readme


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz"])
def test_a_row_becomes_a_job(tmp_path: Path, name: str) -> None:
    raw = (TITLES + ROW).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    assert read_philly(tmp_path / name) == [TraceJob("7", 10.0, 4, 300.0, "6214e9")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no column job_id"),
        ("job_id,submit_s\n", "line 1: no column num_gpus, duration_s, vc"),
        (TITLES + ROW + ROW.replace(",4,", ",0,"), "line 3: num_gpus must be a whole number"),
        (TITLES + ROW.replace(",4,", ",1.5,"), "line 2: num_gpus must be a whole number"),
        (TITLES + ROW.replace(",4,", ",four,"), "line 2: num_gpus must be a number"),
        (TITLES + ROW.replace("300", "nan"), "line 2: duration_s must be a number"),
        (TITLES + ROW.replace("300", "-1"), "line 2: duration_s must be a number"),
        (TITLES + ROW.replace("7,10", ",10"), "line 2: job_id is empty"),
        (TITLES + ROW + "8,11\n", "line 3: num_gpus must be a number"),
        (TITLES + ROW + '8,"11"x\n', "line 3: not CSV"),
    ],
)
def test_a_bad_row_names_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_philly(path)
    assert str(caught.value).startswith(f"{path}: {said}")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_philly(tmp_path / "absent.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_philly(tmp_path / "x.csv")
    (tmp_path / "x.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="cannot be read"):
        read_philly(tmp_path / "x.csv.gz")


def test_a_cut_copies_rows_as_they_are() -> None:
    lines = ["titles\n", "a\n", "b\n", "c\n"]
    assert cut(lines, 1, 2) == ["titles\n", "b\n", "c\n"]
    with pytest.raises(ValueError, match="has 3 rows, not 4"):
        cut(lines, 2, 2)
