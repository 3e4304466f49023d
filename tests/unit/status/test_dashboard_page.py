"""The dashboard: one file, text only, with or without names; in a browser filters, phones and dark mode."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slurm_asrpt_cli.status import command

from slurm_asrpt.reporting.dashboard import page
from slurm_asrpt.status.document import JobStatus, NodeStatus, Status, write_status
from slurm_asrpt.status.usage import KEPT_S, STEP_S, Usage, read_usage, write_usage

EVIL = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>\u202e\x1b[31m"
NOW = 1_800_000_000.0


def job(job_id: str, user: str, gpus: int, state: str = "waiting", **more: Any) -> JobStatus:
    """A waiting job unless ``more`` says otherwise."""
    about: dict[str, Any] = {"reason": "gpus", "text": f"needs {gpus} GPUs", "facts": {}, "nodes": {}, **more}
    return JobStatus(job_id, f"train{job_id}", user, "gpu", gpus, "", "", 0, NOW - 60, state, **about)


def busy(user: str = "ann") -> Status:
    """Two jobs run, four wait, one is left to Slurm; a node is down."""
    jobs = [
        job("1", user, 4, "running", text="", nodes={"n1": 4}, start_time=NOW - 600, remaining_s=3600.0),
        job("2", "bob", 8, "running", text="", nodes={"n2": 8}, start_time=NOW - 60),
        job("3", user, 8, rank=1, start_earliest=NOW + 60, start_latest=NOW + 7200),
        job("4", "bob", 2, rank=2, start_earliest=NOW + 60, start_latest=None),
        job("5_1", "carol", 16, "virtual queue", rank=3, reason="virtual"),
        job("6", "carol", 1, "left to Slurm", reason="left"),
    ]
    nodes = [NodeStatus(f"n{n}", 8, free, "a100", ["gpu"], "MIXED") for n, free in ((1, 4), (2, 0))]
    nodes.append(NodeStatus("n3", 8, 0, "a100", ["gpu"], "DOWN", usable=False))
    return Status(NOW, "enforce", "asrpt-gated", 5.0, 16, 4, jobs, nodes=nodes)


def day(status: Status, samples: int = 12) -> Usage:
    found = Usage()
    for at in range(samples, 0, -1):
        found = found.with_sample(replace(status, written=NOW - at * STEP_S))
    return found


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    read: dict[str, Any] = json.loads(found[1])
    return read


def test_the_page_is_one_file_that_runs_only_its_own_script() -> None:
    text = page(busy(EVIL), day(busy(EVIL)))
    assert text.count("<script>") == 1
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert not {"\u202e", "\x1b"} & set(text)
    assert re.search(r"default-src 'none'; .*script-src 'sha256-[A-Za-z0-9+/=]{44}'", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<[^>]*\ssrc=|@import|url\(|fetch\(|XMLHttp|<link", text)


def test_an_anonymous_page_has_no_names() -> None:
    secret = "zelda"
    status = busy(secret)
    jobs = [replace(each, name=secret, text=f"{secret} is ahead", group=secret, profile=secret, priority=secret,
                    layout=secret, facts={"user": secret}) for each in status.jobs]  # fmt: skip
    status = replace(status, jobs=jobs, leader=secret)
    assert secret in page(status, Usage())
    text = page(status, day(status), anonymous=True)
    assert secret not in text
    assert [row[0] for row in data_of(text)["jobs"]] == [each.job_id for each in jobs]
    assert "a job starts when all its GPUs are free" in text


def test_samples_of_the_last_day() -> None:
    status = busy()
    usage = day(status, samples=KEPT_S // STEP_S + 50)
    assert len(usage.times) == KEPT_S // STEP_S
    assert {len(samples) for samples in usage.nodes.values()} == {len(usage.times)}
    assert [usage.nodes[name][-1] for name in ("n1", "n2", "n3")] == ["4", "8", "x"]
    assert (usage.total[-1], usage.used[-1], usage.jobs[-1], usage.wanted[-1]) == (16, 12, 3, 26)
    assert not usage.due(usage.times[-1] + STEP_S - 1)
    assert usage.due(usage.times[-1] + STEP_S)
    assert usage.due(usage.times[-1] - 1)  # the clock has stepped back
    assert usage.with_sample(replace(status, written=NOW - KEPT_S)).times == [NOW - KEPT_S]
    new = replace(status, written=NOW, nodes=[NodeStatus("n9", 8, 8), status.nodes[0]])
    assert usage.with_sample(new).nodes["n9"] == "." * (len(usage.times) - 1) + "0"
    assert usage.with_sample(new).nodes.keys() == {"n9", "n1"}


def test_samples_are_restored_and_damaged_ones_forgotten(tmp_path: Path) -> None:
    usage = day(busy())
    write_usage(tmp_path, usage, private=False)
    assert read_usage(tmp_path) == usage
    path = tmp_path / "usage.json"
    wrong = [json.dumps({**vars(usage), **change}) for change in ({"used": [1]}, {"nodes": {"n": 3}})]
    for text in ("{", "[]", "{}", *wrong):
        path.write_text(text)
        assert read_usage(tmp_path) == Usage()


def asrpt_status(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["asrpt-status", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


def test_the_command_writes_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(tmp_path, busy())
    (tmp_path / "asrpt.toml").write_text(f'[paths]\nrun = "{tmp_path}"\n')
    monkeypatch.setenv("ASRPT_CONFIG", str(tmp_path / "asrpt.toml"))
    path = tmp_path / "queue.html"
    assert asrpt_status("--html", str(path), "--user", "carol", monkeypatch=monkeypatch) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert [row[0] for row in data_of(path.read_text())["jobs"]] == ["5_1", "6"]
    assert asrpt_status("--html", "-", monkeypatch=monkeypatch) == 0
    found = data_of(capsys.readouterr().out)
    assert (len(found["jobs"]), found["reload"]) == (6, 0)
    for words in (["--json"], ["--watch"], ["--explain", "3"]):
        assert asrpt_status("--html", str(path), *words, monkeypatch=monkeypatch) == 2
    assert asrpt_status("--html", str(tmp_path / "missing" / "x"), monkeypatch=monkeypatch) == 2


# in a browser

Show = Callable[..., Any]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Any:
    """Open a page; its width is that of a phone with ``width``."""

    def opened(text: str, width: int = 1200) -> Any:
        path = tmp_path / "dashboard.html"
        path.write_text(text, encoding="utf-8")
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get("about:blank")  # the same address with another fragment would not be loaded again
        browser.get(path.as_uri())
        return browser

    yield opened
    browser.execute_script("localStorage.clear()")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def cells(browser: Any, table: str, column: str) -> list[str]:
    """The texts of a column."""
    select = f"#{table} td[data-label='{column}']"
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
    found: list[str] = browser.execute_script(script, select)
    return found


def put(browser: Any, name: str, value: str) -> None:
    """Set a filter."""
    browser.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, value)
    browser.execute_script("document.getElementById('filters').dispatchEvent(new Event('input'))")


def test_in_a_browser_hostile_names_are_text(show: Show) -> None:
    status = busy(EVIL)
    nodes = [replace(node, name=EVIL + node.name, state=EVIL) for node in status.nodes]
    jobs = [replace(each, state=EVIL, text=EVIL, nodes={EVIL: 1}) for each in status.jobs]
    status = replace(status, nodes=nodes, jobs=[*jobs, *status.jobs], mode=EVIL)
    browser = show(page(status, Usage(), written_every_s=30))
    assert browser.title == "GPU queue"
    assert any(user.startswith("</script><script>") for user in cells(browser, "queue", "User"))
    assert not browser.find_elements("css selector", "img")
    assert browser.get_log("browser") == []


def test_filters_and_order(show: Show) -> None:
    browser = show(page(busy(), day(busy())))
    assert cells(browser, "queue", "Job") == ["3", "4", "5_1", "6"]
    assert cells(browser, "running", "Job") == ["1", "2"]
    assert cells(browser, "running", "Nodes") == ["n1:4", "n2:8"]
    assert cells(browser, "who", "User") == ["carol", "ann", "bob"]
    assert cells(browser, "queue", "Waited") == ["00:01:00"] * 4  # as asrpt-status writes it
    assert [bool(text.strip("-")) for text in cells(browser, "queue", "Starts")] == [True, True, False, False]
    assert cells(browser, "queue", "Starts")[2:] == cells(browser, "queue", "Runtime")[2:] == ["-", "-"]
    assert cells(browser, "running", "Time left") == ["01:00:00", "-"]
    assert cells(browser, "who", "GPUs waiting") == ["17", "8", "2"]
    put(browser, "gpus", "8")
    assert cells(browser, "queue", "Job") == ["3", "5_1"]
    put(browser, "text", "CAROL 16")
    assert (cells(browser, "queue", "Job"), cells(browser, "running", "Job")) == (["5_1"], [])
    browser.refresh()  # as the page does by itself: the filters stay
    assert cells(browser, "queue", "Job") == ["5_1"]
    browser.find_element("css selector", "button[type=reset]").click()
    browser.execute_async_script("setTimeout(arguments[0], 50)")
    put(browser, "state", "left to Slurm")
    assert cells(browser, "queue", "Job") == ["6"]
    put(browser, "state", "")
    put(browser, "user", "bob")
    assert (cells(browser, "queue", "Job"), cells(browser, "running", "Job")) == (["4"], ["2"])
    put(browser, "user", "")
    for job_ids in (["6", "4", "3", "5_1"], ["5_1", "3", "4", "6"], ["3", "4", "5_1", "6"]):
        browser.find_elements("css selector", "#queue th")[5].click()  # GPUs
        assert cells(browser, "queue", "Job") == job_ids
    assert browser.get_log("browser") == []


def test_an_anonymous_page_in_a_browser(show: Show) -> None:
    browser = show(page(busy(), day(busy()), anonymous=True))
    assert cells(browser, "queue", "Job") == ["3", "4", "5_1", "6"]
    assert cells(browser, "queue", "User") == []
    assert cells(browser, "who", "Partition") == ["gpu"]
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [360, 1200])
def test_no_horizontal_scrolling_at_phone_width(show: Show, width: int) -> None:
    status = busy("a-user-with-a-name-that-is-quite-long")
    browser = show(page(status, day(status)), width)
    assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.find_elements("css selector", "#gpu-chart path.used-line")


def test_dark_mode_follows_the_system_and_the_switch(show: Show) -> None:
    color = "return getComputedStyle(document.body).backgroundColor"
    browser = show(page(busy(), day(busy())))
    seen = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        seen[scheme] = browser.execute_script(color)
    assert seen["light"] != seen["dark"]
    browser.find_element("css selector", "#theme").click()
    assert browser.execute_script(color) == seen["light"]
    browser.refresh()
    assert browser.execute_script(color) == seen["light"]


def test_an_old_page_says_so(show: Show) -> None:
    for written, reloads, warned in ((NOW - 1e9, 30.0, True), (NOW - 1e9, 0.0, False), (time.time(), 30.0, False)):
        browser = show(page(replace(busy(), written=written), Usage(), written_every_s=reloads))
        assert browser.find_element("css selector", "#stale").is_displayed() is warned


def test_ten_thousand_jobs_are_drawn_in_parts(show: Show) -> None:
    jobs = [job(str(number), f"u{number % 90}", 1 + number % 8, rank=number) for number in range(1, 10_001)]
    browser = show(page(replace(busy(), jobs=jobs), Usage()))
    assert browser.find_element("css selector", "#queue small").text == "10,000 jobs"
    assert len(cells(browser, "queue", "Job")) == 50
    browser.find_element("css selector", "#queue .more").click()
    assert len(cells(browser, "queue", "Job")) == 250
    put(browser, "text", "train9999")
    assert cells(browser, "queue", "Job") == ["9999"]
    assert browser.find_element("css selector", "#queue small").text == "1 of 10,000 jobs"
