"""Reports: exact curves, a self-contained page, and escaped names."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.errors import InputError
from slurm_asrpt.reporting.plot_style import COLORS, MAX_CURVES, duration
from slurm_asrpt.reporting.simulation import report
from slurm_asrpt.reporting.simulation.page import page
from slurm_asrpt.reporting.simulation.plots import PICTURES
from slurm_asrpt.reporting.simulation.report import write_report
from slurm_asrpt.reporting.simulation.result_digest import POINTS, Steps, backlog, by_size, digest, occupancy, quantiles
from slurm_asrpt.sim.description import Cluster
from slurm_asrpt.sim.recorder import Placements, Recorder, simulate_recorded
from slurm_asrpt.sim.results import Record, load, record_of, run_scenario, save
from slurm_asrpt.sim.scenario import Scenario, make_scenario, parse_policy, scenario_of


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_asrpt.reporting.simulation.report.PNG_DPI", 20)


EVIL = "<script>alert(1)</script>\"'&$x_1$\x1b[31m\u202e"


def scenario(policy: str = "fifo", **options: object) -> Scenario:
    made = {"jobs": 120, "load": 1.0, "models": "table1", **options}
    return make_scenario("pai-like:600:5", parse_policy(policy), {"servers": 8}, made)


def write(folder: Path, *policies: str, **options: object) -> list[Path]:
    for policy in policies:
        save(run_scenario(scenario(policy, **options)), folder / policy)
    return [folder / policy for policy in policies]


def placed(*entries: tuple[float, float, dict[int, int]]) -> tuple[pd.DataFrame, Placements]:
    """(start, end, GPUs by server) of each job."""
    jobs = pd.DataFrame({"submit_s": 0.0, "start_s": [e[0] for e in entries], "end_s": [e[1] for e in entries]})
    counts = [len(e[2]) for e in entries]
    node = [n for e in entries for n in e[2]]
    gpus = [g for e in entries for g in e[2].values()]
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return jobs, Placements(first, np.array(node, dtype=np.int32), np.array(gpus, dtype=np.int32))


def test_occupancy_by_hand() -> None:
    jobs, placements = placed((0, 10, {0: 4}), (2, 6, {0: 2, 1: 1}), (6, 8, {0: 4}))
    steps = occupancy(jobs, placements, [8, 8, 8], 10.0)
    at = {t: i for i, t in enumerate(steps.time.tolist())}
    table = {
        t: tuple(steps.values[name][len(steps.time) - 1 - steps.time.tolist()[::-1].index(t)] for name in steps.values)
        for t in at
    }
    # used, free on servers in use, on idle servers, largest block
    assert table == {0: (4, 4, 16, 8), 2: (7, 9, 8, 8), 6: (8, 0, 16, 8), 8: (4, 4, 16, 8), 10: (0, 0, 24, 8)}


def test_the_largest_block_is_smaller_than_a_server_if_all_are_in_use() -> None:
    jobs, placements = placed((0, 4, {0: 5}), (0, 8, {1: 6}))
    steps = occupancy(jobs, placements, [8, 8], 8.0)
    assert steps.means(np.array([0.0, 4.0, 8.0]))["largest"].tolist() == [3, 8]


entry = st.tuples(
    st.integers(0, 20),
    st.integers(1, 20),
    st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(entries=st.lists(entry, max_size=12))
def test_occupancy_equals_a_brute_force_count(entries: list[tuple[int, int, dict[int, int]]]) -> None:
    sizes = [48, 96, 48, 60]  # enough for every draw
    jobs, placements = placed(*((s, s + length, where) for s, length, where in entries))
    steps = occupancy(jobs, placements, sizes, 40.0)
    slow: dict[str, list[float]] = {"used": [], "part": [], "whole": [], "largest": []}
    for second in range(40):
        free = list(sizes)
        for start, length, where in entries:
            for node, count in where.items():
                free[node] -= count if start <= second < start + length else 0
        slow["used"].append(sum(sizes) - sum(free))
        slow["part"].append(sum(f for f, size in zip(free, sizes, strict=True) if f < size))
        slow["whole"].append(sum(f for f, size in zip(free, sizes, strict=True) if f == size))
        slow["largest"].append(max(free))
    for name, values in steps.means(np.arange(41.0)).items():
        np.testing.assert_allclose(values, slow[name], atol=1e-9)


def test_servers_of_different_sizes_are_counted_correctly() -> None:
    made = replace(scenario("fifo"), cluster=Cluster.of([8, 8, 8, 4, 4, 4, 2]))
    found = digest(run_scenario(made), "fifo")
    total = found.gpus["used"] + found.gpus["part"] + found.gpus["whole"]
    np.testing.assert_allclose(total, 38)
    assert all((found.gpus[name] >= -1e-9).all() for name in ("used", "part", "whole"))
    assert found.gpus["largest"].max() <= 8
    assert scenario_of(json.loads(json.dumps(made.document()))) == made
    text = page([found], [found], [])
    assert "3 x 8 + 3 x 4 + 1 x 2 GPUs" in text


def test_used_gpu_seconds_are_those_of_the_jobs() -> None:
    record = run_scenario(scenario("asrpt:tau=0"))
    clock = float(record.meta["clock_s"])
    steps = occupancy(record.jobs, record.placements, [8] * 8, clock)
    used = steps.means(np.array([0.0, clock]))["used"][0] * clock
    jobs = record.jobs
    assert used == pytest.approx(float((jobs["gpus"] * (jobs["end_s"] - jobs["start_s"])).sum()))


def test_the_area_of_the_backlog_is_the_sum_of_completion_times() -> None:
    record = run_scenario(scenario())
    clock = float(record.meta["clock_s"])
    mean = backlog(record.jobs, clock).means(np.array([0.0, clock]))["jobs"][0]
    assert mean * clock == pytest.approx(float((record.jobs["end_s"] - record.jobs["submit_s"]).sum()))


def test_means_of_step_functions_are_exact() -> None:
    steps = Steps(np.array([1.0, 3.0]), {"x": np.array([2.0, 5.0])})
    assert steps.means(np.array([0.0, 1.0, 2.0, 4.0, 9.0]))["x"].tolist() == [0, 2, 3.5, 5]


def test_quantiles_keep_the_tail_with_few_points() -> None:
    values = np.arange(1, 100_001, dtype=float)
    at, share = quantiles(values)
    assert len(at) <= 2 * POINTS
    assert (at[-1], share[-1]) == (100_000, 1.0)
    assert at[-2] >= 99_998
    np.testing.assert_allclose(at / 100_000, share)


def test_sizes_are_classes_by_powers_of_two() -> None:
    jobs = pd.DataFrame(
        {
            "submit_s": 0.0,
            "end_s": [1.0, 2, 3, 4, np.nan],
            "iterations": 1.0,
            "best_alpha_s": 1.0,
            "gpus": [1, 3, 4, 8, 8],
        }
    )
    found = by_size(jobs)
    assert [(size.label, size.jobs, size.half) for size in found] == [("1", 1, 1.0), ("3-4", 2, 2.5), ("8", 1, 4.0)]


class Page(HTMLParser):
    """Collects what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "data", "srcset"):
                self.sources.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def evil_record() -> Record:
    made = scenario()
    workload = made.workload()
    table = replace(workload.table, users=[EVIL] * 120, groups=[EVIL] * 120)
    recorder = Recorder(workload.cluster.nodes)
    result = simulate_recorded(made.spec, replace(workload, table=table), recorder)
    workload = replace(workload, notes={**workload.notes, "trace": EVIL})
    return record_of(made, workload, result, recorder)


def test_the_page_is_one_file_and_escapes_names(tmp_path: Path) -> None:
    save(evil_record(), tmp_path / "fifo")
    (other,) = write(tmp_path, "wcs-workload")
    pictures = write_report([tmp_path / "fifo", other], tmp_path / "out" / "report.html")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert "script" not in page.tags
    assert page.handlers == []
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert len(page.sources) == len(pictures) == len(PICTURES)
    assert "&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    for source in page.sources:
        svg = base64.b64decode(source.partition(",")[2]).decode()
        assert "<script" not in svg
        # within the page, or a namespace; nothing is fetched
        assert all(link.startswith("#") for link in re.findall(r'xlink:href="([^"]*)"', svg))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_the_same_results_make_the_same_page(tmp_path: Path) -> None:
    folders = write(tmp_path, "fifo", "asrpt")
    pages = []
    for name in ("a.html", "b.html"):
        write_report(folders, tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_a_report_of_many_results_draws_one_workload_and_lists_all_results(tmp_path: Path) -> None:
    folders = [*write(tmp_path / "a", "fifo", "asrpt", "spjf"), *write(tmp_path / "b", "fifo", load=0.5)]
    pictures = write_report(folders, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "show 3 of the 4 results" in text
    assert text.count("load=0.5") >= 1
    assert (tmp_path / "report-grid.png") in pictures


def test_a_report_without_ended_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "started", stop)
    save(run_scenario(scenario()), tmp_path / "cut")
    write_report([tmp_path / "cut"], tmp_path / "report.html")
    assert "Interrupted before the end" in (tmp_path / "report.html").read_text()


def test_a_report_of_one_job(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (folder,) = write(tmp_path, "fifo", jobs=1, load=None)
    write_report([folder], tmp_path / "report.html")
    said = (tmp_path / "report.html").read_text()
    assert "<p>1 job of " in said
    assert "at load" not in said  # arrivals at one instant have none
    assert [str(warning.message) for warning in recwarn] == []


def test_a_long_wait_has_a_reason(tmp_path: Path) -> None:
    (folder,) = write(tmp_path, "fifo", load=3.0)
    found = digest(load(folder), "fifo").waits
    assert found[0].wait == max(wait.wait for wait in found)
    assert found[0].wait == pytest.approx(load(folder).meta["summary"]["max_wait_s"])
    assert all("0 later jobs started before it" in wait.why for wait in found)  # it is a FIFO
    assert any("too few eligible GPUs" in wait.why or "ahead" in wait.why for wait in found)


def test_a_directory_as_output_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        write_report([], tmp_path)


def test_there_is_a_color_for_each_curve() -> None:
    assert len(set(COLORS)) == MAX_CURVES


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (90, "1.5 min"), (7200, "2 h"), (86400 * 40, "40 d")])
def test_durations_as_text(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_policy_has_one_color_in_all_charts_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best policy is first in the other charts, and in the grid, for any order of the directories."""
    folders = [
        folder
        for load in (0.5, 1.0)
        for folder in write(tmp_path / str(load), "fifo", "spjf", "asrpt-gated", load=load)
    ]
    shown: list[list[str]] = []
    pictures = report.pictures_to_draw

    def recorded(*results: Any) -> Any:
        found = pictures(*results)
        shown.extend(list(dict.fromkeys(d.scenario.policy for d in digests)) for _, digests in found)
        return found

    monkeypatch.setattr(report, "pictures_to_draw", recorded)
    write_report(folders, tmp_path / "r.html")
    assert len(shown) == 1 + len(PICTURES)
    assert all(policies == shown[0] for policies in shown)
    assert shown[0] != ["fifo", "spjf", "asrpt-gated"]
