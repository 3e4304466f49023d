"""What the board tells slots, one event after the other."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_asrpt.core.rounds.jobs import Fleet
from slurm_asrpt.core.rounds.policies import make_round_policy
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.board import (
    Began,
    Board,
    Command,
    Gradient,
    Kind,
    Missing,
    Next,
    Renew,
    Send,
    State,
    Stepped,
    tasks_of,
)
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot
from tests.benches import pool_policies  # noqa: F401 registers a policy

STATE = Packed.of({"w": np.ones(2)})


class Bench:
    """A board, and the answers of executors that do nothing."""

    def __init__(
        self,
        *names: str,
        slots: int = 1,
        renew: bool = False,
        tasks: int = 2,
        rounds: int = 2,
        policy: str = "arrival",
        held: int = 1,
    ) -> None:
        fleet = Fleet.of({"slot": 4})
        made = make_round_policy(policy, fleet=fleet, jobs=())
        self.board, self.sizes = Board(made, fleet, renew=renew, held=held, ahead=held > 1), (tasks, rounds)
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
            Kind.STEP: Stepped(STATE, given.get("stop", False), 1.0),
        }
        self.board.ended(slot, results[Kind.STEP if work.steps else work.kind], 0.0)


def told(commands: list[Command]) -> list[tuple[int, str]]:
    return [(c.slot, f"{c.work.kind} {c.work.training}" if isinstance(c, Send) else "renew") for c in commands]


def test_a_state_is_sent_only_to_a_slot_that_does_not_hold_it() -> None:
    bench, sent = Bench("a"), []
    while not bench.board.finished:
        sent.append([c.snapshot is not None for c in bench.turn() if isinstance(c, Send)])
        bench.answer(0)
    assert sent == [[False], [True, False], [], [False, False], []]


def test_the_next_task_is_sent_while_one_runs_and_the_step_follows_by_itself() -> None:
    bench = Bench("a", tasks=3, rounds=1)
    bench.turn()
    bench.answer(0)
    flow = []
    while not bench.board.finished:
        flow.append([(c.work.task, c.sums, c.work.steps) for c in bench.turn() if isinstance(c, Send)])
        bench.answer(0)
    assert flow == [[(0, True, False), (1, True, False)], [(2, True, True)], []]


def test_the_last_tasks_of_a_round_go_where_they_begin_first() -> None:
    """Only while the round has a task for each slot, slots get the next one ahead."""
    bench = Bench("a", slots=2, tasks=5)
    bench.turn()
    bench.answer(0)
    assert [(c.slot, c.work.task) for c in bench.turn() if isinstance(c, Send)] == [(0, 0), (1, 1), (0, 2), (1, 3)]
    bench.answer(1)
    assert told(bench.turn()) == []
    bench.answer(1)
    (last,) = bench.turn()
    assert isinstance(last, Send)
    assert (last.slot, last.work.task, last.sums) == (1, 4, False)


def test_a_slot_that_lacks_gradients_of_the_round_is_sent_their_mean() -> None:
    bench = Bench("a", slots=2)
    bench.turn()
    bench.answer(0)
    assert told(bench.turn()) == [(0, "gradient a"), (1, "gradient a")]
    bench.answer(1)
    assert told(bench.turn()) == []
    bench.answer(0)
    (step,) = bench.turn()
    assert isinstance(step, Send)
    assert step.work.kind is Kind.STEP
    assert step.mean is not None


def test_what_was_sent_ahead_to_a_lost_slot_runs_elsewhere() -> None:
    bench = Bench("a", tasks=3)
    bench.turn()
    bench.answer(0)
    assert told(bench.turn()) == [(0, "gradient a")] * 2
    bench.board.lost(0)
    bench.board.joined(0)
    first, *more = bench.turn()
    assert isinstance(first, Send)
    assert (first.work.task, first.work.attempts, first.snapshot is not None) == (0, 1, True)
    assert more == []
    bench.answer(0)
    assert [(c.work.task, c.work.attempts) for c in bench.turn() if isinstance(c, Send)] == [(1, 0), (2, 0)]


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
    assert bench.board.trainings["a"].done == 1


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
    for _ in ("begin", "gradient"):
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
    for _ in ("begin", "gradient"):
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
    assert seen == ["begin a", "gradient a", "gradient a", "begin b", "gradient b", "gradient b"]


def test_a_training_may_stop_early() -> None:
    bench = Bench("a", tasks=1, rounds=9)
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


@pytest.mark.parametrize("held", [2, 9])
def test_a_slot_is_told_what_came_next_the_last_time_with_a_state_that_it_has_not_kept(held: int) -> None:
    """Three trainings in turns on one slot."""
    bench, found = Bench("a", "b", "c", tasks=1, rounds=4, policy="turns", held=held), []
    while not bench.board.finished:
        found += [(c.training, c.round, c.snapshot is not None) for c in bench.turn() if isinstance(c, Next)]
        bench.answer(0)
    assert [name for name, _, _ in found][:6] == ["b", "c", "a", "b", "c", "a"]
    assert {sent for _, round, sent in found if round} == {held < 3}


def test_no_slot_is_told_what_may_be_next_unless_it_prepares_for_it() -> None:
    bench = Bench("a", "b", tasks=1, rounds=4, policy="turns")
    while not bench.board.finished:
        assert not any(isinstance(c, Next) for c in bench.turn())
        bench.answer(0)


def test_a_slot_that_has_not_kept_a_state_gets_it_again_and_does_the_same_work() -> None:
    bench = Bench("a", "b", tasks=1, rounds=3, policy="turns", held=2)
    for _ in range(4):  # both begin, and do a round each
        bench.turn()
        bench.answer(0)
    (sent,) = [c for c in bench.turn() if isinstance(c, Send)]
    assert (sent.work.training, sent.work.round, sent.snapshot) == ("a", 1, None)
    bench.board.ended(0, Missing(), 0.0)
    (again,) = [c for c in bench.turn() if isinstance(c, Send)]
    assert (again.work, again.snapshot is not None, bench.board.slots[0].owed) == (sent.work, True, 1)
    while not bench.board.finished:
        bench.answer(0)
        bench.turn()
    assert [(each.state, each.done) for each in bench.board.trainings.values()] == [(State.DONE, 3)] * 2
