"""A user's progress directory may contain anything: asrptd removes what it can and continues."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slurm_asrpt.spool import MAX_FILES, forgotten_progress, progress_dir, remove_progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = progress_dir(tmp_path) / "7"
    made.mkdir(parents=True)
    return made


def test_links_are_removed_and_their_targets_are_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (folder / "iterations").write_text("1 2\n")
    (folder / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(folder / "fifo")
    remove_progress(tmp_path, "7")
    assert not folder.exists()
    assert (tmp_path / "precious").exists()


def test_deeply_nested_directories_are_left_in_place(folder: Path, tmp_path: Path) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (folder / "iterations").write_text("1 2\n")
    remove_progress(tmp_path, "7")
    assert os.listdir(folder) == ["d"]
    subprocess.run(["rm", "-r", folder], check=True)  # pytest's own removal is recursive


def test_many_files_are_removed_in_several_steps(folder: Path, tmp_path: Path) -> None:
    for number in range(MAX_FILES + 5):
        (folder / str(number)).touch()
    remove_progress(tmp_path, "7")
    assert len(os.listdir(folder)) == 5
    remove_progress(tmp_path, "7")
    assert not folder.exists()


def test_a_link_in_place_of_the_progress_directory_is_not_followed(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "precious").touch()
    folder.rmdir()
    folder.symlink_to(target)
    remove_progress(tmp_path, "7")
    assert (target / "precious").exists()


def test_only_old_directories_of_unknown_jobs_are_removed(tmp_path: Path) -> None:
    for name, changed in (("7", 10.0), ("8", 10.0), ("9", 1000.0), (".stale.6.1", 10.0)):
        made = progress_dir(tmp_path) / name
        made.mkdir(parents=True)
        os.utime(made, (changed, changed))
    assert sorted(forgotten_progress(tmp_path, {"8"}, 500.0)) == [".stale.6.1", "7"]
    assert forgotten_progress(tmp_path / "none", set(), 500.0) == []
