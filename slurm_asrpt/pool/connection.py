"""The driver's end of a connection to an executor."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from slurm_asrpt.pool import wire
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.wire import DRIVER, EXECUTOR, GREETING, NONCE_BYTES, PROOF_BYTES, WireError

MAX_SLOTS = 1 << 20


class Connection:
    """An executor that has proved to know the key. slot: the one that it is of."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.slot = -1
        # asyncio does so only for sockets that were created with the protocol's number; without it, each message waits
        # for the acknowledgement of the one before, which comes 40 ms late
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def greet(self, key: bytes) -> None:
        """Prove the key to each other, and learn the slot. Raises WireError, EOFError, OSError."""
        ours = wire.new_nonce()
        self._writer.write(GREETING + ours)
        theirs = await self._reader.readexactly(NONCE_BYTES)
        wire.check_proof(await self._reader.readexactly(PROOF_BYTES), key, EXECUTOR, ours, theirs)
        self._writer.write(wire.proof(key, DRIVER, ours, theirs))
        told, _ = await self.receive()
        slot = told.get("slot")
        if type(slot) is not int or not 0 <= slot < MAX_SLOTS:
            raise WireError("no number of a slot")
        self.slot = slot

    def send(self, header: Mapping[str, Any], *parts: Packed) -> None:
        """Send as soon as the other side takes it."""
        for piece in wire.frame(header, *parts):
            self._writer.write(piece)

    async def receive(self) -> tuple[dict[str, Any], list[Packed]]:
        """The next message. Raises WireError, EOFError, OSError."""
        head, size = wire.sizes(await self._reader.readexactly(wire.PREFIX_BYTES))
        told = await self._reader.readexactly(head)
        block = np.frombuffer(await self._reader.readexactly(size), np.uint8)
        return wire.parse(told, block)

    def close(self) -> None:
        self._writer.close()
