"""How does a rank idle in Python code, wrapped or bare? At the end it reports what it sent meanwhile."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

from recording import RANK, record
from timing import timed

PACE_S = 0.05
BEGIN_S = 1.0  # until the messages of the entry have been sent
idle_s = float(sys.argv[1])
pings = int(sys.argv[2])


class CountingSocket(socket.socket):
    """Counts what is sent; it replaces the class before any socket exists."""

    sent = 0

    def send(self, *args: Any) -> int:  # noqa: ANN401
        CountingSocket.sent += 1
        return super().send(*args)

    def sendall(self, *args: Any) -> None:  # noqa: ANN401
        CountingSocket.sent += 1
        super().sendall(*args)

    def sendmsg(self, *args: Any) -> int:  # noqa: ANN401
        CountingSocket.sent += 1
        return super().sendmsg(*args)


setattr(socket, "socket", CountingSocket)  # noqa: B010  (to a type checker it is a constant)


def messages() -> int:
    """Returns how many messages this process has sent on sockets or written to pipes and files so far."""
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return CountingSocket.sent + int(told["syscw"])


def idle(call: Any) -> None:  # noqa: ANN401  (of two products, or None)
    record("idle")
    time.sleep(BEGIN_S)
    before = messages()
    until_s = time.monotonic() + idle_s
    while time.monotonic() < until_s:
        time.sleep(PACE_S)
    record("idled", messages=messages() - before)
    if call is not None and RANK == 0 and pings:
        took_ns = sorted(timed(call.ping, pings, 0.0))
        record("pinged", p50_ns=took_ns[len(took_ns) // 2], p99_ns=took_ns[len(took_ns) * 99 // 100])
