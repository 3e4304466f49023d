"""A switch that passes each packet on after a stated delay, for kernels without tc-netem.

    python -m benchmarks.delayed_switch --delay 0.005 NAMESPACE NAMESPACE ...

In each network namespace it makes the device eth0, a TAP whose packets (up to 64 KiB, with segmentation offload) this
process reads and writes. The devices go away with the process. It prints a line when they are there.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import time
from collections import deque
from pathlib import Path

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
OFFLOAD_HEADER = 10
LONGEST = OFFLOAD_HEADER + (1 << 17)


def open_tap(namespace: str) -> int:
    """Make eth0 in a namespace, in which this process then is. Raises OSError."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return tap


class Switch:
    """Ports are file descriptors of TAPs."""

    def __init__(self, ports: list[int], delay_s: float) -> None:
        self._ports, self._delay_s = ports, delay_s
        self._port_of: dict[bytes, int] = {}
        self._waiting = deque[tuple[float, list[int], bytes]]()
        self._poll = select.epoll()
        for port in ports:
            self._poll.register(port, select.EPOLLIN)

    def turn(self) -> None:
        """Wait for packets, or until one is due, and pass on what is due."""
        due = self._waiting[0][0] if self._waiting else None
        for port, _ in self._poll.poll(None if due is None else max(0.0, due - time.monotonic())):
            self._take(port)
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, ports, packet = self._waiting.popleft()
            for port in ports:
                with contextlib.suppress(OSError):  # the device is not up yet, or its queue is full: dropped
                    os.write(port, packet)

    def _take(self, port: int) -> None:
        packet = os.read(port, LONGEST)
        target, source = (packet[OFFLOAD_HEADER + at : OFFLOAD_HEADER + at + 6] for at in (0, 6))
        self._port_of[source] = port
        known = self._port_of.get(target)
        ports = [other for other in self._ports if other != port] if known is None else [known]
        self._waiting.append((time.monotonic() + self._delay_s, ports, packet))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, required=True, metavar="SECONDS")
    parser.add_argument("namespaces", nargs="+")
    options = parser.parse_args()
    switch = Switch([open_tap(name) for name in options.namespaces], options.delay)
    print("ready", flush=True)
    while True:
        switch.turn()


if __name__ == "__main__":
    main()
