"""The driver's brain: which slot does what next. Events in, commands out; no sockets, no files, no clock.

An executor is never relied on: the board keeps each training's snapshot and the gradients of its round, and gives work
that is lost to the next idle slot. What a slot holds only saves sending the snapshot again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from slurm_asrpt.core.convergence import STOP_SHARE
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import LossLog
from slurm_asrpt.core.rounds.feed import Feed, Record
from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policy import RoundPolicy
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot
from slurm_asrpt.pool.synchronization import RoundSum
from slurm_asrpt.pool.task_times import TaskTimes

MAX_ATTEMPTS = 5
"""A piece of work that has ended so many executors is more likely the cause than the victim."""


class Kind(enum.StrEnum):
    """A piece of work: a training's first state, the gradient of a task, or the optimizer's step after a round."""

    BEGIN = "begin"
    GRADIENT = "gradient"
    STEP = "step"


class State(enum.StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(eq=False)
class Work:
    """One piece of work. home: the slot to which the policy assigned it; None for what policies do not know of.

    steps: where it was sent, the optimizer's step follows without being told.
    """

    kind: Kind
    training: str
    round: int = 0
    task: int = 0
    home: int | None = None
    attempts: int = 0
    steps: bool = False


@dataclass(frozen=True)
class Began:
    """The sizes of a training, and its first snapshot."""

    tasks: int
    rounds: int
    snapshot: Snapshot


@dataclass(frozen=True)
class Gradient:
    gradient: Packed
    loss: float


@dataclass(frozen=True)
class Stepped:
    """The state after a round, and its mean loss. stop: whether the training ends before its last round."""

    state: Packed
    stop: bool
    loss: float


@dataclass(frozen=True)
class Failed:
    """The training's own code failed. why: one line."""

    why: str


@dataclass(frozen=True)
class Missing:
    """The slot has not kept the snapshot of the work, and has not done it."""


Result = Began | Gradient | Stepped | Failed | Missing


@dataclass(frozen=True)
class Send:
    """Send a piece of work. snapshot: unless the slot holds it. mean, loss: of the round, for a step.

    sums: the slot has the gradients of all tasks before this one, and adds this one.
    """

    slot: int
    work: Work
    snapshot: Snapshot | None
    mean: Packed | None = None
    loss: float = 0.0
    sums: bool = False


@dataclass(frozen=True)
class Renew:
    """Let the slot's executor be replaced by a new process. Its work follows when that has joined."""

    slot: int


@dataclass(frozen=True)
class Next:
    """This training may be the slot's next. snapshot: unless the slot holds it."""

    slot: int
    training: str
    round: int
    snapshot: Snapshot | None


Command = Send | Renew | Next


@dataclass(eq=False)
class Training:
    """A training and how far it is.

    kin: trainings of the same kin run for about as many rounds. tasks, rounds: 0 until it has begun. scheduled: tasks
    of its round.
    """

    name: str
    kin: str = ""
    state: State = State.WAITING
    tasks: int = 0
    rounds: int = 0
    snapshot: Snapshot | None = None
    why: str = ""
    sum: RoundSum = field(default_factory=lambda: RoundSum(0))
    progress: Progress | None = None
    losses: LossLog = field(default_factory=lambda: LossLog([], STOP_SHARE))
    scheduled: int = 0

    @property
    def done(self) -> int:
        """Rounds done."""
        return self.snapshot.rounds if self.snapshot else 0

    @property
    def ended(self) -> bool:
        return self.state in (State.DONE, State.FAILED)


@dataclass(eq=False)
class Slot:
    """A slot and its executor.

    live: an executor has joined. renewing: it is being replaced on purpose. idle: the policy has been told so.
    owed: pieces that the policy assigned here and that have not ended. sent: what the executor does, and does next.
    since: when it began that. loaded: the training that it has then. held: snapshots that it has then, by their rounds,
    the last one last. summed: the training and the round of which it has added gradients, and how many, from task 0 on.
    after: by training, which one came next the last time. told: the snapshot that it was told may be next.
    """

    number: int
    live: bool = False
    renewing: bool = False
    idle: bool = False
    owed: int = 0
    sent: deque[Work] = field(default_factory=deque)
    since: float = 0.0
    queue: deque[Work] = field(default_factory=deque)
    loaded: str = ""
    held: dict[str, int] = field(default_factory=dict)
    summed: tuple[str, int, int] = ("", 0, 0)
    after: dict[str, str] = field(default_factory=dict)
    told: tuple[str, int] = ("", 0)

    @property
    def busy(self) -> Work | None:
        """What the executor does."""
        return self.sent[0] if self.sent else None

    def has(self, work: Work) -> tuple[bool, bool]:
        """Whether the executor has the work's snapshot, and whether it works on that training already."""
        return self.held.get(work.training) == work.round, self.loaded == work.training

    def hold(self, training: str, rounds: int, number: int) -> None:
        """The executor has a snapshot, and keeps so many."""
        self.held.pop(training, None)
        self.held[training] = rounds
        while len(self.held) > number:
            del self.held[next(iter(self.held))]


class Board:
    """The trainings and the slots of a pool.

    fleet: the slots; those of a type are alike. sizes: whether the policy is told how many rounds a training may have.
    renew: a new process whenever a slot turns to another training. record: gets the policy's decisions. held: snapshots
    that an executor keeps. ahead: executors are told what may be next.
    tasks_done: in this run. switches: how often a slot turned to another training. losses: executors that were lost.
    """

    def __init__(
        self,
        policy: RoundPolicy,
        fleet: Fleet,
        sizes: bool = False,
        renew: bool = False,
        record: Record = lambda decision: None,
        held: int = 1,
        ahead: bool = False,
    ) -> None:
        self.trainings: dict[str, Training] = {}
        self.slots = {number: Slot(number) for number in range(len(fleet.kind))}
        self.tasks_done = 0
        self.switches = 0
        self.losses = 0
        self._feed, self._fleet, self._sizes, self._renew = Feed(policy, record), fleet, sizes, renew
        self._keep, self._ahead = held, ahead
        self._times = TaskTimes(len(fleet.types))
        self._now = 0.0
        self._lazy = getattr(policy, "in_order_of_arrival", False)
        self._open = 0
        self._errands: deque[Work] = deque()
        self._begins: deque[Work] = deque()

    @property
    def finished(self) -> bool:
        """Whether every training has ended."""
        return not self._open

    # Events

    def add(self, name: str, checkpoint: Checkpoint | None = None, kin: str = "") -> None:
        """A training, from its beginning or from a checkpoint. Raises ValueError for a name that is there."""
        if name in self.trainings:
            raise ValueError(f"there is a training {name!r} already")
        training = self.trainings[name] = Training(name, kin)
        if checkpoint:
            training.tasks, training.rounds = checkpoint.tasks, checkpoint.rounds
            training.snapshot = checkpoint.snapshot
        if checkpoint and checkpoint.ended:
            training.state = State.DONE
        else:
            self._open += 1
            self._begins.append(Work(Kind.BEGIN, name))

    def joined(self, number: int) -> None:
        """A slot has a new executor. Raises KeyError for one that the fleet does not have."""
        slot = self.slots[number]
        slot.live, slot.renewing, slot.loaded, slot.summed, slot.told = True, False, "", ("", 0, 0), ("", 0)
        slot.held.clear()

    def lost(self, number: int) -> None:
        """A slot has lost its executor. What it did runs again elsewhere, unless it is being replaced on purpose."""
        slot = self.slots[number]
        slot.live = False
        if not slot.renewing:
            self.losses += 1
            self._abandon(slot)

    def missing(self, number: int) -> None:
        """The new process of a slot has not come in time."""
        slot = self.slots[number]
        if not slot.live and slot.renewing:
            slot.renewing = False
            self._abandon(slot)

    def ended(self, number: int, result: Result, now: float) -> None:
        """A slot has done its piece of work. Raises ValueError for an answer to another question."""
        self._now = now
        slot = self.slots[number]
        if not slot.sent:
            raise ValueError("an answer without a question")
        work, since, slot.since = slot.sent.popleft(), slot.since, now
        if isinstance(result, Missing) and not self.trainings[work.training].ended:
            self._send_again(slot, work)
            return
        self._settle(work)
        if work.kind is Kind.GRADIENT and isinstance(result, (Gradient, Stepped)):
            self._times.add(work.training, self._fleet.kind[number], now - since)
        training = self.trainings[work.training]
        if isinstance(result, Failed):
            slot.held.pop(work.training, None)
            self._fail(training, result.why)
        elif isinstance(result, Missing):
            slot.held.pop(work.training, None)
        elif isinstance(result, Began) and work.kind is Kind.BEGIN:
            self._begin(training, result)
        elif isinstance(result, Gradient) and work.kind is Kind.GRADIENT:
            self._collect(training, work, result)
        elif isinstance(result, Stepped) and (work.steps or work.kind is Kind.STEP):
            self.tasks_done += work.steps
            self._advance(training, result)
        else:
            raise ValueError("an answer to another question")

    def turn(self, now: float) -> list[Command]:
        """What to do now. To be called after each event.

        Steps and lost tasks come first, as rounds wait for them. Trainings begin before all tasks, so that the policy
        sees them all, unless it takes them in the order of arrival anyway: then, where nothing else is to be done.
        """
        self._now = now
        commands = list(self._hand_out(self._errands))
        if not self._lazy:
            commands += self._hand_out(self._begins)
        while True:
            self._schedule()
            more = [*self._hand_out(self._errands), *self._hand_out_assigned()]
            commands += more
            if not more:
                return [*commands, *self._hand_out(self._begins), *self._guesses()]

    # Trainings

    def _begin(self, training: Training, result: Began) -> None:
        if training.ended:
            return
        training.tasks, training.rounds = result.tasks, result.rounds
        training.snapshot = training.snapshot or result.snapshot
        if training.done >= training.rounds:
            self._close(training, State.DONE)
            return
        training.state = State.RUNNING
        training.losses.losses.extend(training.snapshot.losses)
        training.progress = Progress(self._job(training), training.done)
        self._next_round(training)
        self._feed.arrived(training.progress)

    def _job(self, training: Training) -> RoundJob:
        """The training as policies see it."""
        return RoundJob(
            JobId(training.name),
            self._now,
            training.tasks,
            self._times.of(training.name),
            (0.0,) * len(self._fleet.types),
            training.rounds if self._sizes else None,
            history=training.kin,
            search=training.kin,
            curve=training.losses,
        )

    def _next_round(self, training: Training) -> None:
        training.sum, training.scheduled = RoundSum(training.tasks), 0
        if training.progress:
            training.progress.done, training.progress.left = training.done, training.tasks
            training.progress.job = replace(training.progress.job, compute_s=self._times.of(training.name))

    def _collect(self, training: Training, work: Work, result: Gradient) -> None:
        if training.ended or work.round != training.done:
            return
        try:
            training.sum.add(work.task, result.gradient, result.loss)
        except ValueError as error:
            self._fail(training, str(error))
            return
        self.tasks_done += 1
        if training.sum.complete:
            self._errands.appendleft(Work(Kind.STEP, training.name, work.round))

    def _advance(self, training: Training, result: Stepped) -> None:
        if training.ended or training.snapshot is None or training.progress is None:
            return
        training.snapshot = training.snapshot.after(result.state, result.loss)
        training.losses.losses.append(result.loss)
        last = result.stop or training.done >= training.rounds
        if last:
            self._close(training, State.DONE)
            training.progress.done = training.done
        else:
            self._next_round(training)
        self._feed.ended(training.progress, last, result.loss)

    def _fail(self, training: Training, why: str) -> None:
        """End a training. Policies are told once they have none of its tasks left, as they cannot give up a round."""
        if training.ended:
            return
        training.why = why
        self._close(training, State.FAILED)
        self._forget(training.name)
        if training.progress and not training.progress.left:
            self._feed.ended(training.progress, True, None)

    def _close(self, training: Training, state: State) -> None:
        training.state = state
        self._open -= 1

    def _forget(self, name: str) -> None:
        for queue in (self._errands, self._begins, *(slot.queue for slot in self.slots.values())):
            for work in [each for each in queue if each.training == name]:
                queue.remove(work)
                self._settle(work)

    # Slots

    def _settle(self, work: Work) -> None:
        if work.home is not None:
            self.slots[work.home].owed -= 1

    def _abandon(self, slot: Slot) -> None:
        """Move a slot's work to the errands. What had begun has been tried once more."""
        if slot.sent:
            slot.sent[0].attempts += 1
        for work in (*slot.sent, *slot.queue):
            (self._begins if work.kind is Kind.BEGIN else self._errands).append(work)
        slot.queue.clear()
        slot.sent.clear()

    def _send_again(self, slot: Slot, work: Work) -> None:
        """A slot has not kept what it should have."""
        slot.held.pop(work.training, None)
        slot.summed = "", 0, 0
        work.steps = False
        self._errands.appendleft(work)

    def _guesses(self) -> Iterator[Command]:
        """Tell slots that have no next work what came next the last time, so that they may prepare for it."""
        for slot in self.slots.values() if self._ahead else ():
            if len(slot.sent) != 1 or slot.queue:
                continue
            guess = self.trainings.get(slot.after.get(slot.loaded, ""))
            if guess and guess.state is State.RUNNING and guess.snapshot and slot.told != (guess.name, guess.done):
                slot.told = guess.name, guess.done
                has = slot.held.get(guess.name) == guess.done
                slot.hold(guess.name, guess.done, self._keep)
                yield Next(slot.number, guess.name, guess.done, None if has else guess.snapshot)

    def _ready(self) -> list[Slot]:
        """Slots that can take a piece of work now."""
        return [slot for slot in self.slots.values() if slot.live and not slot.sent]

    def _hand_out(self, errands: deque[Work]) -> Iterator[Command]:
        """Give what policies do not know of to idle slots, each to the one that has most of what it needs."""
        ready = self._ready()
        while ready and errands:
            work = errands.popleft()
            if work.attempts >= MAX_ATTEMPTS:
                self._give_up(work)
                continue
            slot = max(ready, key=lambda each: (each.has(work), -len(each.queue), -each.number))
            ready.remove(slot)
            yield self._give(slot, work)

    def _hand_out_assigned(self) -> Iterator[Command]:
        """Give slots what the policy assigned to them: while they compute a task, the next one, unless errands wait."""
        for slot in self.slots.values():
            if slot.live and slot.queue and (not slot.sent or self._takes_ahead(slot)):
                yield self._give(slot, slot.queue.popleft())

    def _takes_ahead(self, slot: Slot) -> bool:
        alone = len(slot.sent) == 1 and slot.sent[0].kind is Kind.GRADIENT and not self._errands
        return alone and not (self._renew and slot.queue[0].training != slot.loaded)

    def _give_up(self, work: Work) -> None:
        self._settle(work)
        where = f"task {work.task} of round {work.round}" if work.kind is Kind.GRADIENT else f"its {work.kind}"
        self._fail(self.trainings[work.training], f"its process ended {work.attempts} times during {where}")

    def _schedule(self) -> None:
        """Let the policy assign tasks, until it has no idle slots or nothing to run."""
        while True:
            self._free(slot for slot in self.slots.values() if slot.live and not slot.owed and not slot.sent)
            self._free(slot for slot in self.slots.values() if slot.live and self._ends_soon(slot))
            parts = self._feed.decide(self._now)
            if not parts and self._stuck():
                self._free(slot for slot in self.slots.values() if not slot.owed)
                parts = self._feed.decide(self._now)
            for part in parts:
                self._assign(part)
            if not parts:
                return

    def _free(self, slots: Iterable[Slot]) -> None:
        """Tell the policy which of these slots are free, if it does not know yet."""
        for slot in slots:
            if not slot.idle:
                slot.idle = True
                self._feed.freed(slot.number)

    def _ends_soon(self, slot: Slot) -> bool:
        """Whether a slot may get another task while it computes one, so that it need not wait for it.

        Only if the round has tasks for all slots: the last ones go where they begin first.
        """
        if slot.owed != 1 or slot.queue or len(slot.sent) != 1 or slot.sent[0].home != slot.number:
            return False
        progress = self.trainings[slot.sent[0].training].progress
        return progress is not None and progress.left >= sum(each.live for each in self.slots.values())

    def _stuck(self) -> bool:
        """Whether nothing goes on although trainings could: the policy waits for slots that have no executor.

        It may take them for free then. What it assigns there runs elsewhere.
        """
        works = any(slot.sent or slot.queue or slot.renewing for slot in self.slots.values())
        waits = any(each.progress and each.progress.left for each in self.trainings.values() if not each.ended)
        return waits and not (works or self._errands or self._begins)

    def _assign(self, part: Part) -> None:
        training = self.trainings[part.progress.job.id]
        for number, tasks in zip(part.gpus, part.tasks, strict=True):
            slot = self.slots[number]
            slot.idle = False
            for _ in range(0 if training.ended else tasks):
                work = Work(Kind.GRADIENT, training.name, training.done, training.scheduled, number)
                training.scheduled += 1
                slot.owed += 1
                (slot.queue if slot.live or slot.renewing else self._errands).append(work)
        if training.ended and part.last:
            self._feed.ended(part.progress, True, None)

    def _give(self, slot: Slot, work: Work) -> Command:
        turns = slot.loaded not in ("", work.training)
        self.switches += turns
        if turns and self._renew:
            slot.live, slot.renewing = False, True
            slot.queue.appendleft(work)
            return Renew(slot.number)
        return self._send(slot, work)

    def _send(self, slot: Slot, work: Work) -> Send:
        training = self.trainings[work.training]
        has, _ = slot.has(work)
        if not slot.sent:
            slot.since = self._now
        slot.sent.append(work)
        if slot.loaded != work.training:
            slot.after[slot.loaded] = work.training
        slot.loaded = work.training
        if work.kind is Kind.BEGIN:
            slot.held.pop(work.training, None)
        else:
            slot.hold(work.training, work.round + (work.kind is Kind.STEP), self._keep)
        snapshot = None if has or work.kind is Kind.BEGIN else training.snapshot
        if work.kind is Kind.STEP:
            return Send(slot.number, work, snapshot, training.sum.mean(), training.sum.mean_loss)
        sums = work.kind is Kind.GRADIENT and self._sums(slot, work)
        work.steps = sums and slot.summed[2] == training.tasks
        if work.steps:
            slot.hold(work.training, work.round + 1, self._keep)
        return Send(slot.number, work, snapshot, sums=sums)

    @staticmethod
    def _sums(slot: Slot, work: Work) -> bool:
        """Whether the slot has the gradients of all tasks of the round before this one."""
        training, round, number = slot.summed
        before = number if (training, round) == (work.training, work.round) else 0
        slot.summed = work.training, work.round, before + (work.task == before)
        return work.task == before


def tasks_of(trainings: Iterable[Training]) -> tuple[int, int]:
    """Tasks of the ended rounds, and in all. A training of unknown size counts as the mean of the others."""
    all_of_them = list(trainings)
    known = [each for each in all_of_them if each.tasks]
    total = sum((each.done if each.ended else each.rounds) * each.tasks for each in known)
    unknown = sum(not each.ended for each in all_of_them) - sum(not each.ended for each in known)
    return sum(each.done * each.tasks for each in known), total + round(unknown * total / max(1, len(known)))
