"""Servers on this machine whose NICs have a stated rate: network namespaces, joined by a bridge in one of their own.

Each server has one NIC, ``eth0``, full duplex: a token bucket (tc-tbf) limits what it sends, another at the bridge what
it receives. The loopback of a server can be limited, too. With a delay, a program takes the bridge's
place (benchmarks.delayed_switch) and what a server receives is not limited. Nothing is created outside of these
namespaces, so deleting them removes everything. Needs root, ip and tc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from slurm_asrpt.errors import MachineError

NIC = "eth0"
BURST = "128kb"
"""Above the largest packet of segmentation offload, which tbf would otherwise split at the cost of CPU time."""

CONTROL = "reno"
"""Allowed in every namespace, and without pacing of its own (as bbr has), which would add to each step."""


def why_not() -> str:
    """Why there can be no such network here, or ""."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"missing: {', '.join(missing)} (apt-get install iproute2)" if missing else ""


class Network:
    """Servers 0, 1 ... with unlimited NICs. delay_s: of each packet on its way."""

    def __init__(self, servers: int, stack: ExitStack, delay_s: float = 0.0) -> None:
        self.names = [f"asrpt-{os.getpid()}-{server}" for server in range(servers)]
        for name in self.names:
            _add(name, stack)
        self._switch = "" if delay_s else f"asrpt-{os.getpid()}-switch"
        if delay_s:
            stack.enter_context(_delayed_switch(self.names, delay_s))
        else:
            _add(self._switch, stack)
            _run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
            _run("ip", "-n", self._switch, "link", "set", "br0", "up")
        for server, name in enumerate(self.names):
            self._connect(name, server)

    def _connect(self, name: str, server: int) -> None:
        if self._switch:
            port = _port(server)
            _run("ip", "-n", name, "link", "add", NIC, "type", "veth", "peer", "name", port, "netns", self._switch)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "br0", "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address(server)}/24", "dev", NIC)
        _run("ip", "-n", name, "link", "set", NIC, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run(*self.inside(server), "sysctl", "-q", f"net.ipv4.tcp_congestion_control={CONTROL}")

    @staticmethod
    def address(server: int) -> str:
        return f"10.77.0.{server + 1}"

    def inside(self, server: int) -> list[str]:
        """The words before a command that runs on the server."""
        return ["ip", "netns", "exec", self.names[server]]

    def limit_nics(self, bytes_per_s: float) -> None:
        """The rate of each NIC in each direction, with the headers of packets."""
        for server, name in enumerate(self.names):
            _limit(name, NIC, bytes_per_s)
            if self._switch:
                _limit(self._switch, _port(server), bytes_per_s)

    def limit_loopback(self, server: int, bytes_per_s: float) -> None:
        """The rate of all transfers inside a server together."""
        _limit(self.names[server], "lo", bytes_per_s)


@contextmanager
def network(servers: int, delay_s: float = 0.0) -> Iterator[Network]:
    """A network that ends with the block, also on an exception. Raises MachineError where it cannot be had."""
    if reason := why_not():
        raise MachineError(reason)
    with ExitStack() as stack:
        yield Network(servers, stack, delay_s)


@contextmanager
def _delayed_switch(names: list[str], delay_s: float) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.delayed_switch", "--delay", str(delay_s), *names]
    switch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert switch.stdout is not None
        if not switch.stdout.readline():
            raise MachineError("the delayed switch did not start")
        yield
    finally:
        switch.kill()
        switch.wait()


def _port(server: int) -> str:
    """The end of a server's NIC at the bridge."""
    return f"port{server}"


def _add(namespace: str, stack: ExitStack) -> None:
    _run("ip", "netns", "add", namespace)
    stack.callback(_run, "ip", "netns", "delete", namespace)


def _limit(namespace: str, device: str, bytes_per_s: float) -> None:
    bits = f"{8 * bytes_per_s:.0f}bit"
    queue = ["burst", BURST, "latency", "400ms"]
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", bits, *queue)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise MachineError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
