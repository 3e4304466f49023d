"""Run the end-to-end tests on other Slurm releases, and update docs/compatibility.md: ``make test-compat``.

    python -m tests.trials.compat [here] [trixie] [sid] [--only FILE,FILE]

``here`` is the Slurm of this machine; the others are those of Debian releases in build/compat, which are created if
missing. Needs root, and ``debootstrap`` for the others. Without arguments, all three run in turn, which takes about
an hour and a quarter on two cores. ``--only leases,demo`` runs a part; a release gets its row as soon as every file has
a report in build/compat.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from slurm_asrpt.errors import AsrptError, one_line
from slurm_asrpt.lab import other_release
from slurm_asrpt.lab.other_release import TREE, VENV, command_in, environment

HERE = "here"
SUITES = (HERE, "trixie", "sid")
WORK = TREE / "build" / "compat"
PAGE = TREE / "docs" / "compatibility.md"
CORE = (
    *("lab", "clients", "leases", "placement", "hands_off", "arrays", "chosen_nodes"),
    *("one_queue", "priorities", "preemption", "power_saving", "wakeup", "features_accounts", "limits_in_replays"),
    *("hook_failures", "hostile_names", "variants"),
    "demo",
)
DATABASE_CLIENT = Path("usr/lib/x86_64-linux-gnu/libmariadb.so.3")
BROKEN_CLIENT = "11.8.9"
"""The release of MariaDB's client library with which slurmdbd exits at startup (docs/slurm-notes.md)."""
ROW = re.compile(r"\| (\d\d\.\d\d)\S* \|.*\| \d{4}-\d\d-\d\d \|")
"""Of the table that this writes: other tables of the page have releases in their first column, too, but no dates."""
FACTS = """
import glob, importlib.metadata, platform, re, subprocess
version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout.split()[-1]
hook = glob.glob("/usr/lib/*/slurm*/job_submit_lua.so")[0]
lua = re.search(r"liblua(5\\.\\d)", subprocess.run(["ldd", hook], capture_output=True, text=True).stdout)
debian = open("/etc/debian_version").read().strip()
try:
    client = importlib.metadata.version("pyslurm")
except importlib.metadata.PackageNotFoundError:
    client = "-"
print(version, debian, lua[1] if lua else "?", platform.python_version(), client)
"""


def test(suite: str, names: Sequence[str]) -> str:
    """Run these files. Return one row of the table, or "" while reports of others are missing. Raises MachineError."""
    root = None if suite == HERE else WORK / suite
    if root:
        other_release.make(suite, root, lambda text: print(f"{suite}: {text}", flush=True))
        lend_database_client(root)
    WORK.mkdir(parents=True, exist_ok=True)
    for name in names:
        report = _report(suite, name)
        report.unlink(missing_ok=True)
        file = f"tests/e2e/test_{name}.py"
        _run(root, ["-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", file], show=True)
    reports = [_report(suite, name) for name in CORE]
    if not all(report.exists() for report in reports):
        return ""
    facts = _run(root, ["-c", FACTS]).split()
    date = time.strftime("%Y-%m-%d", time.gmtime(min(report.stat().st_mtime for report in reports)))
    return f"| {' | '.join([*facts, *map(str, total(map(counts, reports))), date])} |"


def lend_database_client(root: Path) -> None:
    """Replace a MariaDB client library with which slurmdbd cannot run by this machine's older one."""
    own = Path("/") / DATABASE_CLIENT
    if own.exists() and BROKEN_CLIENT.encode() in (root / DATABASE_CLIENT).read_bytes():
        shutil.copyfile(own, root / DATABASE_CLIENT)
        print(f"{root.name}: slurmdbd gets this machine's {own.name}", flush=True)


def _report(suite: str, name: str) -> Path:
    return WORK / f"{suite}-{name}.xml"


def _run(root: Path | None, arguments: Sequence[str], show: bool = False) -> str:
    """The output of Python in ``root`` or here; with ``show``, it goes to the terminal instead."""
    inside = [f"/{VENV}/bin/python", *arguments]
    command = command_in(root, inside) if root else [sys.executable, *arguments]
    env = environment(os.environ) if root else None
    done = subprocess.run(command, stdout=None if show else subprocess.PIPE, text=True, check=False, env=env, cwd=TREE)
    return done.stdout or ""


def counts(report: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) of a JUnit report; a test whose setup failed counts as failed."""
    suites = list(ElementTree.parse(report).iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return tests - failures - errors - skipped, failures + errors, skipped


def total(found: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    """(passed, failed, skipped) of several reports."""
    passed, failed, skipped = zip(*found, strict=True)
    return sum(passed), sum(failed), sum(skipped)


def with_rows(page: str, rows: Sequence[str]) -> str:
    """The page with these rows in its table, replacing older rows of the same releases."""
    lines = page.splitlines()
    new = {match[1]: row for row in rows if (match := ROW.fullmatch(row))}
    old = {match[1]: line for line in lines if (match := ROW.fullmatch(line))}
    first = next(i for i, line in enumerate(lines) if line.startswith("|---")) + 1
    kept = [line for line in lines if not ROW.fullmatch(line)]
    table = [row for _, row in sorted((old | new).items())]
    return "\n".join([*kept[:first], *table, *kept[first:]]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--only", default=",".join(CORE), help="test files in tests/e2e (default: %(default)s)")
    options, failed = parser.parse_args(), 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it; a shell ignores it in the background
    for suite in options.suites:
        try:
            row = test(suite, options.only.split(","))
        except AsrptError as error:
            print(f"{suite}: {one_line(error)}", file=sys.stderr)
            return error.exit_code
        if not row:
            print(f"{suite}: no row yet, because some files of {', '.join(CORE)} have no report")
            continue
        PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), [row]), encoding="utf-8")
        print(row)
        failed += row.split(" | ")[6] != "0"
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
