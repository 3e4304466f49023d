"""Statistics of a trace: values computed by hand, the figure, and the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli.sim import app

from slurm_asrpt.errors import InputError
from slurm_asrpt.reporting.trace_plot import draw
from slurm_asrpt.traces import Trace, clean, read_trace, write_trace
from slurm_asrpt.traces.samples import HELIOS, PHILLY
from slurm_asrpt.traces.statistics import hill_index, statistics
from slurm_asrpt.traces.synthetic import pai_like


def make(**columns: object) -> Trace:
    raw = {
        "job_id": [str(i) for i in range(10)],
        "submit_s": [i * 8640.0 for i in range(10)],
        "gpus": 1,
        "duration_s": 1.0,
    }
    return clean("t", pd.DataFrame(raw | columns), midnights=True)


def test_sizes_and_shares() -> None:
    found = statistics(make(gpus=[1, 1, 1, 1, 1, 2, 3, 4, 5, 8]))
    told = [(s["from"], s["to"], s["jobs"], round(s["gpu_time_share"], 4)) for s in found["sizes"]]
    assert told == [(1, 1, 5, 0.1852), (2, 2, 1, 0.0741), (3, 4, 2, 0.2593), (5, 8, 2, 0.4815)]
    assert found["single_gpu_share"] == 0.5
    assert found["span_days"] == pytest.approx(0.9)


def test_recurrence_by_group_and_by_substitute_group() -> None:
    found = statistics(make(group=["a"] * 5 + ["b"] * 4 + ["c"]))["recurrence"]
    assert found == {"key": "group", "groups": 3, "recurrent_share": 0.5, "seen_before": 0.7, "largest_group": 5}
    proxy = statistics(make(user=["u"] * 6 + ["v"] * 4, gpus=[1] * 5 + [2] * 5))["recurrence"]
    assert (proxy["key"], proxy["groups"], proxy["recurrent_share"]) == ("user and GPUs", 3, 0.5)


def test_users_tail_and_percentiles() -> None:
    found = statistics(
        make(user=["busy"] * 6 + list("abcd"), duration_s=[1.0] * 9 + [91.0], wait_s=[np.nan] * 9 + [5.0])
    )
    assert found["users"] == {"users": 5, "busiest": 1, "busiest_job_share": 0.6, "busiest_gpu_time_share": 0.91}
    assert found["tail"]["top_10_percent"] == 0.91
    assert found["duration_s"]["p50"] == 1
    assert found["duration_s"]["max"] == 91
    assert found["wait_s"]["mean"] == 5
    assert statistics(make())["wait_s"] is None
    assert statistics(make())["users"] is None


def test_the_tail_index_of_a_pareto_distribution_is_estimated() -> None:
    quantiles = (np.arange(100_000) + 0.5) / 100_000
    assert hill_index((1 - quantiles) ** (-1 / 1.3)) == pytest.approx(1.3, rel=0.02)
    assert hill_index(np.ones(1000)) is None
    assert hill_index(np.arange(1.0, 50.0)) is None


def test_the_hour_of_the_day_where_it_is_known() -> None:
    found = statistics(make())["arrivals"]
    assert found["hour"] == "of the day"
    assert sum(found["by_hour"]) == pytest.approx(1)
    assert statistics(read_trace(HELIOS))["arrivals"]["hour"].startswith("after the first job")


def test_the_generated_trace_has_its_intended_statistics() -> None:
    found = statistics(pai_like(20_000))
    assert found["recurrence"]["recurrent_share"] == pytest.approx(0.65, abs=0.01)
    assert 0.70 < found["single_gpu_share"] < 0.75
    assert found["arrivals"]["busiest_over_quietest"] > 3


def test_an_empty_trace_has_no_statistics() -> None:
    with pytest.raises(ValueError, match="no usable job"):
        statistics(make(gpus=0))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_figure_of_a_trace_with_an_unusual_name(tmp_path: Path, suffix: str) -> None:
    trace = clean("$x^{ <script>", make().jobs)
    path = tmp_path / f"x.{suffix}"
    draw(trace, statistics(trace), path)
    head = path.read_bytes()
    assert head.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in head
    assert b"<script>" not in head


def test_a_figure_that_cannot_be_written(tmp_path: Path) -> None:
    found = statistics(make())
    with pytest.raises(InputError, match=r"must end in \.png"):
        draw(make(), found, tmp_path / "x.exe")
    with pytest.raises(InputError, match="cannot be written"):
        draw(make(), found, tmp_path / "absent" / "x.png")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["asrpt-sim", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        run_app(app)
    return int(caught.value.code or 0)


def test_import_reports_skipped_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "x.csv"
    source.write_text("job_id,submit_s,gpus,duration_s\n1,1,1,10\n2,2,0,10\n3,3,1,-4\n")
    target = tmp_path / "out.csv.gz"
    assert run(monkeypatch, "import", source, "-o", target) == 0
    said = capsys.readouterr().out
    assert "1  no GPUs" in said
    assert "1  negative run time" in said
    assert len(read_trace(target)) == 1
    assert run(monkeypatch, "import", source, "-o", target, "--json") == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"no GPUs": 1, "negative run time": 1}
    assert run(monkeypatch, "import", source, "-o", source) == 2
    assert "this is the trace itself" in capsys.readouterr().err
    assert len(source.read_text().splitlines()) == 4


def test_describe_prints_draws_and_gives_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "describe", PHILLY, "--plot", tmp_path / "p.svg") == 0
    said = capsys.readouterr().out
    for text in ("philly-sample", "74.0% of the jobs", "GPUS", "hour of the day"):
        assert text in said
    assert (tmp_path / "p.svg").stat().st_size > 10_000
    assert run(monkeypatch, "describe", PHILLY, "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 400


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["describe", "absent"], "No such file"),
        (["describe", PHILLY, "--plot", "x.exe"], "must end in .png"),
        (["describe", PHILLY, "--format", "nope"], "unknown format 'nope'"),
        (["describe", PHILLY, "--column", "x"], "write NAME=TITLE"),
        (["generate", "-o", "x.csv", "--jobs", "0"], "--jobs"),
        (["generate", "-o", "/absent/x.csv", "--jobs", "5"], "cannot be written"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    arguments: list[object], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_trace_without_a_usable_job_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "x.csv"
    source.write_text("job_id,submit_s,gpus,duration_s\n1,1,0,10\n")
    assert run(monkeypatch, "describe", source) == 2
    assert "no usable job in 1 row; no GPUs: 1" in capsys.readouterr().err


def test_generate_and_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "generate", "-o", tmp_path / "g.csv.gz", "--jobs", 500, "--days", 3, "--seed", 7) == 0
    again = read_trace(tmp_path / "g.csv.gz")
    pd.testing.assert_frame_equal(again.jobs, pai_like(500, 3, 7).jobs, check_exact=True)
    assert again.first_s == 0
    capsys.readouterr()
    assert run(monkeypatch, "formats") == 0
    assert "sacct" in capsys.readouterr().out
    write_trace(again, tmp_path / "h.csv")
