"""Checkpoints that asrptd asks for by a signal, in users' programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_asrpt import checkpoints, progress
from slurm_asrpt.checkpoints import EVERY, Checkpoints
from slurm_asrpt.progress import FOLDER_VARIABLE
from tests.benches.progress import new_process


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The progress directory of this job; the signal does nothing afterwards."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    for name in (*progress.RANK_VARIABLES, *progress.STEP_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    new_process()
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    yield tmp_path
    signal.signal(signal.SIGUSR1, before)
    new_process()


def asked() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_checkpoint_is_due_from_the_signal_until_it_is_written(folder: Path) -> None:
    found = Checkpoints(wait_s=0.0)
    assert not found.due()
    asked()
    assert found.due()
    assert found.due()
    progress.report(6, 10)
    found.written(7)
    assert not found.due()
    assert (folder / "checkpoint").read_text() == "7\n"
    assert (folder / "iterations").read_text().split()[:2] == ["6", "10"]


def test_it_waits_for_the_requeue_but_not_once_it_is_asked_again() -> None:
    found = Checkpoints(wait_s=30.0)
    timer = threading.Timer(0.2, asked)
    timer.start()
    began = time.monotonic()
    found.written(1)
    assert 0.2 <= time.monotonic() - began < 20.0
    assert found.due()


def test_another_signal_may_be_used_and_is_given_back() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        found = Checkpoints("USR2", wait_s=0.0)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert found.due()
        found.close()
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_an_ignored_signal_is_received(ignored: Any) -> None:
    """``trap '' USR1`` in the job script protects the start of Python."""
    signal.signal(signal.SIGUSR1, ignored)
    found = Checkpoints(wait_s=0.0)
    asked()
    assert found.due()
    found.close()
    assert signal.getsignal(signal.SIGUSR1) == ignored


def test_a_handler_of_the_program_is_kept() -> None:
    seen = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    found = Checkpoints()
    assert not found.receives
    asked()
    assert (seen, found.due()) == ([signal.SIGUSR1], False)
    found.close()
    assert callable(signal.getsignal(signal.SIGUSR1))


def test_in_another_thread_no_signal_is_received() -> None:
    made: list[Checkpoints] = []
    thread = threading.Thread(target=lambda: made.append(Checkpoints()))
    thread.start()
    thread.join()
    assert not made[0].receives
    assert not made[0].due()


class Ranks:
    """torch.distributed of one of two ranks; the other one says what ``other`` is."""

    ReduceOp = SimpleNamespace(MAX="max")

    def __init__(self, other: int, backend: str = "gloo") -> None:
        self.other, self.backend, self.agreed = other, backend, 0

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_world_size(self) -> int:
        return 2

    def get_backend(self) -> str:
        return self.backend

    def all_reduce(self, flag: list[int], op: str) -> None:
        self.agreed += 1
        flag[0] = max(flag[0], self.other)


class Flag(list[int]):
    def item(self) -> int:
        return self[0]


def torch_of(ranks: Ranks) -> Any:
    cuda = SimpleNamespace(current_device=lambda: 3)
    devices: list[Any] = []

    def tensor(values: list[int], device: Any) -> Flag:
        devices.append(device)
        return Flag(values)

    return SimpleNamespace(distributed=ranks, cuda=cuda, tensor=tensor, devices=devices)


@pytest.mark.parametrize(("here", "there"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_ranks_agree(monkeypatch: pytest.MonkeyPatch, here: int, there: int) -> None:
    ranks = Ranks(there)
    monkeypatch.setitem(sys.modules, "torch", torch_of(ranks))
    found = Checkpoints(wait_s=0.0)
    if here:
        asked()
    answers = [found.due() for _ in range(2 * EVERY)]
    assert ranks.agreed == 2
    assert answers == ([False] * (EVERY - 1) + [bool(here or there)]) * 2


@pytest.mark.parametrize(("backend", "device"), [("nccl", 3), ("gloo", "cpu"), ("cpu:gloo,cuda:nccl", "cpu")])
def test_ranks_agree_where_their_backend_can(monkeypatch: pytest.MonkeyPatch, backend: str, device: Any) -> None:
    torch = torch_of(Ranks(0, backend))
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = Checkpoints()
    for _ in range(EVERY):
        found.due()
    assert torch.devices == [device]


def test_it_imports_only_the_standard_library() -> None:
    code = "import sys; before = set(sys.modules); import slurm_asrpt.checkpoints; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names <= {"slurm_asrpt", "__future__", *sys.stdlib_module_names}
    assert checkpoints.TYPE_CHECKING is False
