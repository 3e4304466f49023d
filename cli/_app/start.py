"""Where each tool starts. What it needs takes up to a second to import, in which users press Ctrl-C, too."""

from __future__ import annotations

import sys
from importlib import import_module


def _start(module: str) -> int | None:
    try:
        code: int | None = import_module(f"slurm_asrpt_cli.{module}").main()
    except KeyboardInterrupt:  # a command that has begun words it itself
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
