"""asrpt-sim reproduce, kept hidden for one release: runs ``python -m papers`` from the checkout, if there is one."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from slurm_asrpt_cli._app.errors import run_app

import slurm_asrpt
from slurm_asrpt.errors import MachineError


def reproduce() -> NoReturn:
    """Take the command line ``asrpt-sim reproduce ...`` as ``python -m papers ...``."""
    run_app(_papers)


def _papers(**_: object) -> None:
    checkout = Path(slurm_asrpt.__file__).resolve().parents[1]
    if not (checkout / "papers" / "__main__.py").is_file():
        raise MachineError("reproduce is not installed: run python -m papers in a checkout of slurm-asrpt")
    del sys.argv[1]
    sys.path.append(str(checkout))  # an editable install has only the packages that are installed, too
    papers = import_module("papers.command")
    papers.main("papers", papers.reproduce_all)
