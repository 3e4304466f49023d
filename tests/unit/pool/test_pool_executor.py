"""What a slot's process keeps, and what it answers, without a driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_asrpt.pool import executor as module
from slurm_asrpt.pool.arrays import Arrays, Packed
from slurm_asrpt.pool.executor import Executor, Held, Piece
from slurm_asrpt.pool.memory import MB
from slurm_asrpt.pool.snapshot import Snapshot
from slurm_asrpt.pool.training import AHEAD, WARM, Switching

GRADIENT = {"do": "gradient", "task": 0, "loss": 0.0, "sums": False, "step": False}


class OnDevice:
    """A training that writes down what it is told."""

    tasks, rounds = 1, 9

    def __init__(self) -> None:
        self.told: list[str] = []

    def adopt(self, switching: Switching) -> None:
        self.told.append(f"adopt {switching.way}")

    def prefetch(self, state: Arrays) -> None:
        self.told.append(f"prefetch {state['w'][0]:g}")

    def holds(self, state: Arrays) -> None:
        self.told.append(f"holds {state['w'][0]:g}")

    def leave(self) -> None:
        self.told.append("leave")

    def initial(self) -> Arrays:
        return {"w": np.zeros(4)}

    def gradient(self, state: Arrays, round: int, task: int) -> tuple[Arrays, float]:
        return {"w": np.ones(4)}, 1.0

    def step(self, state: Arrays, gradient: Arrays, round: int) -> Arrays:
        return {"w": state["w"] + 1}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, OnDevice]:
    """Trainings by what they use."""
    found: dict[str, OnDevice] = {}

    def load(uses: str, settings: Mapping[str, Any], folder: Path) -> OnDevice:
        return found.setdefault(uses, OnDevice())

    monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(module, "write_into", lambda log: None)
    return found


def executor(way: str, keep: int = 3, memory: int = 1 << 40) -> Executor:
    return Executor(Path("trainings"), Path(), keep, memory, Switching(way))


def piece(name: str, round: int, state: float | None = None, **more: Any) -> Piece:
    told = {**GRADIENT, "training": name, "uses": name, "with": {}, "round": round, "losses": None, **more}
    if state is None:
        return Piece.of(told, more.get("parts", []))
    return Piece.of({**told, "losses": [0.5] * round}, [Packed.of({"w": np.full(4, state)})])


def test_states_of_earlier_trainings_are_kept_where_the_next_is_prepared(loaded: dict[str, OnDevice]) -> None:
    for way, expected in ((WARM, {"missing": True, "seconds": 0.0}), (AHEAD, None)):
        slot = executor(way)
        for name in "ab":
            assert slot.work(piece(name, 2, 7.0))[0]["loss"] == 1.0
        answer, _ = slot.work(piece("a", 2))
        assert answer == expected if expected else answer["loss"] == 1.0
        assert slot.work(piece("a", 3))[0] == {"missing": True, "seconds": 0.0}


def test_the_training_that_was_used_longest_ago_leaves_with_its_state(loaded: dict[str, OnDevice]) -> None:
    slot = executor(AHEAD, keep=2)
    for name in "abac":
        slot.work(piece(name, 2, 7.0))
    assert loaded["b"].told[-1] == "leave"
    assert "missing" in slot.work(piece("b", 2))[0]
    assert "missing" not in slot.work(piece("a", 2))[0]


def test_states_that_are_kept_leave_memory_for_those_that_compute() -> None:
    state = Packed.of({"w": np.zeros(MB, np.uint8)})
    slot = executor(AHEAD, keep=9, memory=16 * MB)
    for name in "abcdef":
        slot.hold(Held(name, Snapshot(state)))
    assert list(slot._held) == ["b", "c", "d", "e", "f"]  # four megabytes beside the last one


def test_what_is_announced_is_copied_if_it_is_the_state_that_the_work_is_of(loaded: dict[str, OnDevice]) -> None:
    slot = executor(AHEAD)
    coming = piece("a", 2, 7.0)
    slot.announce(coming)  # not loaded yet
    slot.work(coming)
    slot.announce(piece("a", 2))
    slot.announce(piece("a", 3))
    slot.announce(piece("a", 3, 8.0, do="next"))
    assert loaded["a"].told == [f"adopt {AHEAD}", "prefetch 7", "prefetch 8"]


def test_after_a_step_the_training_knows_the_object_that_has_its_state(loaded: dict[str, OnDevice]) -> None:
    slot = executor(AHEAD)
    slot.work(piece("a", 0, 7.0))
    step = piece("a", 0, do="step")
    step.parts.append(Packed.of({"w": np.ones(4)}))
    answer, (state,) = slot.work(step)
    assert (answer["stop"], state.arrays()["w"][0]) == (False, 8.0)
    assert loaded["a"].told[-1] == "holds 8"
    assert "missing" not in slot.work(piece("a", 1))[0]
