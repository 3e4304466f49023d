"""Messages between the driver and its executors: a JSON header and the bytes of arrays. Nothing is unpickled.

Before the first message both sides prove that they know the pool's key: each answers the other's random number with an
HMAC over both numbers and its own role, so that an answer can be neither replayed nor sent back.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Mapping
from typing import Any

from slurm_asrpt.pool.arrays import Allocate, Array, Packed, aligned_block, block_size, checked_entries

GREETING = b"asrpt-pool 1\n"
NONCE_BYTES = PROOF_BYTES = KEY_BYTES = 32
DRIVER, EXECUTOR = b"driver", b"executor"
_SIZES = struct.Struct(">IQ")
PREFIX_BYTES = _SIZES.size
MAX_HEADER = 1 << 26
ARRAYS = "arrays"

Header = Mapping[str, Any]


class WireError(Exception):
    """The other side does not know the key, or does not keep to the protocol."""


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(key: bytes, role: bytes, driver_nonce: bytes, executor_nonce: bytes) -> bytes:
    """What shows that ``role`` knows the key."""
    return hmac.digest(key, b"\0".join((GREETING, role)) + driver_nonce + executor_nonce, "sha256")


def check_proof(given: bytes, key: bytes, role: bytes, driver_nonce: bytes, executor_nonce: bytes) -> None:
    """Raises WireError for a wrong proof."""
    if not hmac.compare_digest(given, proof(key, role, driver_nonce, executor_nonce)):
        raise WireError(f"the {role.decode()} does not know the pool's key")


def frame(header: Header, *parts: Packed) -> list[bytes | memoryview]:
    """A message as the pieces to send."""
    told = [[[each.name, each.dtype, list(each.shape)] for each in part.entries] for part in parts]
    head = json.dumps({**header, ARRAYS: told}).encode()
    prefix = _SIZES.pack(len(head), sum(part.block.nbytes for part in parts))
    return [prefix + head, *(part.block.data for part in parts)]


def sizes(prefix: bytes) -> tuple[int, int]:
    """Bytes of the header and of the block that follow a prefix. Raises WireError."""
    head, block = _SIZES.unpack(prefix)
    if head > MAX_HEADER:
        raise WireError(f"a header of {head} bytes")
    return head, block


def parse(head: bytes, block: Array) -> tuple[dict[str, Any], list[Packed]]:
    """The header and the parts of a message. Raises WireError."""
    try:
        header = json.loads(head)
        told = [checked_entries(each) for each in header.pop(ARRAYS)]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise WireError("a header that is not valid") from error
    if sum(map(block_size, told)) != block.nbytes:
        raise WireError("arrays of another size than announced")
    block.flags.writeable = False
    parts, at = [], 0
    for entries in told:
        parts.append(Packed(entries, block[at : at + block_size(entries)]))
        at += parts[-1].block.nbytes
    return header, parts


class Channel:
    """The executor's end of a connection; it blocks."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def open(cls, host: str, port: int, key: bytes, timeout_s: float = 30.0) -> Channel:
        """Connect to the driver. Raises OSError, EOFError, WireError."""
        connection = socket.create_connection((host, port), timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = cls(connection)
            channel._prove(key)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return channel

    def _prove(self, key: bytes) -> None:
        if self._exactly(len(GREETING)).tobytes() != GREETING:
            raise WireError("not the driver of a pool of this version")
        theirs, ours = self._exactly(NONCE_BYTES).tobytes(), new_nonce()
        self._socket.sendall(ours + proof(key, EXECUTOR, theirs, ours))
        check_proof(self._exactly(PROOF_BYTES).tobytes(), key, DRIVER, theirs, ours)

    def send(self, header: Header, *parts: Packed) -> None:
        """Raises OSError."""
        for piece in frame(header, *parts):
            self._socket.sendall(piece)

    def receive(self, allocate: Allocate = aligned_block) -> tuple[dict[str, Any], list[Packed]]:
        """The next message; its arrays are aligned. Raises EOFError, OSError, WireError.

        allocate: makes the block of its arrays.
        """
        head, block = sizes(self._exactly(PREFIX_BYTES).tobytes())
        return parse(self._exactly(head).tobytes(), self._exactly(block, allocate))

    def _exactly(self, size: int, allocate: Allocate = aligned_block) -> Array:
        into = allocate(size)
        view = into.data
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError("the connection was closed")
            view = view[count:]
        return into

    def close(self) -> None:
        self._socket.close()
