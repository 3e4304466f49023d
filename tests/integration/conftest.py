"""The progress directory of a job, for callbacks of the real training libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_asrpt import progress
from slurm_asrpt.progress import FOLDER_VARIABLE, RANK_VARIABLES, STEP_VARIABLES
from slurm_asrpt.spool import progress_dir
from tests.benches.progress import new_process


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A spool in which this process is rank 0 of job 7."""
    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    for name in (*RANK_VARIABLES, *STEP_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(progress, "EVERY_S", 0.0)  # even a training of milliseconds has a loss curve
    monkeypatch.setattr(progress, "COST", 0.0)
    new_process()
    yield tmp_path
    new_process()
