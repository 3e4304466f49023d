"""Messages between driver and executors: only arrays and JSON, and only with the pool's key."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.pool.arrays import ALIGNMENT, Packed
from slurm_asrpt.pool.connection import Connection
from slurm_asrpt.pool.wire import DRIVER, EXECUTOR, GREETING, Channel, WireError, frame, parse, proof, sizes

KEY, OTHER = b"k" * 32, b"o" * 32
STATE = Packed.of({"w": np.arange(5, dtype=np.float32), "n": np.array(3), "none": np.zeros((0, 4))})
MEAN = Packed.of({"w": np.ones((3, 2), np.float64)})


def sent(header: dict[str, Any], *parts: Packed) -> tuple[bytes, bytes, bytes]:
    """A message as prefix, header and block."""
    whole = b"".join(bytes(piece) for piece in frame(header, *parts))
    head, block = sizes(whole[:12])
    assert len(whole) == 12 + head + block
    return whole[:12], whole[12 : 12 + head], whole[12 + head :]


def block_of(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(data), np.uint8)


def test_a_message_comes_out_as_it_went_in() -> None:
    _, head, block = sent({"do": "step", "loss": float("inf")}, STATE, MEAN)
    header, parts = parse(head, block_of(block))
    assert header == {"do": "step", "loss": float("inf")}
    assert [one.same(two) for one, two in zip(parts, (STATE, MEAN), strict=True)] == [True, True]


def test_arrays_are_aligned_and_read_only() -> None:
    for array in STATE.arrays().values():
        assert array.ctypes.data % ALIGNMENT == 0
        assert not array.flags.writeable


@pytest.mark.parametrize(
    "told",
    [
        [["w", "O", [2]]],
        [["w", "<f4", [-1]]],
        [["w", "<f4", [1 << 60]]],
        [["w", "<f4", ["2"]]],
        [["w", "no such type", [2]]],
        [["w", [["a", "<f4"]], [2]]],
        [["w", "<f4,<f4", [2]]],
        [["w", "<f4"]],
        [[1, "<f4", [2]]],
        {"w": 1},
        7,
    ],
)
def test_descriptions_that_are_none_are_refused(told: Any) -> None:
    with pytest.raises(WireError):
        parse(json.dumps({"arrays": [told]}).encode(), block_of(b"12345678"))


def test_objects_are_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="dtype object"):
        Packed.of({"w": np.array([{}])})
    with pytest.raises(WireError):
        parse(pickle.dumps({"arrays": []}), block_of(b""))


@given(st.binary(max_size=200), st.binary(max_size=80))
def test_noise_is_refused(head: bytes, block: bytes) -> None:
    with pytest.raises(WireError):
        parse(head, block_of(block))


def test_a_header_that_is_too_long_is_refused() -> None:
    with pytest.raises(WireError):
        sizes(struct.pack(">IQ", 1 << 31, 0))


# The key


def test_messages_do_not_wait_for_acknowledgements_of_others() -> None:
    """Nagle's algorithm and late acknowledgements would cost 40 ms for each piece of work."""

    async def meet() -> bool:
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            Connection(reader, writer)
            link = writer.get_extra_info("socket")
            found.set_result(bool(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        listening = socket.create_server(("127.0.0.1", 0))
        async with await asyncio.start_server(accept, sock=listening):
            with socket.create_connection(listening.getsockname()):
                return await found

    assert asyncio.run(meet())


def met(client: Callable[[int], None], key: bytes = KEY) -> tuple[int | str, list[BaseException]]:
    """A driver meets a client. Returns the slot or the driver's error, and the client's errors."""
    errors: list[BaseException] = []

    def call(port: int) -> None:
        try:
            client(port)
        except (OSError, EOFError, WireError) as error:
            errors.append(error)

    async def serve() -> int | str:
        found: asyncio.Future[int | str] = asyncio.get_running_loop().create_future()

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = Connection(reader, writer)
            try:
                await connection.greet(key)
                found.set_result(connection.slot)
            except (WireError, EOFError, OSError) as error:
                found.set_result(f"{type(error).__name__}: {error}")
            connection.close()

        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        thread = threading.Thread(target=call, args=(server.sockets[0].getsockname()[1],))
        thread.start()
        answer = await found
        server.close()
        await asyncio.to_thread(thread.join)
        return answer

    return asyncio.run(serve()), errors


def greets(key: bytes, hello: dict[str, Any]) -> Callable[[int], None]:
    def call(port: int) -> None:
        channel = Channel.open("127.0.0.1", port, key)
        channel.send(hello)
        channel.close()

    return call


def test_an_executor_with_the_key_is_let_in() -> None:
    assert met(greets(KEY, {"slot": 3})) == (3, [])


@pytest.mark.parametrize("slot", [-1, "3", None, True, 1 << 40])
def test_a_slot_is_a_number(slot: Any) -> None:
    assert met(greets(KEY, {"slot": slot}))[0] == "WireError: no number of a slot"


def test_an_executor_without_the_key_is_refused_and_does_not_trust_the_driver() -> None:
    answer, errors = met(greets(OTHER, {"slot": 3}))
    assert answer == "WireError: the executor does not know the pool's key"
    assert len(errors) == 1


def test_the_drivers_own_proof_is_no_proof() -> None:
    """A client cannot answer with what it could make another driver say."""

    def reflect(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as link:
            nonce = link.recv(len(GREETING) + 32, socket.MSG_WAITALL)[-32:]
            link.sendall(nonce + proof(KEY, DRIVER, nonce, nonce))
            assert link.recv(32) == b""

    assert met(reflect)[0] == "WireError: the executor does not know the pool's key"


def test_a_proof_is_of_one_connection() -> None:
    old = proof(KEY, EXECUTOR, b"1" * 32, b"2" * 32)

    def replay(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.recv(len(GREETING) + 32, socket.MSG_WAITALL)
            link.sendall(b"2" * 32 + old)

    assert met(replay)[0] == "WireError: the executor does not know the pool's key"


def test_an_executor_refuses_a_driver_without_the_key() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        link, _ = listener.accept()
        with link:
            link.sendall(GREETING + b"1" * 32)
            link.recv(64, socket.MSG_WAITALL)
            link.sendall(b"0" * 32)

    thread = threading.Thread(target=pretend)
    thread.start()
    with listener, pytest.raises(WireError, match="the driver does not know"):
        Channel.open("127.0.0.1", listener.getsockname()[1], KEY)
    thread.join()
