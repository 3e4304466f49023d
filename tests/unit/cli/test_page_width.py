"""Pages fit the window, and their main parts need no horizontal scrolling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.reporting import what_if as whatif_page
from slurm_asrpt.reporting.audit import page as audit_page
from slurm_asrpt.reporting.dashboard import page as dashboard_page
from slurm_asrpt.reporting.simulation.report import write_report
from slurm_asrpt.sim import what_if as whatif
from slurm_asrpt.status.usage import Usage
from tests.unit.audit.test_audit_page import day
from tests.unit.sim.test_sim_report import write
from tests.unit.sim.test_whatif import trace_of
from tests.unit.status.test_dashboard_page import busy

HIDDEN = "return [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length"
WIDTH = "return window.innerWidth"
OVERFLOWS = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"


def report(folder: Path) -> Path:
    write_report(write(folder, "fifo", "easy-backfill", load=3.0), folder / "report.html")
    return folder / "report.html"


def what_if(folder: Path) -> Path:
    past = whatif.replay(trace_of([(at, "a", 1, 5000 + at, 700) for at in range(9)]), [2])
    outcomes, _ = whatif.compare(past, ["fifo", "asrpt-gated"])
    (folder / "what-if.html").write_text(whatif_page.page(past, outcomes, interrupted=False), encoding="utf-8")
    return folder / "what-if.html"


def audit(folder: Path) -> Path:
    (folder / "audit.html").write_text(audit_page(day(), 900.0, 1200.0, "all jobs"), encoding="utf-8")
    return folder / "audit.html"


def dashboard(folder: Path) -> Path:
    (folder / "dashboard.html").write_text(dashboard_page(busy(), Usage()), encoding="utf-8")
    return folder / "dashboard.html"


@pytest.mark.parametrize("made", [report, what_if, audit, dashboard], ids=lambda made: str(made.__name__))
def test_pages_fit_the_window(made: Callable[[Path], Path], browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(made(tmp_path).as_uri())
    for width in (1280, 800):  # on a phone, tables and pictures scroll
        browser.set_window_size(width, 900)
        # resizing the window takes a moment
        WebDriverWait(browser, 30).until(
            lambda driver, at=width: driver.execute_script("return window.innerWidth") == at
        )
        assert not browser.execute_script(OVERFLOWS), width
        assert browser.execute_script(HIDDEN) == 0, width
