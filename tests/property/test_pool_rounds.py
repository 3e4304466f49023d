"""A pool's results are equal to the bit, however tasks are spread and whenever executors end.

Executors are played by values in this process; ``tests/unit/pool/test_pool_kills.py`` kills real ones.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.rounds.feed import Record
from slurm_asrpt.core.rounds.jobs import Fleet
from slurm_asrpt.core.rounds.policies import clairvoyant, make_round_policy, round_policy_names
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.board import (
    Began,
    Board,
    Command,
    Failed,
    Gradient,
    Kind,
    Missing,
    Next,
    Renew,
    Result,
    Send,
    State,
    Stepped,
    Training,
    Work,
)
from slurm_asrpt.pool.decisions import document, parse_decision
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot
from slurm_asrpt.pool.synchronization import RoundSum
from slurm_asrpt.pool.training import stops
from slurm_asrpt.sim.rounds_replay import Difference, replay_rounds
from tests.benches import pool_policies  # noqa: F401 registers a policy
from tests.benches.pool_models import Line

SIZES = {"a": (3, 4), "b": (1, 6), "c": (5, 2), "d": (2, 3)}
"""Tasks and rounds of the trainings."""


def model(name: str) -> Line:
    tasks, rounds = SIZES[name]
    return Line(lr=0.3, seed=ord(name), tasks=tasks, rounds=rounds, stop_at=2 if name == "d" else 0)


@cache
def alone(name: str) -> Snapshot:
    """The result of a training by itself, in a plain loop."""
    training = model(name)
    snapshot = Snapshot(Packed.of(training.initial()))
    for round in range(training.rounds):
        state = snapshot.state.arrays()
        found = [training.gradient(state, round, task) for task in range(training.tasks)]
        total = {key: array.copy() for key, array in found[0][0].items()}
        for gradient, _ in found[1:]:
            total = {key: np.asarray(total[key] + gradient[key]) for key in total}
        mean = {key: np.asarray(array / array.dtype.type(training.tasks)) for key, array in total.items()}
        loss = sum(loss for _, loss in found) / training.tasks
        snapshot = snapshot.after(Packed.of(training.step(state, mean, round)), loss)
        if stops(training, snapshot.losses):
            break
    return snapshot


@dataclass
class Played:
    """An executor: what it holds, the gradients that it adds up, and its orders: what it does, and does next.

    keep: snapshots that it holds; it may forget all at any time if that is more than one.
    """

    keep: int = 1
    held: dict[str, Snapshot] = field(default_factory=dict)
    orders: list[Send] = field(default_factory=list)
    sum: tuple[str, int, RoundSum] = field(default_factory=lambda: ("", 0, RoundSum(1)))
    failed: str = ""

    @property
    def order(self) -> Send | None:
        return self.orders[0] if self.orders else None

    def work(self) -> Result:
        order = self.orders.pop(0)
        work, training = order.work, model(order.work.training)
        if work.kind is Kind.BEGIN:
            return Began(training.tasks, training.rounds, Snapshot(Packed.of(training.initial())))
        if order.snapshot:
            self.hold(work.training, order.snapshot)
        if self.failed == work.training:
            return Failed("what was sent with it has failed")
        snapshot = self.held.get(work.training)
        if snapshot is None or snapshot.rounds != work.round:
            assert self.keep > 1, "the board is wrong about what is held"
            return Missing()
        if work.kind is Kind.GRADIENT:
            gradient, loss = training.gradient(snapshot.state.arrays(), work.round, work.task)
            if order.sums:
                self.add(work, Packed.of(gradient), loss)
            if not work.steps:
                return Gradient(Packed.of(gradient), loss)
            return self.step(training, work, self.sum[2].mean(), self.sum[2].mean_loss)
        assert order.mean is not None
        return self.step(training, work, order.mean, order.loss)

    def hold(self, name: str, snapshot: Snapshot) -> None:
        self.failed = "" if name == self.failed else self.failed
        self.held.pop(name, None)
        self.held[name] = snapshot
        while len(self.held) > self.keep:
            del self.held[next(iter(self.held))]

    def fail(self) -> None:
        """The code of its training fails."""
        work = self.orders.pop(0).work
        self.failed = work.training
        self.held.pop(work.training, None)

    def add(self, work: Work, gradient: Packed, loss: float) -> None:
        if self.sum[:2] != (work.training, work.round):
            self.sum = work.training, work.round, RoundSum(model(work.training).tasks)
        self.sum[2].add(work.task, gradient, loss)

    def step(self, training: Line, work: Work, mean: Packed, loss: float) -> Stepped:
        snapshot = self.held[work.training]
        state = Packed.of(training.step(snapshot.state.arrays(), mean.arrays(), work.round))
        after = snapshot.after(state, loss)
        self.hold(work.training, after)
        return Stepped(state, stops(training, after.losses), loss)


@dataclass
class Play:
    """A pool whose slots end their work, die and come back in an order that ``chance`` chooses."""

    board: Board
    chance: random.Random
    kills: int
    keep: int = 1
    now: float = 0.0
    executors: dict[int, Played] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    """Slots without an executor that will come back."""

    def start(self, slots: int) -> None:
        for slot in range(slots):
            self.join(slot)

    def join(self, slot: int) -> None:
        self.absent.discard(slot)
        self.executors[slot] = Played(self.keep)
        self.board.joined(slot)
        self.turn()

    def turn(self) -> None:
        for command in self.board.turn(self.now):
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, Renew):
            del self.executors[command.slot]
            self.absent.add(command.slot)
            self.board.lost(command.slot)
            return
        executor = self.executors[command.slot]
        if isinstance(command, Next):
            if command.snapshot:
                executor.hold(command.training, command.snapshot)
            return
        assert len(executor.orders) < 2, "one piece of work, and the next"
        executor.orders.append(command)

    def kill(self) -> None:
        slot = self.chance.choice(sorted(self.executors))
        del self.executors[slot]
        self.absent.add(slot)
        self.board.lost(slot)
        self.kills -= 1
        self.turn()

    def step(self) -> bool:
        """One event; False if there is none left."""
        self.now += self.chance.choice([0.0, 0.3, 5.0])
        busy = [slot for slot, each in sorted(self.executors.items()) if each.order]
        options = [*(("end", slot) for slot in busy), *(("join", slot) for slot in sorted(self.absent))]
        if self.kills and self.executors and self.chance.random() < 0.3:
            self.kill()
            return True
        if not options:
            return False
        what, slot = self.chance.choice(options)
        if what == "join":
            self.join(slot)
        else:
            if self.keep > 1 and self.chance.random() < 0.1:
                self.executors[slot].held.clear()
            self.board.ended(slot, self.executors[slot].work(), self.now)
            self.turn()
        return True

    def run(self) -> None:
        while not self.board.finished:
            assert self.step(), "the pool waits forever"
        self.drain()

    def drain(self) -> None:
        """Let executors end what they do: the board owes nothing then."""
        while self.step():
            pass
        assert not any(slot.owed or slot.sent or slot.queue for slot in self.board.slots.values())


def check(training: Training) -> None:
    assert training.state is State.DONE, training.why
    assert training.snapshot is not None
    expected = alone(training.name)
    assert training.snapshot.losses == expected.losses
    assert training.snapshot.state.same(expected.state)


WAYS = [(False, 1), (True, 1), (False, 2), (False, 9)]
"""A new process for each training or not, and how many snapshots an executor keeps."""
POLICIES = st.sampled_from(round_policy_names())
FLEETS = st.lists(st.integers(1, 4), min_size=1, max_size=2).map(
    lambda counts: Fleet.of({f"t{kind}": number for kind, number in enumerate(counts)})
)


def new_board(
    policy: str, fleet: Fleet, renew: bool = False, record: Record = lambda decision: None, keep: int = 1
) -> Board:
    made = make_round_policy(policy, fleet=fleet, jobs=())
    return Board(made, fleet, clairvoyant(policy), renew, record, held=keep, ahead=keep > 1)


@given(POLICIES, FLEETS, st.integers(0, 4), st.sampled_from(WAYS), st.integers(0, 1 << 32))
def test_the_result_is_equal_to_the_bit(
    policy: str, fleet: Fleet, kills: int, way: tuple[bool, int], seed: int
) -> None:
    board = new_board(policy, fleet, way[0], keep=way[1])
    for name in SIZES:
        board.add(name)
    play = Play(board, random.Random(seed), kills, way[1])
    play.start(len(fleet.kind))
    play.run()
    for training in board.trainings.values():
        check(training)


@given(POLICIES, FLEETS, st.integers(0, 4), st.sampled_from(WAYS), st.integers(0, 1 << 32), st.integers(0, 40))
def test_the_simulator_decides_as_the_pool_did(
    policy: str, fleet: Fleet, kills: int, way: tuple[bool, int], seed: int, failing: int
) -> None:
    """Whatever dies meanwhile, and whichever training fails. Through the lines of a record."""
    lines: list[str] = []
    board = new_board(policy, fleet, way[0], lambda decision: lines.append(json.dumps(document(decision))), way[1])
    for name in SIZES:
        board.add(name, kin="a" if name in "ab" else "c")
    play = Play(board, random.Random(seed), kills, way[1])
    play.start(len(fleet.kind))
    while not board.finished:
        failing -= 1
        busy = next((slot for slot, each in play.executors.items() if each.order), None)
        if not failing and busy is not None:
            play.executors[busy].fail()
            board.ended(busy, Failed("its own code"), play.now)
            play.turn()
        assert board.finished or play.step(), "the pool waits forever"
    decisions = [parse_decision(json.loads(line)) for line in lines]
    assert replay_rounds(make_round_policy(policy, fleet=fleet, jobs=()), fleet, decisions) is None
    for number, wrong in enumerate(decisions):
        if wrong.assigned:
            other = [*decisions[:number], replace(wrong, assigned=()), *decisions[number + 1 :]]
            found = replay_rounds(make_round_policy(policy, fleet=fleet, jobs=()), fleet, other)
            assert found == Difference(wrong.time, (), wrong.assigned)
            break


@given(POLICIES, FLEETS, st.integers(0, 1 << 32))
def test_a_pool_whose_slots_do_not_all_come_ends_nevertheless(policy: str, fleet: Fleet, seed: int) -> None:
    board = new_board(policy, fleet)
    for name in SIZES:
        board.add(name)
    play = Play(board, random.Random(seed), 0)
    play.start(1)
    play.run()
    for training in board.trainings.values():
        check(training)


@given(st.integers(1, 4), st.integers(1, 60), st.integers(0, 1 << 32))
def test_a_pool_that_ends_at_any_moment_continues_from_its_snapshots(slots: int, events: int, seed: int) -> None:
    fleet = Fleet.of({"slot": slots + 1})
    first = new_board("arrival", fleet)
    for name in SIZES:
        first.add(name)
    play = Play(first, random.Random(seed), 0)
    play.start(slots)
    while events and play.step():
        events -= 1
    again = new_board("arrival", fleet)
    for training in first.trainings.values():
        kept = training.snapshot
        ended = training.state is State.DONE
        again.add(training.name, Checkpoint(kept, training.tasks, training.rounds, ended) if kept else None)
    play = Play(again, random.Random(seed + 1), 1)
    play.start(slots + 1)
    play.run()
    for training in again.trainings.values():
        check(training)


@given(POLICIES, FLEETS, st.integers(0, 3), st.integers(0, 1 << 32), st.integers(0, 12))
def test_a_training_that_fails_at_any_moment_ends_alone(
    policy: str, fleet: Fleet, kills: int, seed: int, failing: int
) -> None:
    board = new_board(policy, fleet)
    for name in SIZES:
        board.add(name)
    play = Play(board, random.Random(seed), kills)
    play.start(len(fleet.kind))
    ends = 0
    while not board.finished:
        slot = next((s for s, each in play.executors.items() if each.order and each.order.work.training == "a"), None)
        if slot is not None and ends == failing:
            play.executors[slot].fail()
            board.ended(slot, Failed("its own code"), play.now)
            play.turn()
        ends += slot is not None
        assert board.finished or play.step(), "the pool waits forever"
    play.drain()
    for name in "bcd":
        check(board.trainings[name])
    assert board.trainings["a"].state is (State.FAILED if board.trainings["a"].why else State.DONE)


@given(st.permutations(range(6)), st.integers(0, 99))
def test_gradients_add_up_in_the_order_of_tasks(order: list[int], seed: int) -> None:
    gradients = [np.random.default_rng((seed, task)).normal(size=50).astype(np.float32) for task in range(6)]
    found = RoundSum(6)
    for task in order:
        found.add(task, Packed.of({"w": gradients[task]}), float(task))
        found.add(task, Packed.of({"w": gradients[task] * 2}), 99.0)  # a second answer is ignored
    expected = gradients[0].copy()
    for gradient in gradients[1:]:
        expected += gradient
    assert found.mean().arrays()["w"].tobytes() == (expected / np.float32(6)).tobytes()
    assert found.mean_loss == 2.5


def test_the_order_matters_so_the_tests_above_can_fail() -> None:
    gradients = [np.random.default_rng(task).normal(size=50).astype(np.float32) for task in range(6)]
    assert sum(gradients[1:], gradients[0]).tobytes() != sum(gradients[-2::-1], gradients[-1]).tobytes()


def test_an_incomplete_round_has_no_mean() -> None:
    with pytest.raises(ValueError, match="1 tasks of the round are missing"):
        RoundSum(1).mean()
