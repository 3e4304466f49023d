"""A slot's process: does one piece of work after another, each in the log of its training.

Started by the slot's keeper. Exits with RENEW to be replaced by a new process, and with ENDED when the driver is gone.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import one_line
from slurm_asrpt.pool.arrays import Allocate, Arrays, Packed, aligned_block
from slurm_asrpt.pool.board import Kind
from slurm_asrpt.pool.keeper import ENDED, RENEW, Address, end_with_parent
from slurm_asrpt.pool.memory import DoesNotFitError, Needs, check_fits, keep_freed, machine_bytes, used_bytes
from slurm_asrpt.pool.snapshot import Snapshot
from slurm_asrpt.pool.synchronization import RoundSum
from slurm_asrpt.pool.training import AHEAD, DeviceLostError, Switching, Training, load, stops
from slurm_asrpt.pool.wire import Channel, WireError

RENEWAL, NEXT = "renew", "next"
"""Messages that are no work: end, so that a new process comes; and a training that may be next."""
OF_MEMORY = 4
"""Snapshots that are kept for later take up to this part of the slot's memory: a quarter."""
LOG = "log"
"""In a training's directory: what its code prints, and the traceback of its error."""

Answer = tuple[dict[str, Any], list[Packed]]


@dataclass(eq=False)
class Held:
    """A snapshot that stays for later pieces of work. state: its arrays, the same object each time."""

    training: str
    snapshot: Snapshot

    def __post_init__(self) -> None:
        self.state: Arrays = self.snapshot.state.arrays()

    @property
    def bytes(self) -> int:
        return self.snapshot.state.block.nbytes


@dataclass(eq=False)
class Piece:
    """A message of the driver: a piece of work, or what will come next. brought: the snapshot that came with it."""

    told: Mapping[str, Any]
    parts: list[Packed]
    brought: Held | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any], parts: list[Packed]) -> Piece:
        if told.get("losses") is None:
            return cls(told, parts)
        return cls(told, parts[1:], Held(told["training"], Snapshot(parts[0], tuple(told["losses"]))))


class Executor:
    """Does pieces of work.

    folder: of the trainings, with their logs. code: of the user's modules. keep: trainings that stay loaded. memory:
    bytes of the slot. switching: to another training.
    """

    def __init__(self, folder: Path, code: Path, keep: int, memory: int, switching: Switching) -> None:
        self._folder, self._code, self._keep, self._memory = folder, code, keep, memory
        self._switching = switching
        self._loaded: OrderedDict[str, Training] = OrderedDict()
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._sum: tuple[str, int, RoundSum] = "", 0, RoundSum(1)
        self._failed = ""
        self._most = 0
        self.allocate: Allocate = aligned_block

    def announce(self, piece: Piece) -> None:
        """A piece has come, while another one may be in work; called from another thread."""
        training = self._loaded.get(piece.told["training"])
        held = piece.brought or self._held.get(piece.told["training"])
        prefetch = getattr(training, "prefetch", None)
        if prefetch and held and held.snapshot.rounds == piece.told["round"]:
            prefetch(held.state)

    def work(self, piece: Piece) -> Answer:
        """Do a piece of work and return the answer: ``failed``, one line, if the training's code raises.

        Raises DeviceLostError.
        """
        began, told = time.monotonic(), piece.told
        if piece.brought:
            self.hold(piece.brought)
        elif told["training"] == self._failed and told["do"] != Kind.BEGIN:
            return {"failed": "what was sent with it has failed", "seconds": 0.0}, []
        elif told["do"] != Kind.BEGIN and not self._holds(told):
            return {"missing": True, "seconds": 0.0}, []
        try:
            write_into(self._folder / told["training"] / LOG)
            answer, arrays = self._do(told, piece.parts)
        except (DeviceLostError, KeyboardInterrupt):
            raise
        except DoesNotFitError as error:
            print(error)
            self._drop()
            answer, arrays = self._fail(told, str(error))
        except BaseException as error:  # whatever users' code raises, sys.exit included
            traceback.print_exc()
            answer, arrays = self._fail(told, f"{type(error).__name__}: {one_line(error)}"[:500])
        sys.stdout.flush()
        sys.stderr.flush()
        return {**answer, "seconds": time.monotonic() - began}, arrays

    def _fail(self, told: Mapping[str, Any], why: str) -> Answer:
        self._failed = told["training"]
        self._held.pop(told["training"], None)
        return {"failed": why}, []

    def hold(self, held: Held) -> None:
        """Keep a snapshot, and those of the trainings before as long as they do not take much memory."""
        if held.training == self._failed:
            self._failed = ""
        self._held[held.training] = held
        self._held.move_to_end(held.training)
        number = self._keep if self._switching.way == AHEAD else 1
        room = min(self._memory // OF_MEMORY, self._memory - self._most)
        while len(self._held) > 1 and (len(self._held) > number or self._kept_bytes > room):
            self._held.popitem(last=False)

    @property
    def _kept_bytes(self) -> int:
        """Of the snapshots beside the last one."""
        return sum(each.bytes for each in list(self._held.values())[:-1])

    def _holds(self, told: Mapping[str, Any]) -> bool:
        """Whether the snapshot of this work is here, last or not."""
        held = self._held.get(told["training"])
        return held is not None and held.snapshot.rounds == told["round"]

    def _do(self, told: Mapping[str, Any], parts: list[Packed]) -> Answer:
        if told["do"] == Kind.BEGIN:
            return self._begin(told)
        training, held, rounds = self._training(told), self._held[told["training"]], told["round"]
        self._held.move_to_end(held.training)
        if told["do"] == Kind.STEP:
            return self._step(training, held, parts.pop(0), told["loss"])
        gradient, loss = training.gradient(held.state, rounds, told["task"])
        found = Packed.of(gradient, self.allocate)
        if told["sums"]:
            self._sum_of(told, training.tasks).add(told["task"], found, float(loss))
        if told["step"]:
            total = self._sum_of(told, training.tasks)
            return self._step(training, held, total.mean(), total.mean_loss)
        return {"loss": float(loss)}, [found]

    def _step(self, training: Training, held: Held, mean: Packed, loss: float) -> Answer:
        state = Packed.of(training.step(held.state, mean.arrays(), held.snapshot.rounds), self.allocate)
        after = Held(held.training, held.snapshot.after(state, loss))
        self.hold(after)
        if hasattr(training, "holds"):
            training.holds(after.state)
        return {"stop": stops(training, after.snapshot.losses), "loss": loss}, [state]

    def _sum_of(self, told: Mapping[str, Any], tasks: int) -> RoundSum:
        """The gradients of a training's round that this process has added; it keeps those of one round.

        Added as the driver does, so that the mean is equal to the bit.
        """
        key = told["training"], told["round"]
        if self._sum[:2] != key:
            self._sum = *key, RoundSum(tasks)
        return self._sum[2]

    def _begin(self, told: Mapping[str, Any]) -> Answer:
        """Begin a training; if it does not fit beside others that are loaded, without these. Raises DoesNotFitError."""
        if self._loaded.keys() - {told["training"]}:
            with suppress(DoesNotFitError):
                return self._begin_here(told)
            self._drop()
        return self._begin_here(told)

    def _begin_here(self, told: Mapping[str, Any]) -> Answer:
        training, used = self._training(told), used_bytes()

        def check(needs: Needs) -> None:
            check_fits(needs, used, self._memory)
            self._most = max(self._most, used - self._kept_bytes + needs.host)

        claim = getattr(training, "memory", None)
        if claim:
            claim(check)
        state = training.initial()
        if not claim:
            check(Needs(sum(array.nbytes for array in state.values()), module=False))
        return {"tasks": training.tasks, "rounds": training.rounds}, [Packed.of(state)]

    def _drop(self) -> None:
        """Keep nothing loaded."""
        while self._loaded:
            self._unload()
        self._held.clear()
        gc.collect()

    def _training(self, told: Mapping[str, Any]) -> Training:
        name = told["training"]
        if name not in self._loaded:
            self._loaded[name] = self._load(told)
        self._loaded.move_to_end(name)
        while len(self._loaded) > self._keep:
            self._unload()
        return self._loaded[name]

    def _load(self, told: Mapping[str, Any]) -> Training:
        training = load(told["uses"], told["with"], self._code)
        if hasattr(training, "adopt"):
            self.allocate = training.adopt(self._switching) or self.allocate
        return training

    def _unload(self) -> None:
        """Let the training go that was used longest ago."""
        _, training = self._loaded.popitem(last=False)
        if hasattr(training, "leave"):
            training.leave()


def write_into(log: Path) -> None:
    """Let this process's output, of libraries and children too, go to a training's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def main() -> int:
    """The process. Returns its exit code."""
    end_with_parent()
    keep_freed()
    address = Address.take(os.environ)
    try:
        channel = Channel.open(address.host, address.port, address.key)
    except (EOFError, OSError, WireError) as error:
        print(f"asrpt-pool: slot {address.slot} cannot reach the driver: {one_line(error)}", file=sys.stderr)
        return ENDED
    try:
        return _serve(channel, address.slot)
    except DeviceLostError:
        traceback.print_exc()
        return RENEW
    except (EOFError, OSError, WireError):
        return ENDED


def _serve(channel: Channel, slot: int) -> int:
    """Work until the driver asks for another process, or is gone: then raises EOFError or OSError."""
    channel.send({"slot": slot})
    told, _ = channel.receive()
    memory = told["memory"] or machine_bytes() // told["neighbors"]
    switching = Switching(told["way"], told["device_bytes"])
    executor = Executor(Path(told["folder"]), Path(told["code"]), told["keep"], memory, switching)
    inbox = _Inbox(channel, executor)
    while True:
        piece = inbox.get()
        if piece.told["do"] == RENEWAL:
            return RENEW
        if piece.told["do"] == NEXT:
            if piece.brought:
                executor.hold(piece.brought)
            continue
        answer, arrays = executor.work(piece)
        channel.send(answer, *arrays)


class _Inbox:
    """Receives messages in a thread, while the executor works, and tells it what has come."""

    def __init__(self, channel: Channel, executor: Executor) -> None:
        self._channel, self._executor = channel, executor
        self._messages: queue.SimpleQueue[Piece | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="inbox", daemon=True).start()

    def _receive(self) -> None:
        try:
            while True:
                piece = Piece.of(*self._channel.receive(self._executor.allocate))
                if piece.told["do"] != RENEWAL:
                    self._executor.announce(piece)
                self._messages.put(piece)
        except Exception as error:
            self._messages.put(error)

    def get(self) -> Piece:
        """The next message. Raises what receiving it raised."""
        found = self._messages.get()
        if isinstance(found, Exception):
            raise found
        return found


if __name__ == "__main__":
    sys.exit(main())
