"""What a comparison found: usage over time, the picture in a terminal, the table, the sentences and the plot."""

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from slurm_asrpt.lab.site import figures
from slurm_asrpt.lab.site.jobs import SiteJob, Window
from slurm_asrpt.lab.site.report import ratios, show_picture, table, verdict, write_plot
from slurm_asrpt.lab.site.sides import Record
from slurm_asrpt.lab.site.usage import ASCII, BLOCKS, Usage, columns, picture, span_of, usage
from slurm_asrpt.traces import Trace

HOUR = 3600.0


def job(gpus, run_h=1.0, submit_h=0.0):
    return SiteJob("g", "asrpt1", gpus, 1, 60, run_h * HOUR, submit_h * HOUR)


def record(due_h, start_h, end_h, state="COMPLETED"):
    return Record(due_h * HOUR, due_h * HOUR, start_h * HOUR, end_h * HOUR, state)


JOBS = (job(8), job(4, submit_h=1.0))
WINDOW = Window("log", 1, JOBS, (), Trace("log", None, 2), 1.0)
SLOW = (record(0.0, 0.0, 1.0), record(1.0, 3.0, 4.0))
FAST = (record(0.0, 0.0, 1.0), record(1.0, 1.0, 2.0, "RUNNING"))
SIDES = {"plain Slurm": SLOW, "asrpt-gated": FAST}


def test_usage_is_the_mean_of_each_part():
    found = usage(JOBS, SLOW, 4 * HOUR, 4)
    assert found.waiting.tolist() == [0, 1, 1, 0]
    assert found.gpus.tolist() == [8, 0, 0, 4]
    half = usage(JOBS, SLOW, 4 * HOUR, 2)
    assert half.waiting.tolist() == [0.5, 0.5]


def test_all_gpu_time_is_in_the_usage():
    rng = np.random.default_rng(1)
    starts = rng.uniform(0, 10, 50)
    records = [record(at, at + 0.5, at + 2.0) for at in starts]
    found = usage([job(3)] * 50, records, 20 * HOUR, 37)
    assert found.gpus.mean() * 20 == pytest.approx(50 * 3 * 1.5)
    assert found.waiting.mean() * 20 == pytest.approx(50 * 0.5)


def test_the_picture_ends_in_the_hour_of_the_last_start():
    assert span_of(SIDES) == 3 * HOUR
    assert span_of({"one": [record(0.0, 3.2, 9.0)]}) == 4 * HOUR


def lines_of(sides, width=60, rows=2, signs=BLOCKS):
    return [line.text for line in picture(sides, 8, 4 * HOUR, width, rows, signs)]


def test_bars_are_as_high_as_the_values():
    parts = columns(60)
    half, full = np.full(parts, 4.0), np.full(parts, 8.0)
    lines = lines_of({"one": Usage(full, half)})
    assert lines[0] == "Jobs waiting"
    assert lines[1] == "one              8|" + "█" * parts
    assert lines[4:6] == ["one              8|", "                 0|" + "█" * parts]
    assert lines[6].split() == ["0", "h", "1", "h", "2", "h", "3", "h", "4"]


def test_a_single_waiting_job_is_visible():
    values = np.zeros(columns(60))
    values[3] = 0.01
    assert lines_of({"one": Usage(values, values)})[2].endswith("|   ▁")


def test_the_picture_works_without_blocks():
    values = np.linspace(0, 8, columns(60))
    text = "\n".join(lines_of({"one": Usage(values, values)}, signs=ASCII))
    assert text.isascii()
    assert "|" in lines_of({"one": Usage(values, values)}, signs=ASCII)[2][20:]


def shown(width, **options):
    out = StringIO()
    console = Console(file=out, width=width, height=24, **options)
    show_picture(console, WINDOW, SIDES)
    console.print(table(FOUND))
    for name in ("asrpt-gated",):
        console.print(verdict(FOUND, name))
    return out.getvalue()


FOUND = {name: figures.figures(WINDOW, side) for name, side in SIDES.items()}


def test_picture_and_table_fit_on_a_terminal():
    lines = shown(80).splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in shown(80)


@pytest.mark.parametrize("width", [40, 60, 120])
def test_the_table_is_readable_in_other_terminals(width):
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("120.0", "60.0", "(0.50)"):
        assert word in text


def test_the_sides_have_colors_on_a_terminal():
    assert "\x1b[36m" in shown(80, force_terminal=True, color_system="standard", no_color=False)


def test_the_sentence_tells_the_ratio_and_what_became_worse():
    assert ratios(FOUND) == {"asrpt-gated": 0.5}
    assert verdict(FOUND, "asrpt-gated") == "asrpt-gated: mean completion is 50% shorter than under plain Slurm"
    turned = dict(reversed(FOUND.items()))
    text = verdict(turned, "plain Slurm")
    assert text.startswith("plain Slurm: mean completion is 100% longer than under asrpt-gated; worse: ")
    assert "mean wait" in text
    same = {"a": FOUND["plain Slurm"], "b": FOUND["plain Slurm"]}
    assert verdict(same, "b") == "b: mean completion is that under a"


def test_fewer_gpus_in_use_is_worse():
    less = {**FOUND["plain Slurm"], "utilisation": 0.1}
    assert verdict({"a": FOUND["plain Slurm"], "b": less}, "b").endswith("; worse: GPUs in use")


def test_late_submissions_show_in_the_figures():
    late = [replace(each, submit=each.due + 30.0) for each in SLOW]
    found = figures.figures(WINDOW, late)
    assert found["submitted_late_s"]["p95"] == 30.0
    assert found["wait_s"] == FOUND["plain Slurm"]["wait_s"], "waits count from when a job was to be submitted"


def test_a_job_that_still_runs_counts_as_completed():
    assert FOUND["asrpt-gated"]["completed"] == 2
    failed = figures.figures(WINDOW, [SLOW[0], record(1.0, 3.0, 4.0, "TIMEOUT")])
    assert failed["completed"] == 1


def test_the_plot_is_written(tmp_path):
    path = tmp_path / "demo.png"
    write_plot(WINDOW, SIDES, path)
    assert path.read_bytes().startswith(b"\x89PNG")
