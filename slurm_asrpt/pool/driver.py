"""The driver of a pool: connects the board with the executors, the pool's directory and the Slurm job.

One thread runs it all (asyncio), so that the board sees one event after the other; only checkpoints are written by
others, from snapshots that never change.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from slurm_asrpt.core.rounds.feed import Decision
from slurm_asrpt.core.rounds.jobs import Fleet
from slurm_asrpt.core.rounds.policies import clairvoyant, make_round_policy
from slurm_asrpt.errors import AsrptError, InputError, one_line
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.board import (
    Began,
    Board,
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
from slurm_asrpt.pool.connection import Connection
from slurm_asrpt.pool.decisions import DecisionLog, RecordedRun
from slurm_asrpt.pool.ending import Ending
from slurm_asrpt.pool.executor import LOG, NEXT, RENEWAL
from slurm_asrpt.pool.folder import PoolFolder
from slurm_asrpt.pool.keeper import ADDRESS, KEY
from slurm_asrpt.pool.memory import MB, slurm_bytes
from slurm_asrpt.pool.snapshot import Checkpoint, Snapshot
from slurm_asrpt.pool.status import PoolStatus, progress_of, trainings_status
from slurm_asrpt.pool.sweep import PoolSettings, Spec
from slurm_asrpt.pool.training import AHEAD, WARM
from slurm_asrpt.pool.wire import KEY_BYTES, WireError
from slurm_asrpt.progress import Reporter

GREET_S = 10.0
RENEWAL_S = 60.0
"""How long a slot's new process may take to join before its work goes elsewhere."""
TICK_S = 0.25
STATUS_S = 1.0
END_S = 3.0
"""How long executors may take to see that the driver is gone, and then to end when told to."""

Keepers = Sequence[tuple[list[str], Mapping[str, str]]]
"""Commands that start keepers, and what their environment has in addition."""


SIGNALS = {signal.SIGTERM: Ending.TERMINATED, signal.SIGHUP: Ending.TERMINATED, signal.SIGINT: Ending.INTERRUPTED}
CHECKPOINT_SIGNAL = signal.SIGUSR1
"""Asks for a checkpoint, as --comment=asrpt:interrupt=B:USR1 does; the pool goes on until it is requeued."""


@dataclass(frozen=True)
class Plan:
    """What a driver gets. host: where it listens, "" for all addresses. ends_s: when to stop, None for never.

    slots: None for one of each keeper, all alike.
    """

    settings: PoolSettings
    trainings: Sequence[Spec]
    code: str
    folder: PoolFolder
    keepers: Keepers
    host: str = "127.0.0.1"
    ends_s: float | None = None
    job_id: str = ""
    slots: Fleet | None = None

    @property
    def fleet(self) -> Fleet:
        return self.slots or Fleet(("slot",), (0,) * len(self.keepers))


class Driver:
    """Runs a pool once. tell: gets a line about each training that ends."""

    def __init__(self, plan: Plan, tell: Callable[[str], None] = lambda line: None) -> None:
        self._plan, self._tell, self._folder = plan, tell, plan.folder
        self.board = self._board(plan.settings, plan.fleet)
        self._log: DecisionLog | None = None
        self._specs: dict[str, Spec] = {}
        self._seen: set[str] = set()
        self._connections: dict[int, Connection] = {}
        self._joined: dict[int, float] = {}
        self._saved: dict[str, tuple[int, bool]] = {}
        self._save_after: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._told: set[str] = set()
        self._work_s, self._started, self._over_s, self._note = 0.0, time.time(), 0.0, ""
        self._began = time.monotonic()
        self._key = secrets.token_bytes(KEY_BYTES)
        self._reporter = Reporter(os.environ)
        self._checkpoint_asked = False

    def _board(self, settings: PoolSettings, fleet: Fleet) -> Board:
        policy = make_round_policy(settings.policy, fleet=fleet, jobs=())
        ahead = settings.switch == AHEAD
        return Board(
            policy,
            fleet,
            sizes=clairvoyant(settings.policy),
            renew=settings.switch == "process",
            record=self._keep,
            held=settings.keep if ahead else 1,
            ahead=ahead,
        )

    def _keep(self, decision: Decision) -> None:
        if self._log:
            self._log.add(decision)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Record the policy's decisions, if that is asked for."""
        plan = self._plan
        if plan.settings.record:
            self._log = DecisionLog(
                self._folder.decisions, RecordedRun(plan.settings.policy, plan.fleet, self._started)
            )
        try:
            yield
        finally:
            if self._log:
                self._log.close()

    @property
    def _clock_s(self) -> float:
        """Seconds since the start, for the board."""
        return time.monotonic() - self._began

    async def run(self) -> Ending:
        """Run until every training has ended, or something ends the pool; then all checkpoints are written.

        Raises InputError for trainings that cannot be used, AsrptError for damaged ones, OSError if checkpoints cannot
        be written at the end.
        """
        self._over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._folder.make()
        with ExitStack() as stack:
            stack.enter_context(self._folder.locked())
            stack.enter_context(self._recording())
            self._folder.take_stop()
            self._take_in(self._plan.trainings)
            self._take_in(self._folder.added(self._seen, self._warn))
            stack.enter_context(_Signals(self._end, self._ask_for_checkpoint))
            return await self._run()

    async def _run(self) -> Ending:
        self._reporter.begin_at(progress_of(self.board)[0])
        listening = _listening(self._plan.host)
        server = await asyncio.start_server(self._meet, sock=listening)
        keepers: list[Process] = []
        ending = ""
        try:
            port = listening.getsockname()[1]
            keepers += [await self._start(*keeper, port) for keeper in self._plan.keepers]
            await self._until_over(keepers)
            ending = self._over.result()
            return ending
        finally:
            server.close()
            for connection in self._connections.values():
                connection.close()
            self._announce(self.board.trainings.values())
            try:
                await self._save(everything=True)
            finally:
                await _end_all(keepers)
                await self._publish(ending or "failed")
                self._reporter.flush()  # reports are a second apart

    async def _start(self, command: list[str], more: Mapping[str, str], port: int) -> Process:
        """Start a keeper in a session of its own, so that Ctrl-C reaches only the driver."""
        told = {ADDRESS: f"{self._plan.host}:{port}", KEY: self._key.hex()}
        environment = {**os.environ, **more, **told}
        return await asyncio.create_subprocess_exec(*command, env=environment, stdin=DEVNULL, start_new_session=True)

    async def _until_over(self, keepers: Sequence[Process]) -> None:
        published = 0.0
        while not self._over.done():
            self._look(keepers)
            if time.monotonic() - published >= STATUS_S:
                await self._publish("running")
                published = time.monotonic()
            await self._save_quietly()
            await asyncio.wait([self._over], timeout=TICK_S)

    def _end(self, ending: Ending) -> None:
        if not self._over.done():
            self._over_s = time.time()
            self._over.set_result(ending)

    def _look(self, keepers: Sequence[Process]) -> None:
        """What no executor tells."""
        self._announce(self.board.trainings.values())
        if self.board.finished:
            self._end(Ending.DONE)
        elif self._folder.take_stop():
            self._end(Ending.STOPPED)
        elif self._plan.ends_s is not None and time.time() >= self._plan.ends_s:
            self._end(Ending.LIMIT)
        elif all(keeper.returncode is not None for keeper in keepers):
            self._end(Ending.LOST)
        else:
            self._take_in_quietly(self._folder.added(self._seen, self._warn))

    # Trainings

    def _take_in(self, specs: Iterable[Spec]) -> None:
        """Add trainings to the board. Raises InputError."""
        for spec in specs:
            if spec.name in self._specs:
                raise InputError(f"two trainings are called {spec.name!r}; rename one")
            checkpoint = self._folder.prepare(spec)
            self._specs[spec.name] = spec
            self.board.add(spec.name, checkpoint, spec.uses)
            if checkpoint:
                self._saved[spec.name] = checkpoint.snapshot.rounds, checkpoint.ended
                self._told.update([spec.name] if checkpoint.ended else [])

    def _take_in_quietly(self, specs: Sequence[Spec]) -> None:
        """While the pool runs, trainings that cannot be used are told and left out."""
        for spec in specs:
            try:
                self._take_in([spec])
            except AsrptError as error:
                self._warn(f"{spec.name}: not added: {one_line(error)}")
        if specs:
            self._turn()

    def _warn(self, note: str) -> None:
        if note != self._note:
            self._note = note
            self._tell(note)

    def _announce(self, trainings: Iterable[Training]) -> None:
        """Tell which of these have ended, once each."""
        for training in trainings:
            if training.ended and training.name not in self._told:
                self._told.add(training.name)
                self._ended[training.name] = time.time()
                self._tell(_epitaph(training))

    # Executors

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        connection = Connection(reader, writer)
        try:
            await asyncio.wait_for(connection.greet(self._key), GREET_S)
            await self._serve(connection)
        except WireError as error:
            self._warn(f"a connection was refused: {one_line(error)}")
        except (EOFError, OSError, TimeoutError):
            pass  # the executor has ended, or was none
        except Exception as error:
            if not self._over.done():
                self._over.set_exception(error)
        finally:
            connection.close()
            self._leave(connection)

    async def _serve(self, connection: Connection) -> None:
        slot = connection.slot
        if slot not in self.board.slots:
            raise WireError(f"slot {slot} of a pool of {len(self.board.slots)}")
        if slot in self._connections:
            self._leave(self._connections[slot])
        self._connections[slot] = connection
        self._joined.setdefault(slot, time.time())
        plan = self._plan
        kind = plan.fleet.kind
        neighbors = kind.count(kind[slot])
        memory = plan.settings.slot_memory_mb * MB or slurm_bytes(os.environ, neighbors)
        connection.send(
            {
                "folder": str(self._folder.trainings),
                "code": plan.code,
                "keep": plan.settings.keep,
                "way": WARM if plan.settings.switch == "process" else plan.settings.switch,
                "device_bytes": plan.settings.device_memory_mb * MB,
                "memory": memory,
                "neighbors": neighbors,
            }
        )
        self.board.joined(slot)
        self._turn()
        while True:
            answer, parts = await connection.receive()
            if self._connections.get(slot) is not connection:
                return
            self._work_s += float(answer.get("seconds", 0.0))
            result, work = self._result(slot, answer, parts)
            self.board.ended(slot, result, self._clock_s)
            self._announce([self.board.trainings[work.training]])
            self._turn()

    def _leave(self, connection: Connection) -> None:
        """A connection has ended."""
        if self._connections.get(connection.slot) is connection:
            del self._connections[connection.slot]
            if not self._over.done():  # afterwards, the driver ends them all
                self.board.lost(connection.slot)
                self._turn()

    def _result(self, slot: int, answer: Mapping[str, Any], parts: Sequence[Packed]) -> tuple[Result, Work]:
        """The result in an answer, and the work that it is of. Raises WireError for an answer that is none."""
        work = self.board.slots[slot].busy
        if work is None:
            raise WireError("an answer without a question")
        try:
            return _parse(work, answer, parts), work
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise WireError("an answer that is not valid") from error

    def _turn(self) -> None:
        if self._over.done():
            return
        for command in self.board.turn(self._clock_s):
            connection = self._connections[command.slot]
            if isinstance(command, Renew):
                connection.send({"do": RENEWAL})
                asyncio.get_running_loop().call_later(RENEWAL_S, self._missing, command.slot)
            elif isinstance(command, Next):
                self._announce_next(connection, command)
            else:
                self._order(connection, command)
        if self.board.finished:
            self._end(Ending.DONE)

    def _order(self, connection: Connection, command: Send) -> None:
        work, snapshot = command.work, command.snapshot
        header = {
            "do": work.kind.value,
            **self._specs[work.training].document(),
            "training": work.training,
            "round": work.round,
            "task": work.task,
            "losses": list(snapshot.losses) if snapshot else None,
            "loss": command.loss,
            "sums": command.sums,
            "step": work.steps,
        }
        parts = [snapshot.state if snapshot else None, command.mean]
        connection.send(header, *(part for part in parts if part is not None))

    def _announce_next(self, connection: Connection, command: Next) -> None:
        snapshot = command.snapshot
        told = {"do": NEXT, "training": command.training, "round": command.round}
        if snapshot:
            connection.send({**told, "losses": list(snapshot.losses)}, snapshot.state)
        else:
            connection.send(told)

    def _missing(self, slot: int) -> None:
        self.board.missing(slot)
        self._turn()

    # Checkpoints and the status

    def _ask_for_checkpoint(self) -> None:
        self._checkpoint_asked = True

    async def _save_quietly(self) -> None:
        """While the pool runs, a full disk must not end it: checkpoints are tried again."""
        asked, self._checkpoint_asked = self._checkpoint_asked, False
        try:
            await self._save(everything=asked)
        except OSError as error:
            self._warn(f"checkpoints cannot be written: {one_line(error)}")
        else:
            if asked:
                self._reporter.checkpointed(progress_of(self.board)[0])

    async def _save(self, everything: bool) -> None:
        """Write the checkpoints that are due. Raises OSError."""
        for training in list(self.board.trainings.values()):
            snapshot, done = training.snapshot, training.state is State.DONE
            if snapshot is None or self._saved.get(training.name) == (snapshot.rounds, done):
                continue
            now = time.monotonic()
            due = self._save_after.setdefault(training.name, now + self._plan.settings.checkpoint_s)
            if everything or training.ended or now >= due:
                checkpoint = Checkpoint(snapshot, training.tasks, training.rounds, done)
                await asyncio.to_thread(self._folder.save, training.name, checkpoint)
                self._saved[training.name] = snapshot.rounds, done
                self._save_after[training.name] = time.monotonic() + self._plan.settings.checkpoint_s

    async def _publish(self, state: str) -> None:
        done, total = progress_of(self.board)
        self._reporter.report(done, total)
        with suppress(OSError):  # a full disk; it is told where checkpoints are written
            await asyncio.to_thread(self._folder.write_status, self.status(state).document())

    def status(self, state: str) -> PoolStatus:
        """How far the pool is."""
        board, now = self.board, time.time()
        done, total = progress_of(board)
        return PoolStatus(
            state=state,
            job_id=self._plan.job_id,
            started=self._started,
            written=now,
            slots_live=sum(slot.live for slot in board.slots.values()),
            slots=len(board.slots),
            tasks_done=done,
            tasks_total=total,
            switches=board.switches,
            lost=board.losses,
            work_s=self._work_s,
            slots_s=sum((self._over_s or now) - joined for joined in self._joined.values()),
            note=self._note,
            trainings=trainings_status(board.trainings.values(), self._ended),
        )


def _parse(work: Work, answer: Mapping[str, Any], parts: Sequence[Packed]) -> Result:
    if "failed" in answer:
        return Failed(str(answer["failed"]))
    if answer.get("missing"):
        return Missing()
    if work.kind is Kind.BEGIN:
        return Began(int(answer["tasks"]), int(answer["rounds"]), Snapshot(parts[0]))
    if work.kind is Kind.GRADIENT and not work.steps:
        return Gradient(parts[0], float(answer["loss"]))
    return Stepped(parts[0], bool(answer["stop"]), float(answer["loss"]))


class _Signals:
    """Handlers of signals while the block runs."""

    def __init__(self, end: Callable[[Ending], None], checkpoint: Callable[[], None]) -> None:
        self._end, self._checkpoint = end, checkpoint

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number, ending in SIGNALS.items():
            loop.add_signal_handler(number, self._end, ending)
        loop.add_signal_handler(CHECKPOINT_SIGNAL, self._checkpoint)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (*SIGNALS, CHECKPOINT_SIGNAL):
            loop.remove_signal_handler(number)


def _listening(host: str) -> socket.socket:
    """A socket on a free port of this address; "" for all addresses, of IPv4 and, where there is one, IPv6."""
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, 0))
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)


async def _end_all(keepers: Sequence[Process]) -> None:
    """Wait until the keepers have ended, as they do when their executors have no driver; then end them."""
    waits = {asyncio.ensure_future(keeper.wait()) for keeper in keepers}
    for end in (Process.terminate, Process.kill):
        if waits:
            _, waits = await asyncio.wait(waits, timeout=END_S)
        for keeper in keepers:
            if keeper.returncode is None:
                end(keeper)
    if waits:
        await asyncio.wait(waits)


def _epitaph(training: Training) -> str:
    """A line about a training that has ended."""
    if training.state is State.FAILED:
        return f"{training.name}: failed: {training.why} (see its {LOG})"
    loss = training.snapshot.losses[-1] if training.snapshot and training.snapshot.losses else float("nan")
    return f"{training.name}: done after {training.done} rounds, loss {loss:.6g}"
