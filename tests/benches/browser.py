"""A real, headless browser."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,1000",
)  # fmt: skip
PROGRAMS = ("chromium", "chromedriver")


def missing() -> str:
    """Why this machine has no browser; empty if it has one."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(absent)} not on this machine (make test-packages)" if absent else ""


@contextmanager
def chromium() -> Iterator[Any]:
    """Selenium's driver of Chromium; its log "browser" has the console messages of pages."""
    from selenium import webdriver

    program, driver = (shutil.which(name) for name in PROGRAMS)
    options = webdriver.ChromeOptions()
    options.binary_location = program or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="asrpt-chromium-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield found
        finally:
            found.quit()
