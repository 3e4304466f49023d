"""A slot's process: does one piece of work after another, each in the log of its training.

Started by the slot's keeper. Exits with RENEW to be replaced by a new process, and with ENDED when the driver is gone.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import one_line
from slurm_asrpt.pool.arrays import Arrays, Packed
from slurm_asrpt.pool.board import Kind
from slurm_asrpt.pool.keeper import ENDED, RENEW, Address, end_with_parent
from slurm_asrpt.pool.memory import DoesNotFitError, Needs, check_fits, machine_bytes, used_bytes
from slurm_asrpt.pool.snapshot import Snapshot
from slurm_asrpt.pool.synchronization import RoundSum
from slurm_asrpt.pool.training import DeviceLostError, Training, load, stops
from slurm_asrpt.pool.wire import Channel, WireError

RENEWAL = "renew"
LOG = "log"
"""In a training's directory: what its code prints, and the traceback of its error."""

Answer = tuple[dict[str, Any], list[Packed]]


@dataclass(eq=False)
class _Held:
    """A snapshot that stays for the next piece of work. state: its arrays, the same object each time."""

    training: str
    snapshot: Snapshot

    def __post_init__(self) -> None:
        self.state: Arrays = self.snapshot.state.arrays()


class Executor:
    """Does pieces of work.

    folder: of the trainings, with their logs. code: of the user's modules. keep: trainings that stay loaded. memory:
    bytes of the slot.
    """

    def __init__(self, folder: Path, code: Path, keep: int, memory: int) -> None:
        self._folder, self._code, self._keep, self._memory = folder, code, keep, memory
        self._loaded: OrderedDict[str, Training] = OrderedDict()
        self._held: _Held | None = None
        self._sum: tuple[str, int, RoundSum] = "", 0, RoundSum(1)
        self._failed = ""

    def work(self, told: Mapping[str, Any], parts: list[Packed]) -> Answer:
        """Do a piece of work and return the answer: ``failed``, one line, if the training's code raises.

        Raises DeviceLostError.
        """
        began = time.monotonic()
        if told["training"] == self._failed and told["do"] != Kind.BEGIN and told["losses"] is None:
            return {"failed": "what was sent with it has failed", "seconds": 0.0}, []
        try:
            write_into(self._folder / told["training"] / LOG)
            answer, arrays = self._do(told, parts)
        except (DeviceLostError, KeyboardInterrupt):
            raise
        except DoesNotFitError as error:
            print(error)
            self._drop()
            answer, arrays = self._fail(told, str(error))
        except BaseException as error:  # whatever users' code raises, sys.exit included
            traceback.print_exc()
            self._held = None
            answer, arrays = self._fail(told, f"{type(error).__name__}: {one_line(error)}"[:500])
        sys.stdout.flush()
        sys.stderr.flush()
        return {**answer, "seconds": time.monotonic() - began}, arrays

    def _fail(self, told: Mapping[str, Any], why: str) -> Answer:
        self._failed = told["training"]
        return {"failed": why}, []

    def _do(self, told: Mapping[str, Any], parts: list[Packed]) -> Answer:
        if told["do"] == Kind.BEGIN:
            return self._begin(told)
        training = self._training(told)
        if told["losses"] is not None:
            self._held = _Held(told["training"], Snapshot(parts.pop(0), tuple(told["losses"])))
            self._failed = ""
        held, rounds = self._holds(told["training"], told["round"]), told["round"]
        if told["do"] == Kind.STEP:
            return self._step(training, held, parts.pop(0), told["loss"])
        gradient, loss = training.gradient(held.state, rounds, told["task"])
        found = Packed.of(gradient)
        if told["sums"]:
            self._sum_of(told, training.tasks).add(told["task"], found, float(loss))
        if told["step"]:
            total = self._sum_of(told, training.tasks)
            return self._step(training, held, total.mean(), total.mean_loss)
        return {"loss": float(loss)}, [found]

    def _step(self, training: Training, held: _Held, mean: Packed, loss: float) -> Answer:
        state = Packed.of(training.step(held.state, mean.arrays(), held.snapshot.rounds))
        self._held = _Held(held.training, held.snapshot.after(state, loss))
        return {"stop": stops(training, self._held.snapshot.losses), "loss": loss}, [state]

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

        claim = getattr(training, "memory", None)
        if claim:
            claim(check)
        state = training.initial()
        if not claim:
            check(Needs(sum(array.nbytes for array in state.values()), module=False))
        return {"tasks": training.tasks, "rounds": training.rounds}, [Packed.of(state)]

    def _drop(self) -> None:
        """Keep nothing loaded."""
        self._loaded.clear()
        self._held = None
        gc.collect()

    def _holds(self, name: str, rounds: int) -> _Held:
        if self._held is None or (self._held.training, self._held.snapshot.rounds) != (name, rounds):
            raise RuntimeError(
                "a bug in slurm-asrpt, please report it: the driver thinks that this executor has a state"
            )
        return self._held

    def _training(self, told: Mapping[str, Any]) -> Training:
        name = told["training"]
        if name not in self._loaded:
            self._loaded[name] = load(told["uses"], told["with"], self._code)
        self._loaded.move_to_end(name)
        while len(self._loaded) > self._keep:
            self._loaded.popitem(last=False)
        return self._loaded[name]


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
    executor = Executor(Path(told["folder"]), Path(told["code"]), told["keep"], memory)
    while True:
        told, parts = channel.receive()
        if told["do"] == RENEWAL:
            return RENEW
        answer, arrays = executor.work(told, parts)
        channel.send(answer, *arrays)


if __name__ == "__main__":
    sys.exit(main())
