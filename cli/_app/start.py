"""Entry points of the tools. Their imports take up to a second, in which Ctrl-C must not print a traceback."""

from __future__ import annotations

import sys
from importlib import import_module


def _start(module: str) -> int | None:
    try:
        code: int | None = import_module(f"slurm_asrpt_cli.{module}").main()
    except KeyboardInterrupt:  # during the imports; run_app handles it afterwards
        sys.exit(130)
    return code


def asrptd() -> int | None:
    return _start("asrptd")


def status() -> int | None:
    return _start("status.command")


def report() -> int | None:
    return _start("report")


def admin() -> int | None:
    return _start("admin")


def lab() -> int | None:
    return _start("lab")


def sim() -> int | None:
    return _start("sim")


def profile() -> int | None:
    return _start("profile")


def pool() -> int | None:
    return _start("pool")
