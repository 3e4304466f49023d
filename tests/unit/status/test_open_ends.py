"""Expected starts without an upper end: every place that shows one says why, in 80 columns."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
from slurm_asrpt_cli.status import what_if
from slurm_asrpt_cli.status.ended import _forecast
from slurm_asrpt_cli.status.explain import expected_start
from slurm_asrpt_cli.status.overview import overview
from slurm_asrpt_cli.status.table import open_note, print_jobs
from slurm_asrpt_cli.status.watch import View, screen

from slurm_asrpt.forecast.conformal import OpenEnd
from slurm_asrpt.reporting.dashboard import page
from slurm_asrpt.status.document import JobStatus, Status
from slurm_asrpt.status.reason_texts import OPEN_ENDS, why_open
from slurm_asrpt.status.usage import Usage

NOW = time.time()


def job(job_id: str, why: str = "", **more: object) -> JobStatus:
    row = JobStatus(job_id, "train", "ann", "gpu", 4, "", "", 0, NOW - 60, "waiting", "gpus", "needs 4 GPUs", {}, {})
    return replace(row, start_earliest=NOW + 60, start_made=NOW, start_open=why, **more)  # type: ignore[arg-type]


def status(*jobs: JobStatus) -> Status:
    return Status(NOW, "enforce", "asrpt-gated", 5.0, 16, 4, list(jobs))


ALL = [job(str(number), why) for number, why in enumerate(OPEN_ENDS, 1)]


def test_every_reason_has_words_and_a_status_of_an_earlier_release_has_some() -> None:
    assert set(OPEN_ENDS) == set(OpenEnd)
    assert why_open("") == why_open("of a later release") == "no upper bound yet"


def test_the_note_names_each_reason_once_and_only_those_that_apply() -> None:
    closed = job("7", start_latest=NOW + 600)
    assert open_note([closed, replace(closed, start_earliest=None, start_latest=None)]) == ""
    assert open_note([closed, *ALL[:1], *ALL[:1]]) == "? in START: too few starts yet"
    assert all(words in open_note(ALL) for words in OPEN_ENDS.values())
    assert len(open_note(ALL)) <= 80
    assert open_note(ALL, []) == ""
    assert open_note([replace(each, state="ended") for each in ALL]) == ""  # their START is when they started


@pytest.mark.parametrize("columns", [80, 30])
def test_the_table_has_the_note_on_a_terminal_that_shows_the_column(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_jobs(status(*ALL))
    assert "? in START" not in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_jobs(status(*ALL))
    shown = capsys.readouterr().out.splitlines()
    assert (shown[-1] == open_note(ALL)) == ("START" in shown[0])
    assert ("START" in shown[0]) == (columns == 80)


@pytest.mark.parametrize("width", [80, 30])
def test_overview_and_watch_have_the_note_where_they_show_the_column(width: int) -> None:
    for height in (12, 24):
        lines = ["".join(text for text, _ in line) for line in overview(status(*ALL), "ann", width, height)]
        assert any(line.startswith("? in START") for line in lines) == (width == 80)
        assert len(lines) <= max(height, 18)
        rows = ["".join(text for text, _ in line) for line in screen(status(*ALL), View("ann"), width, 24, NOW)[0]]
        assert any(line.startswith("? in START") for line in rows) == (width == 80)
    closed = status(job("7", start_latest=NOW + 600))
    assert not any("? in START" in text for line in overview(closed, "ann", 80, 24) for text, _ in line)


@pytest.mark.parametrize("why", OPEN_ENDS)
def test_explain_says_why(why: str) -> None:
    ((_, said),) = expected_start(job("1", why))
    assert f"or later, no upper bound ({OPEN_ENDS[why]}) (5-90%)" in said
    array = job("1", "few-starts", last_start_earliest=NOW + 90, last_start_open=why)
    assert OPEN_ENDS[why] in expected_start(replace(array, reason="array"))[1][1]
    assert "no upper bound" not in expected_start(job("1", start_latest=NOW + 600))[0][1]


@pytest.mark.parametrize("why", OPEN_ENDS)
def test_what_if_the_page_and_the_review_of_an_ended_job_say_why(why: str) -> None:
    asked = {"script": "a", "group": "", "gpus": 1, "profile": "", "predicted_iterations": 0}
    found = what_if.WhatIf(
        **asked, predicted_low=0, predicted_high=0, predicted_by="", start_earliest=NOW, start_open=why, as_of=NOW
    )
    assert what_if._start(found).endswith(f"-? (5-90%), no upper bound: {OPEN_ENDS[why]}")
    assert "upper bound" not in what_if._start(replace(found, start_latest=NOW))
    assert f"no upper bound yet ({OPEN_ENDS[why]})" in page(status(job("1", why)), Usage(), anonymous=True)
    assert f"or later ({OPEN_ENDS[why]})" in _forecast(job("1", why, start_time=NOW + 90))


def test_the_overview_has_no_note_on_jobs_that_it_does_not_show() -> None:
    closed = [job(str(number), start_latest=NOW + 600) for number in range(1, 30)]
    for jobs, noted in ((closed, False), ([*closed, *ALL], False), ([*ALL, *closed], True)):
        lines = ["".join(text for text, _ in line) for line in overview(status(*jobs), "bob", 80, 24)]
        assert any(line.startswith("? in START") for line in lines) == noted
        assert len(lines) <= 24


def test_a_table_without_any_start_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a narrow terminal the column goes if it is empty."""
    why = "it starts in too few simulations (3 days each, less if the queue is long)"
    waiting = replace(job("7"), start_earliest=None, text="needs 4 GPUs, 1 free for it")
    jobs = [replace(waiting, start_unknown=why), replace(waiting, job_id="8", start_unknown=waiting.text)]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_jobs(status(*jobs))
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("START: it starts in too few simulations")
    assert len(last) <= 80
    print_jobs(status(jobs[1]))
    assert "START:" not in capsys.readouterr().out  # the table says it
    for height in (9, 24):
        lines = ["".join(text for text, _ in line) for line in overview(status(*jobs * 9), "ann", 80, height)]
        assert lines[-1].startswith("START: it starts")
        assert len(lines) <= max(height, 15)
    rows = ["".join(text for text, _ in line) for line in screen(status(*jobs), View("ann"), 80, 24, NOW)[0]]
    assert any(line.startswith("START: it starts") for line in rows)
    assert not any(line.startswith("START:") for line in map(str, overview(status(*jobs, job("9")), "ann", 80, 24)))
