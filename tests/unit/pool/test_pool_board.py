"""What the board tells slots, one event after the other."""

from __future__ import annotations

import numpy as np

from slurm_asrpt.core.rounds.arrival import Arrival
from slurm_asrpt.core.rounds.jobs import Fleet
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.board import Began, Board, Command, Gradient, Kind, Renew, Send, State, Stepped, tasks_of
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot

STATE = Packed.of({"w": np.ones(2)})


class Bench:
    """A board, and the answers of executors that do nothing."""

    def __init__(self, *names: str, slots: int = 1, renew: bool = False, tasks: int = 2, rounds: int = 2) -> None:
        fleet = Fleet.of({"slot": 4})
        self.board, self.sizes = Board(Arrival(fleet, ()), fleet, renew=renew), (tasks, rounds)
        for name in names:
            self.board.add(name)
        for slot in range(slots):
            self.board.joined(slot)

    def turn(self) -> list[Command]:
        return self.board.turn(0.0)

    def answer(self, slot: int, **given: bool) -> None:
        work = self.board.slots[slot].busy
        assert work is not None
        results = {
            Kind.BEGIN: Began(*self.sizes, Snapshot(STATE)),
            Kind.GRADIENT: Gradient(STATE, 1.0),
            Kind.STEP: Stepped(STATE, given.get("stop", False)),
        }
        self.board.ended(slot, results[work.kind], 0.0)


def told(commands: list[Command]) -> list[tuple[int, str]]:
    return [(c.slot, f"{c.work.kind} {c.work.training}" if isinstance(c, Send) else "renew") for c in commands]


def test_a_state_is_sent_only_to_a_slot_that_does_not_hold_it() -> None:
    bench, sent = Bench("a"), []
    for _ in range(7):
        (command,) = bench.turn()
        assert isinstance(command, Send)
        sent.append((str(command.work.kind), command.snapshot is not None))
        bench.answer(0)
    assert sent == [("begin", False), ("gradient", True), *[(k, False) for k in ("gradient", "step") * 2][:1],
                    ("step", False), ("gradient", False), ("gradient", False), ("step", False)]  # fmt: skip
    assert bench.board.finished


def test_a_step_goes_to_a_slot_that_holds_the_state() -> None:
    bench = Bench("a", slots=3)
    bench.turn()
    bench.answer(0)
    assert told(bench.turn()) == [(0, "gradient a"), (1, "gradient a")]
    bench.board.lost(0)
    assert told(bench.turn()) == [(2, "gradient a")]
    bench.board.joined(0)
    bench.answer(1)
    bench.answer(2)
    assert told(bench.turn()) == [(1, "step a")]


def test_lost_work_goes_to_the_next_idle_slot() -> None:
    bench = Bench("a", slots=2)
    bench.turn()
    bench.answer(0)
    assert told(bench.turn()) == [(0, "gradient a"), (1, "gradient a")]
    bench.board.lost(1)
    assert told(bench.turn()) == []
    bench.answer(0)
    assert told(bench.turn()) == [(0, "gradient a")]
    bench.answer(0)
    assert told(bench.turn()) == [(0, "step a")]


def test_work_that_always_ends_its_executor_fails_its_training() -> None:
    bench = Bench("a")
    for _ in range(5):
        assert told(bench.turn()) == [(0, "begin a")]
        bench.board.lost(0)
        bench.board.joined(0)
    assert told(bench.turn()) == []
    assert bench.board.trainings["a"].why == "its process ended 5 times during its begin"
    assert bench.board.finished


def test_a_slot_that_turns_to_another_training_gets_a_new_process() -> None:
    bench = Bench("a", "b", renew=True, tasks=1, rounds=1)
    for _ in ("begin", "gradient", "step"):
        bench.turn()
        bench.answer(0)
    assert told(bench.turn()) == [(0, "renew")]
    bench.board.lost(0)
    assert told(bench.turn()) == []
    bench.board.joined(0)
    assert told(bench.turn()) == [(0, "begin b")]
    assert (bench.board.switches, bench.board.losses) == (1, 0)


def test_a_process_that_does_not_come_leaves_its_work_to_others() -> None:
    bench = Bench("a", "b", renew=True, tasks=1, rounds=1)
    for _ in ("begin", "gradient", "step"):
        bench.turn()
        bench.answer(0)
    assert told(bench.turn()) == [(0, "renew")]
    bench.board.lost(0)
    bench.board.missing(0)
    bench.board.joined(1)
    assert told(bench.turn()) == [(1, "begin b")]


def test_trainings_begin_only_where_nothing_else_is_to_be_done() -> None:
    bench = Bench("a", "b", slots=1, tasks=1)
    seen = []
    while not bench.board.finished:
        (command,) = told(bench.turn())
        seen.append(command[1])
        bench.answer(0)
    assert seen == ["begin a", *["gradient a", "step a"] * 2, "begin b", *["gradient b", "step b"] * 2]


def test_a_training_may_stop_early() -> None:
    bench = Bench("a", tasks=1, rounds=9)
    for _ in range(2):
        bench.turn()
        bench.answer(0)
    bench.turn()
    bench.answer(0, stop=True)
    assert bench.board.finished
    assert tasks_of(bench.board.trainings.values()) == (1, 1)


def test_a_training_whose_rounds_are_done_already_ends_at_once() -> None:
    bench = Bench(rounds=2)
    bench.board.add("a", Checkpoint(Snapshot(STATE, (1.0, 1.0)), 2, 3, False))
    bench.board.add("b", Checkpoint(Snapshot(STATE, (1.0,)), 2, 3, True))
    assert told(bench.turn()) == [(0, "begin a")]
    bench.answer(0)
    assert bench.turn() == []
    assert [each.state for each in bench.board.trainings.values()] == [State.DONE, State.DONE]


def test_a_gradient_with_other_arrays_fails_its_training() -> None:
    bench = Bench("a", tasks=2)
    for _ in range(2):
        bench.turn()
        bench.answer(0)
    bench.turn()
    bench.board.ended(0, Gradient(Packed.of({"v": np.ones(2)}), 1.0), 0.0)
    assert bench.board.trainings["a"].why == "the gradient of task 1 has other arrays than that of task 0"


def test_the_total_of_tasks_counts_unknown_trainings_as_the_mean_of_the_others() -> None:
    bench = Bench("a", "b", "c", tasks=2, rounds=3)
    assert tasks_of(bench.board.trainings.values()) == (0, 0)
    bench.turn()
    bench.answer(0)
    assert tasks_of(bench.board.trainings.values()) == (0, 18)


def test_a_renewal_is_no_command_for_a_slot_without_a_training() -> None:
    bench = Bench("a", renew=True)
    assert not any(isinstance(command, Renew) for command in bench.turn())
