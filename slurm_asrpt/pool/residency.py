"""Which trainings have their parameters on a device, and how these get there and make room (Hare, section II-B).

A parameter is *out* until the copy of its value has arrived and somebody needs it: then its tensor is empty. Whatever
used it too early would fail for its shape, and not compute with an old value. Its value is always in host memory, too,
so making room copies nothing.

Parameters that follow each other are copied together, in pieces of some megabytes, as each copy costs the host as much
time as a GPU takes for some megabytes (and takes turns with what the training computes, in one Python process).

With ``Way.layers``, a thread copies the parameters in their order, and each operation of a forward pass waits for those
that it uses (PipeSwitch). With ``Way.ahead``, what comes next is copied while the present training computes: into free
room, else into what trainings leave that were used longest ago, else into what the present backward pass has done with
(early cleaning).
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from slurm_asrpt.pool.arrays import Arrays, joined, padded
from slurm_asrpt.pool.device_copies import Copies, copies_of

State = Arrays
"""The values of a module's parameters by name. Two are the same if they are the same object."""
PIECE = 4 << 20
"""Bytes of parameters that are copied together, if none has more."""


@dataclass(frozen=True)
class Way:
    """How a slot turns to another training. layers: operations wait for their own parameters only.

    ahead: what comes next is copied while the present training computes, and that makes room early.
    """

    layers: bool = False
    ahead: bool = False


@dataclass(frozen=True)
class Piece:
    """Parameters that are copied together. members: their positions. places: the bytes of each within its room."""

    members: range
    places: tuple[slice, ...]

    @property
    def size(self) -> int:
        """Bytes of its room."""
        return int(self.places[-1].stop)


@dataclass(frozen=True)
class Room:
    """Memory of a piece on the device. parts: the tensors of its parameters there."""

    whole: Any
    parts: tuple[Any, ...]


class Resident:
    """The parameters of a module. rooms: memory of their pieces on the device; None where it was given up.

    state: the values that they have or are about to get; None if nobody will ask for these. copied: how many pieces
    are on their way to the device, or there; inside: how many are in. used: the higher, the later. last: mark of the
    last computation with them. error: of a copy that could not be made. order: the higher, the later anything was done
    to them; changed_in: the order in which a computation has changed them. done: pieces that the present computation
    does not need anymore.
    """

    def __init__(self, parameters: Mapping[str, Any], copies: Copies) -> None:
        self.names, self.parameters = list(parameters), list(parameters.values())
        self.pieces = list(_pieces([int(each.numel() * each.element_size()) for each in self.parameters]))
        self._piece_of = [at for at, piece in enumerate(self.pieces) for _ in piece.members]
        self.index = {id(each): at for each, at in zip(self.parameters, self._piece_of, strict=True)}
        self._copies = copies
        self._forms = [(each.shape, each.dtype) for each in self.parameters]
        self._empty = [each.data.new_empty((0,) * max(1, each.dim())) for each in self.parameters]
        self.rooms: list[Room | None] = [self._first_room(piece) for piece in self.pieces]
        self.marks: list[Any] = [None] * len(self.pieces)
        self.state: State | None = None
        self.copied = self.inside = len(self.pieces)
        self.used = 0
        self.order = 0
        self.changed_in = 0
        self.done: list[int] = []
        self._spent = Counter[int]()
        self.last: Any = None
        self.error: BaseException | None = None
        self.gone = False

    @property
    def bytes(self) -> int:
        """On the device."""
        return sum(piece.size for piece, room in zip(self.pieces, self.rooms, strict=True) if room is not None)

    @property
    def missing(self) -> int:
        """Bytes that have no room."""
        return sum(piece.size for piece in self.pieces) - self.bytes

    @property
    def complete(self) -> bool:
        """Whether all parameters are in."""
        return self.inside == len(self.pieces)

    @property
    def on_its_way(self) -> bool:
        return self.copied < len(self.pieces)

    def take_out(self) -> None:
        """Let all parameters be out. Their room stays."""
        for at, room in enumerate(self.rooms):
            if room is not None:
                self._out(at)
        self.copied = self.inside = 0

    def let_in(self, count: int) -> None:
        """Let the first ``count`` pieces be in; computations from now on wait until they have arrived."""
        self._copies.compute_after(self.marks[count - 1])
        for at in range(self.inside, count):
            if room := self.rooms[at]:
                self._in(self.pieces[at], room)
        self.inside = count

    def make_room(self, at: int) -> Room:
        """Have room for a piece. Raises torch.cuda.OutOfMemoryError."""
        room = self.rooms[at]
        if room is None:
            whole = self._copies.room((self.pieces[at].size,), torch.uint8)
            room = self.rooms[at] = self._divided(self.pieces[at], whole)
        return room

    def give_up(self, at: int) -> None:
        """Give up the room of a piece, which is out then."""
        if room := self.rooms[at]:
            self._out(at)
            self._copies.release(room.whole)
            self.rooms[at] = None

    def copy(self, at: int, state: State) -> None:
        """Copy the values of a piece."""
        room = self.make_room(at)
        arrays = [state[self.names[member]] for member in self.pieces[at].members]
        together = joined(arrays)
        copied = (
            [(room.whole[: together.size], together)] if together is not None else zip(room.parts, arrays, strict=True)
        )
        for target, array in copied:
            self.marks[at] = self._copies.copy_in(target, array, self.last)

    def spend(self, parameter: int) -> None:
        """The present computation does not need a parameter anymore."""
        at = self._piece_of[parameter]
        self._spent[at] += 1
        if self._spent[at] == len(self.pieces[at].members):
            self.done.append(at)

    def rest(self) -> None:
        """Nothing computes with the parameters."""
        self._spent.clear()
        self.done.clear()

    def _first_room(self, piece: Piece) -> Room:
        """The room of parameters that are on the device already, somewhere."""
        there = [self.parameters[at].data for at in piece.members]
        if len(there) == 1 and there[0].is_contiguous():
            return Room(there[0].reshape(-1).view(torch.uint8), (there[0],))
        room = self._divided(piece, there[0].new_empty(piece.size, dtype=torch.uint8))
        for part, value in zip(room.parts, there, strict=True):
            part.copy_(value)
        self._in(piece, room)
        return room

    def _divided(self, piece: Piece, whole: Any) -> Room:
        forms = self._forms[piece.members.start : piece.members.stop]
        parts = zip(piece.places, forms, strict=True)
        return Room(whole, tuple(whole[place].view(dtype).view(shape) for place, (shape, dtype) in parts))

    def _in(self, piece: Piece, room: Room) -> None:
        for at, part in zip(piece.members, room.parts, strict=True):
            self.parameters[at].data = part

    def _out(self, at: int) -> None:
        for member in self.pieces[at].members:
            self.parameters[member].data = self._empty[member]


def _pieces(sizes: Sequence[int]) -> Iterator[Piece]:
    """Parameters of these sizes, laid out as in a packed state."""
    first, places, end = 0, list[slice](), 0
    for at, size in enumerate(sizes):
        if places and padded(end) + size > PIECE:
            yield Piece(range(first, at), tuple(places))
            first, places, end = at, [], 0
        begin = padded(end)
        end = begin + size
        places.append(slice(begin, end))
    if places:
        yield Piece(range(first, len(sizes)), tuple(places))


class Residency:
    """The trainings of a process on one device.

    limit: bytes that the parameters of all may have together, except those of the training that computes; None for no
    limit.
    """

    def __init__(self, device: str, way: Way, limit: int | None) -> None:
        self.way, self.copies = way, copies_of(device)
        self._limit = limit
        self._there: weakref.WeakSet[Resident] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._current: Resident | None = None
        self._busy: Resident | None = None
        self._short = False
        self._clock = 0
        self._orders: queue.SimpleQueue[tuple[Resident, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # Trainings come and go

    def settle(self, parameters: Mapping[str, Any]) -> Resident:
        """The parameters of a module, by their names in states, that has just been put on the device."""
        resident = Resident(parameters, self.copies)
        with self._changed:
            self._there.add(resident)
        return resident

    def make_room(self, size: int) -> None:
        """Make room for a module that is about to be put on the device."""
        with self._changed:
            self._shrink(size)

    def leave(self, resident: Resident) -> None:
        """The training is not needed anymore."""
        with self._changed:
            resident.gone = True
            self._evict(resident)
            self._there.discard(resident)

    def only(self, resident: Resident | None) -> bool:
        """Memory is short: let all others leave. Returns whether there were any."""
        with self._changed:
            others = [each for each in self._there if each is not resident and each.bytes]
            for other in others:
                self._evict(other)
            return bool(others)

    # A training computes

    def begin(self, resident: Resident, state: State) -> None:
        """The training computes now, with this state, which is there or on its way from now on."""
        with self._changed:
            self._current = resident
            known = resident.state is state
            for other in list(self._there):
                if other is not resident and other.on_its_way and not (known and other.used > resident.used):
                    self._stop(other)  # else the thread could wait for its room first
            if not known:
                self._stop(resident)
                self._order(resident, state)
            self._touch(resident)
            self._shrink(resident.missing, resident)
            self._changed.notify_all()
        if not self.way.layers:
            if resident.on_its_way:
                self._copy(resident, resident.order)
            self.finish(resident)

    def need(self, resident: Resident, count: int) -> None:
        """Let the first ``count`` pieces be in. Raises torch.cuda.OutOfMemoryError, and errors of the device."""
        if count > resident.inside:
            with self._changed:
                self._changed.wait_for(lambda: resident.copied >= count or resident.error)
                if resident.error:
                    raise resident.error
                resident.let_in(count)

    def finish(self, resident: Resident) -> None:
        """Let all parameters be in."""
        self.need(resident, len(resident.pieces))

    @contextmanager
    def waiting(self, resident: Resident) -> Iterator[bool]:
        """Within this, operations wait for the parameters that they use. Yields whether there is any to wait for."""
        count = len(resident.pieces)
        if resident.copied == count and (not count or self.copies.arrived(resident.marks[-1])):
            self.finish(resident)
        if resident.complete:
            yield False
            return
        with _Waiting(self, resident):
            yield True

    def over(self, resident: Resident) -> None:
        """The training has computed."""
        with self._changed:
            resident.last = self.copies.now()
            resident.rest()
            self._current = None
            self._changed.notify_all()

    def changes(self, resident: Resident) -> None:
        """The training that computes changes its parameters: to values that nobody asks for, unless they are named."""
        with self._changed:
            resident.state, resident.changed_in = None, resident.order

    def holds(self, resident: Resident, state: State) -> None:
        """The parameters have these values since they were changed, unless they had to leave meanwhile."""
        with self._changed:
            if resident.order == resident.changed_in and not resident.missing:
                resident.state = state

    def done_with(self, resident: Resident, parameter: int) -> None:
        """The computation needs a parameter no longer: its room is for what comes next, if there is no other."""
        with self._changed:
            resident.spend(parameter)
            if self._short:
                self._changed.notify_all()

    @property
    def short(self) -> bool:
        """Whether what comes next has no room."""
        return self._short

    # What comes next

    def prefetch(self, resident: Resident, state: State) -> None:
        """The training computes next: copy its state, unless it computes just now."""
        with self._changed:
            if not self.way.ahead or resident.state is state or not self._may_prefetch(resident):
                return
            order = self._stop(resident)
            if resident.order == order and self._may_prefetch(resident):  # nobody else has stopped it meanwhile
                self._touch(resident)
                self._order(resident, state)

    # All that follows is called with the lock

    def _may_prefetch(self, resident: Resident) -> bool:
        return resident is not self._current and not resident.gone

    def _touch(self, resident: Resident) -> None:
        self._clock += 1
        resident.used = self._clock

    def _order(self, resident: Resident, state: State) -> None:
        """Let a state be copied, now that no other one is."""
        resident.take_out()
        resident.state, resident.error = state, None
        if self.way.layers:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="copies", daemon=True)
                self._thread.start()
                atexit.register(self._end, self._thread)
            self._orders.put((resident, resident.order))

    def _stop(self, resident: Resident) -> int:
        """Copy no more of a training's state. Waits for the copy in progress without the lock. Returns its order."""
        resident.order = order = resident.order + 1
        resident.state = None
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._busy is not resident)
        return order

    def _fail(self, resident: Resident, error: Exception) -> None:
        resident.order += 1
        resident.state, resident.error = None, error
        self._changed.notify_all()

    def _evict(self, resident: Resident) -> None:
        self._stop(resident)
        for at in range(len(resident.pieces)):
            resident.give_up(at)

    def _fits(self, size: int) -> bool:
        return self._limit is None or sum(each.bytes for each in self._there) + size <= self._limit

    def _shrink(self, size: int, *keep: Resident | None) -> bool:
        """Let trainings leave until so many bytes are free, first those that were used longest ago."""
        others = sorted((each for each in self._there if each not in keep and each.bytes), key=lambda each: each.used)
        while not self._fits(size) and others:
            self._evict(others.pop(0))
        return self._fits(size)

    def _clean(self, size: int) -> bool:
        """Let parameters leave that the present computation has done with, until so many bytes are free."""
        current = self._current
        while current and current.done and not self._fits(size):
            current.give_up(current.done.pop())
            current.state = None
        return self._fits(size)

    # The thread that copies

    def _serve(self) -> None:
        while ordered := self._orders.get():
            self._copy(*ordered)

    def _end(self, thread: threading.Thread) -> None:
        """With the process: a thread that is still within torch then would abort it."""
        with self._changed:
            for resident in self._there:
                resident.order += 1
            self._changed.notify_all()
        self._orders.put(None)
        thread.join()

    def _copy(self, resident: Resident, order: int) -> None:
        """Copy a state, unless that is stopped."""
        for at in range(len(resident.pieces)):
            with self._changed:
                if not self._room_for(resident, order, at):
                    return
                self._busy, state = resident, resident.state or {}
            failed = None
            try:
                resident.copy(at, state)
            except Exception as error:
                failed = error
            with self._changed:
                self._busy = None
                if resident.order == order and failed:
                    self._fail(resident, failed)
                elif resident.order == order:
                    resident.copied += 1
                self._changed.notify_all()

    def _room_for(self, resident: Resident, order: int, at: int) -> bool:
        """Wait for room for a piece. Returns False if it is not wanted anymore, or there is none."""
        size = 0 if resident.rooms[at] is not None else resident.pieces[at].size
        while resident.order == order:
            wanted = not size or resident is self._current
            if wanted or self._shrink(size, resident, self._current) or self._clean(size):
                try:
                    resident.make_room(at)
                    return True
                except torch.cuda.OutOfMemoryError as error:
                    if resident is self._current:
                        self._fail(resident, error)
                        return False
            self._short = True
            self._changed.wait()
            self._short = False
        return False


class _Waiting(TorchFunctionMode):  # type: ignore[misc]
    """Each call of torch waits for the parameters among its arguments."""

    def __init__(self, residency: Residency, resident: Resident) -> None:
        super().__init__()
        self._residency, self._resident = residency, resident

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._resident.complete:
            self._look((args, kwargs))
        return function(*args, **(kwargs or {}))

    def _look(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            at = self._resident.index.get(id(value))
            if at is not None:
                self._residency.need(self._resident, at + 1)
        elif isinstance(value, (list, tuple)):
            for each in value:
                self._look(each)
        elif isinstance(value, dict):
            self._look(tuple(value.values()))
