"""asrpt-sim what-if on a live Slurm with slurmdbd: its jobs, GPUs, waits and nodes are those that Slurm reports."""

import json
import re
import time
from collections.abc import Iterator

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.sim import what_if as whatif
from slurm_asrpt.traces import accounting

from .conftest import COMMANDS, own_lab, wait_for

pytestmark = pytest.mark.e2e

SIZES = (1, 2, 4, 8)
JOBS = 16
UNENDED = "RUNNING,PENDING,COMPLETING"


@pytest.fixture
def lab() -> Iterator[Lab]:
    """2 x 8 + 2 x 4 GPUs with accounting; no asrptd, no hook: what-if needs neither."""
    with own_lab(60, "2x8:h100,2x4:t4", users=2, accounting=True, hook=False) as lab:
        yield lab


def submit(lab: Lab, *options: str, user: str = "asrpt1", seconds: int = 1) -> str:
    command = ["sbatch", "--parsable", "--time=2", *options]
    return lab.run(command, user=user, input=f"#!/bin/sh\nsleep {seconds}\n").stdout.strip()


def run_jobs(lab: Lab) -> dict[str, int]:
    """GPUs by job id: 16 jobs of two users, more than fit at once, and one that needs the whole cluster."""
    asked = {}
    for i in range(JOBS):
        options = ("-N1", f"--gpus={SIZES[i % 4]}", f"--job-name=train-{i % 3}")
        asked[submit(lab, *options, user=f"asrpt{1 + i % 2}", seconds=1 + i % 3)] = SIZES[i % 4]
    asked[submit(lab, "-n24", "--gpus-per-task=1")] = 24
    submit(lab, "-n1")  # no GPU: not compared
    wait_for(lambda: not lab.run(["squeue", "-h", f"--states={UNENDED}"]).stdout.strip(), "all jobs ended", 40)
    return asked


def sacct_jobs(lab: Lab) -> dict[str, tuple[str, float]]:
    """State and wait of each job, from sacct's own Submit and Start."""
    command = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-aXPn", "-S", "now-1days", "-o", "JobID,State,Submit,Start"]
    rows = [line.split("|") for line in lab.run(command).stdout.splitlines()]
    return {
        job: (state, float(start) - float(submitted) if start.isdigit() else -1.0)
        for job, state, submitted, start in rows
    }


def what_if(lab: Lab, *words: str, user: str | None = None) -> str:
    command = [COMMANDS / "asrpt-sim", "what-if", "--sacct", *words]
    done = lab.run(command, user=user, timeout_s=120, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout if done.returncode == 0 else done.stderr


def jobs_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, float]]:
    """GPUs and wait of each job as what-if reads the live sacct."""
    monkeypatch.setenv("SLURM_CONF", str(lab.slurm_conf))
    fields, separator = accounting.sacct_fields(), "|3f0c|"
    since = accounting.since_argument("1d", time.time())
    text = accounting.ask_sacct(SlurmSettings(), fields, since, separator=separator)
    jobs = accounting.parse_jobs(text, "sacct", separator).jobs
    return {row.job_id: (row.gpus, row.wait_s) for row in jobs.itertuples()}


def test_what_if_shows_slurms_waits_and_those_of_other_policies(lab, monkeypatch):
    nothing = what_if(lab, "--since", "1days")
    assert nothing.startswith("asrpt-sim: sacct: no job that used GPUs and has ended")
    asked = run_jobs(lab)
    wait_for(
        lambda: [state for state, _ in sacct_jobs(lab).values()] == ["COMPLETED"] * (JOBS + 2),
        "sacct knows all",
        20,
    )
    told = sacct_jobs(lab)
    assert jobs_read(lab, monkeypatch) == {job: (gpus, told[job][1]) for job, gpus in asked.items()}
    waits = [wait for job, (_, wait) in told.items() if job in asked]
    html = lab.home() / "page.html"

    found = json.loads(what_if(lab, "--since", "1days", "-o", str(html), "--json"), parse_constant=pytest.fail)

    notes, rows = found["notes"], {row["policy"]: row for row in found["rows"]}
    assert (notes["jobs"], notes["rows"], notes["left_out"]) == (len(asked), len(asked) + 1, {"no GPUs": 1})
    assert (notes["cluster"], notes["gpus"]) == ("2 x 8 + 2 x 4 GPUs", 24)
    assert notes["most_gpus_in_use"] == 24  # the job on all GPUs was counted with all of them
    assert (notes["wait_unknown"], notes["too_large"], notes["only_user"]) == (0, 0, "")
    real = rows[whatif.AS_IT_WAS]
    assert max(waits) > 0, "the jobs were meant to wait"
    assert real["mean_wait_s"] == pytest.approx(sum(waits) / len(waits))
    assert (real["jobs"], real["max_wait_s"], real["jct_over_real"]) == (len(asked), max(waits), 1)
    assert [*rows] == [whatif.AS_IT_WAS, *whatif.default_policies()]
    assert "asrpt-gated" in rows
    assert all(row["jobs"] == len(asked) and row["never_started"] == 0 for row in found["rows"])
    page = html.read_text(encoding="utf-8")
    assert page.startswith("<!")
    assert page.rstrip().endswith("</html>")
    assert not re.search(r"https?:|<script|<link|<img|url\(|@import", page)
    assert all(name in page for name in rows)
