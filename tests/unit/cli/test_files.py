"""Atomic replacement of files."""

from __future__ import annotations

import os
from errno import ENOSPC
from pathlib import Path

import pytest

from slurm_asrpt.files import replace_file, replacing


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "table.txt"
    replace_file(target, b"old")
    with pytest.raises(ZeroDivisionError), replacing(target) as file:
        file.write(b"%d" % (1 // 0))
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.txt"]


def test_the_mode_of_a_replaced_file_is_kept_by_default(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    replace_file(target, b"1", mode=0o640)
    replace_file(target, b"2", mode=None)
    assert target.stat().st_mode & 0o777 == 0o640


def test_replacing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_file(pipe, b"text", mode=None)
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo()


def test_write_errors_name_the_requested_file() -> None:
    with pytest.raises(OSError, match="/proc/report'"):
        replace_file(Path("/proc/report"), b"")


def test_a_full_disk_names_the_requested_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, replacing(tmp_path / "x"):
        raise OSError(ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "x")
