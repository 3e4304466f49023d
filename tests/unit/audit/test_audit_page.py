"""The audit page: one file, escaped text, and zooming and clicking in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.audit.trail import Entry
from slurm_asrpt.reporting.audit import page
from slurm_asrpt.reporting.html import utc_offsets

EVIL = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


def day(name: str = "train") -> list[Entry]:
    """Three jobs on two servers: one ended, one running, one waiting."""
    began = {"submitted": 1000.0, "began": 1010.0, "alpha": 2.0, "alpha_min": 1.0}
    return [
        {"time": 1000.0, "event": "queued", "job": "1", "user": "ann", "name": name, "gpus": 6, "iterations": 50},
        {"time": 1000.0, "event": "cycle", "queued": 1, "running": 0, "free": {"4": 2}},
        {"time": 1010.0, "event": "running", "job": "1", "user": "ann", "gpus": {"n1": 4, "n2": 2}, **began},
        {"time": 1020.0, "event": "queued", "job": "2", "user": name, "name": "other", "gpus": 2, "iterations": 0},
        {"time": 1030.0, "event": "running", "job": "2", "user": name, "gpus": {"n2": 2}, **began},
        {"time": 1040.0, "event": "queued", "job": "3", "user": "ann", "name": "last", "gpus": 4, "iterations": 5},
        {"time": 1040.0, "event": "wait", "job": "3", "reason": "gpus"},
        {"time": 1040.0, "event": "cycle", "queued": 1, "running": 2, "free": {"0": 2}},
        {"time": 1110.0, "event": "ended", "job": "1", "user": "ann", "gpus": {"n1": 4, "n2": 2}, "state": "COMPLETED",
         **began, "ended": 1110.0, "predicted": 50, "iterations": 100},
        {"time": 1110.0, "event": "cycle", "queued": 1, "running": 1, "free": {"4": 1, "2": 1}},
    ]  # fmt: skip


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    read: dict[str, Any] = json.loads(found[1])
    return read


def test_the_page_is_one_file_that_runs_only_its_own_script() -> None:
    text = page(day(EVIL), 900.0, 1200.0, EVIL)
    assert text.count("<script>") == 1
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert not {"\u202e", "\x1b"} & set(text)
    assert re.search(r"default-src 'none'; .*script-src 'sha256-[A-Za-z0-9+/=]{44}'", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<[^>]*\ssrc=|@import|url\(", text)


def test_runs_are_drawn_at_their_nodes_and_times() -> None:
    found = data_of(page(day(), 900.0, 1200.0, "all jobs"))
    assert (found["t0"], found["t1"]) == (1000.0, 1200.0)  # the job still runs, so until the end of the page
    first, second, third = found["runs"]
    assert (first["where"], first["wait"], first["ran"], first["predicted"]) == ("n1:4 n2:2", 10.0, 100.0, 50.0)
    assert (first["error"], first["ratio"]) == (2.0, 2.0)
    assert second["end"] is None
    assert (third["start"], third["why"]) == (None, ["gpus"])
    assert found["bars"] == [[0, 0, 0, 4], [0, 1, 0, 2], [1, 1, 2, 2]]
    assert found["queue"] == [[1000.0, 1], [1040.0, 1], [1110.0, 1]]


def of_one_task(ended: bool = True) -> list[Entry]:
    """A task of an array: the policy first sees it when Slurm splits it from the array, just before it starts."""
    facts = {"job": "12_3", "user": "ann", "gpus": {"n1": 4}, "submitted": 5000.0, "began": 5152.0}
    cycles = [
        {"time": float(at), "event": "cycle", "queued": at // 100, "running": 0, "free": {}}
        for at in range(0, 9001, 60)
    ]
    task = [
        {"time": 5151.0, "event": "queued", "job": "12_3", "user": "ann", "name": "a", "gpus": 4, "submitted": 5000.0},
        {"time": 5153.0, "event": "running", **facts, "alpha": 1.0},
        {"time": 5200.0, "event": "ended", **facts, "ended": 5199.0, "predicted": 0, "iterations": 0},
    ]
    return sorted(cycles + task[: 3 if ended else 2], key=lambda entry: entry["time"])


def test_the_page_of_a_job_shows_the_time_of_that_job() -> None:
    found = data_of(page(of_one_task(), 0.0, 9000.0, "job 12_3", some=True))
    assert (found["t0"], found["t1"]) == (5000.0, 5199.0)
    assert found["queue"] == [[4980.0, 49], [5040.0, 50], [5100.0, 51], [5160.0, 51]]
    everything = data_of(page(of_one_task(), 0.0, 9000.0, "all jobs"))
    assert (everything["t0"], everything["t1"], len(everything["queue"])) == (0.0, 9000.0, 151)
    later = data_of(page(of_one_task(), 5100.0, 5180.0, "job 12_3", some=True))
    assert (later["t0"], later["t1"]) == (5100.0, 5180.0)  # what --since and --until leave of it


@pytest.mark.parametrize("events", [["queued"], ["queued", "cycle"], ["queued", "running", "cycle"]])
def test_the_page_of_a_job_that_waits_or_runs_ends_now(events: list[str]) -> None:
    told = [entry for entry in of_one_task(ended=False) if entry["event"] in events]
    found = data_of(page(told, 0.0, 9000.0, "job 12_3", some=True))
    assert (found["t0"], found["t1"]) == (5000.0, 9000.0)


def test_a_wait_begins_with_the_submission_as_in_the_text() -> None:
    text = page(of_one_task(), 0.0, 9000.0, "job 12_3", some=True)
    assert "<h2>Pending jobs of all users</h2>" in text
    assert "<h2>Pending jobs</h2>" in page(of_one_task(), 0.0, 9000.0, "all jobs")
    assert [run["wait"] for run in data_of(text)["runs"]] == [152.0]
    assert "median wait 2.5 min" in text


def test_a_period_without_jobs_gives_a_page() -> None:
    text = page([], 900.0, 1200.0, "all jobs")
    assert "No job ran or waited" in text
    assert "<svg" not in text


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_times_on_both_sides_of_a_change_of_clocks_are_local_ones(browser: Any, tmp_path: Path) -> None:
    change = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()  # 03:00 becomes 02:00
    begin, end = change - 3 * 86400, change + 3 * 86400
    assert utc_offsets(begin, end) == [(begin, 7200), (change, 3600)]
    assert utc_offsets(begin, begin) == [(begin, 7200)]
    first = {"job": "1", "user": "ann", "gpus": {"n1": 4}, "submitted": begin, "began": begin}
    told = [{"time": begin, "event": "running", **first}, {"time": end, "event": "ended", "ended": end, **first}]
    path = tmp_path / "audit.html"
    path.write_text(page(told, begin, end, "all jobs"), encoding="utf-8")
    browser.get(path.as_uri())
    labels = {element.text for element in browser.find_elements("css selector", "#gpus text")}
    assert labels <= {"n1", "00:00", "12:00", *(f"10-{day}" for day in range(22, 29))}
    span = browser.find_elements("css selector", "#span")[0].text
    assert span == "2026-10-22 03:00:00 to 2026-10-28 02:00:00"


def test_in_a_browser_the_page_zooms_and_shows_the_clicked_job(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    path.write_text(page(day(EVIL), 900.0, 1200.0, "all jobs"), encoding="utf-8")
    browser.get(path.as_uri())
    wait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait(browser, 20)
    find = browser.find_elements
    assert browser.title == "Decisions of asrptd"
    assert len(find("css selector", "#gpus rect.bar")) == 3
    assert len(find("css selector", "#waits circle")) == 2
    assert len(find("css selector", "#errors circle")) == 1
    assert find("css selector", "#queue path")

    find("css selector", '#gpus rect[data-run="1"]')[0].click()
    wait.until(lambda _: find("css selector", "#gpus rect.chosen"))
    shown = find("css selector", "#job")[0].text
    assert "2 (other) of </script><script>document.title='pwned'" in shown
    assert "n2:2" in shown
    assert "2 GPUs, waited 00:00:00, ran unknown" in find("css selector", '#gpus rect[data-run="1"] title')[
        0
    ].get_attribute("textContent")
    assert len(find("css selector", "#gpus rect.dim")) == 2
    assert find("css selector", "tr.chosen")[0].get_attribute("data-run") == "1"

    find("css selector", "body")[0].send_keys("\ue00c")  # Escape: the job's details cover a part of the charts
    wait.until(lambda _: not find("css selector", "#gpus rect.chosen"))
    assert not find("css selector", "#job")[0].is_displayed()
    whole = find("css selector", "#span")[0].text
    find("css selector", "#in")[0].click()
    wait.until(lambda _: find("css selector", "#span")[0].text != whole)
    chart = find("css selector", "#queue")[0]
    before = find("css selector", "#span")[0].text
    actions = pytest.importorskip("selenium.webdriver").ActionChains(browser)
    actions.move_to_element_with_offset(chart, -100, 0).click_and_hold().move_by_offset(150, 0).release().perform()
    wait.until(lambda _: find("css selector", "#span")[0].text != before)
    find("css selector", "#all")[0].click()
    wait.until(lambda _: find("css selector", "#span")[0].text == whole)
    assert browser.get_log("browser") == []


def test_in_a_browser_the_page_of_a_long_time_is_drawn_whole(browser: Any, tmp_path: Path) -> None:
    cycles = [{**day()[1], "time": 1110.0 + second, "queued": second % 7} for second in range(1, 150_000)]
    path = tmp_path / "audit.html"
    path.write_text(page([*day(), *cycles], 900.0, 1e6, "all jobs"), encoding="utf-8")
    browser.get(path.as_uri())
    assert browser.find_elements("css selector", "#queue path")
    assert browser.find_elements("css selector", "#errors circle")
    assert browser.get_log("browser") == []


def test_in_a_browser_the_page_follows_the_systems_colors_and_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    path.write_text(page(day(), 900.0, 1200.0, "all jobs"), encoding="utf-8")
    colors = {}
    for theme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(path.as_uri())
        parts = ("body", "#tools", "#all", "#gpus text")
        colors[theme] = [style(browser, part, name) for part in parts for name in ("background-color", "color", "fill")]
    assert (colors["light"][0], colors["dark"][0]) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
    assert all(light != dark for light, dark in zip(colors["light"], colors["dark"], strict=True) if set_(light))
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    labels = browser.find_elements("css selector", "#errors text")
    assert all(label.rect["x"] >= 0 for label in labels)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def set_(color: str) -> bool:
    """Whether it is a color of the page, and not transparent or SVG's default."""
    return color not in {"rgba(0, 0, 0, 0)", "rgb(0, 0, 0)"}


def style(browser: Any, part: str, name: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
    return str(browser.execute_script(script, part, name))
