"""benchmarks.communication: what is predicted, and a network that leaves nothing behind."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks import communication
from benchmarks.communication import (
    MBIT,
    PIPELINES,
    SIZE,
    Cell,
    four_each,
    pipelines,
    predicted,
    rings,
    row,
    with_steps,
)
from benchmarks.delayed_switch import OFFLOAD_HEADER, Switch
from benchmarks.shaped_network import network
from slurm_asrpt.errors import MachineError

CELLS = [*rings([SIZE], 1), *pipelines(), *four_each()]
B = 800 * MBIT


def named(kind: str, processes: int, gpus: int = 1) -> Cell:
    (found,) = (c for c in CELLS if (c.kind, c.processes, c.gpus) == (kind, processes, gpus))
    return found


@pytest.mark.parametrize("k", [2, 4, 8])
def test_one_process_per_server_has_the_whole_nic(k: int) -> None:
    assert predicted(named("allreduce", k), B) == pytest.approx(2 * (k - 1) / k * SIZE / B)


def test_shares_of_the_nic() -> None:
    """(6) with x/g: a full server's ring has the NIC, half of a server has half of it."""
    assert predicted(named("allreduce", 8, 4), B) == pytest.approx(2 * 7 / 8 * SIZE / B)
    assert predicted(named("shared", 4, 4), B) == pytest.approx(2 * 3 / 4 * SIZE / (B / 2))
    assert predicted(named("inside", 4, 4), B) == pytest.approx(2 * 3 / 4 * SIZE / (communication.INTRA * B))


def test_pipelines_send_and_receive() -> None:
    """(5): the first of two stages sends once and receives once, the middle one of three does both twice."""
    assert predicted(named("transfer", 2), B) == pytest.approx(2 * SIZE / B)
    assert predicted(named("chain", 3), B) == predicted(named("streams", 3), B) == pytest.approx(4 * SIZE / B)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.kind}-{cell.processes}-{cell.gpus}")
def test_ranks_are_on_the_servers_that_the_prediction_assumes(cell: Cell) -> None:
    assert len(cell.servers) == cell.processes
    for job in cell.jobs:
        assert tuple(rank // cell.gpus for rank in job) == cell.servers
    ranks = [rank for job in cell.jobs for rank in job]
    assert len(ranks) == len(set(ranks))


def test_a_row_is_the_median_and_small_ones_have_the_time_of_a_step() -> None:
    cell = replace(named("small", 4), size=0)
    found = row(cell, 100, [0.6, 0.3, 0.9])
    assert (found["predicted_s"], found["measured_s"], found["error"]) == (0, 0.6, -1)
    assert found["step_s"] == pytest.approx(0.6 / 6)
    assert "step_s" not in row(named("transfer", 2), 100, [0.6, 0.3, 0.9])
    assert set(PIPELINES) <= {cell.kind for cell in CELLS}
    more = with_steps({"predicted_s": 0.6, "measured_s": 1.2}, named("allreduce", 4), 0.1)
    assert more == {"error_with_steps": pytest.approx(0.0)}


def test_steps_of_the_library_are_a_share_of_its_iterations() -> None:
    slow, fast = communication.library(10_000, 1e-4), communication.library(100_000, 1e-4)
    assert 0 < slow["median"] < slow["most"] < fast["most"]
    assert communication.library(10_000, 2e-4)["most"] == pytest.approx(2 * slow["most"])


def test_one_line_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["communication", "--quick"])
    monkeypatch.setattr("os.geteuid", lambda: 1)
    with pytest.raises(SystemExit, match=r"^communication: needs root"):
        communication.main()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SystemExit, match=r"^communication: missing: ip, tc"):
        communication.main()


def namespaces() -> set[str]:
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in found.splitlines()}


def disciplines(namespace: str, device: str) -> str:
    return subprocess.run(
        ["tc", "-n", namespace, "qdisc", "show", "dev", device], capture_output=True, text=True
    ).stdout


def interrupted(found: list[str]) -> None:
    """A network that ends by Ctrl-C; its names go into ``found``."""
    with network(2) as net:
        net.limit_nics(100 * MBIT)
        net.limit_loopback(1, 400 * MBIT)
        assert "rate 100Mbit" in disciplines(net.names[1], "eth0")
        assert "rate 400Mbit" in disciplines(net.names[1], "lo")
        found.extend(net.names)
        assert set(found) <= namespaces()
        raise KeyboardInterrupt


class Port:
    """What a switch sends through a port."""

    def __init__(self) -> None:
        self.mine, self.switch = socket.socketpair(type=socket.SOCK_DGRAM)

    def received(self) -> bytes:
        self.mine.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return self.mine.recv(1000)
        return b""


def frame(target: str, source: str) -> bytes:
    return bytes(OFFLOAD_HEADER) + target.encode() + source.encode() + b"text"


def test_the_switch_learns_addresses_and_keeps_packets_until_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("benchmarks.delayed_switch.time.monotonic", lambda: clock[0])
    ports = [Port() for _ in range(3)]
    switch = Switch([port.switch.fileno() for port in ports], 0.0)
    asks, answers = frame("bbbbbb", "aaaaaa"), frame("aaaaaa", "bbbbbb")
    ports[0].mine.send(asks)
    switch.turn()
    assert [port.received() for port in ports] == [b"", asks, asks]
    ports[1].mine.send(answers)
    switch.turn()
    assert [port.received() for port in ports] == [answers, b"", b""]
    late = Switch([port.switch.fileno() for port in ports], 0.001)
    ports[0].mine.send(asks)
    late.turn()
    assert ports[1].received() == b""
    clock[0] = 0.002
    late.turn()
    assert ports[1].received() == asks


def test_a_network_has_the_stated_rates_and_leaves_nothing() -> None:
    found = list[str]()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(found)
    except MachineError as error:
        pytest.skip(f"no shaped network here: {error}")
    assert found
    assert not set(found) & namespaces()
