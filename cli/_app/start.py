"""Entry points of the tools. Their imports take up to a second, in which Ctrl-C must not print a traceback."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

GARBAGE = (50_000, 20, 20)
"""Thresholds of gc. With the defaults it scans all imported modules again and again, and finds hardly any garbage."""


def _start(module: str, threads: str = "1") -> int | None:
    """threads: of OpenBLAS. When NumPy is imported, each keeps a CPU busy for a tenth of a second, and has no work."""
    gc.set_threshold(*GARBAGE)
    if threads:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", threads)
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
    return _start("profile", threads="")  # it measures with as many as trainings have


def pool() -> int | None:
    return _start("pool")
