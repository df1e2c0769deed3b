"""What does systemd expect to hear from a service: ready, status, alive, stopping?"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Mapping

from supervisor.ports.edges import Clock
from supervisor.ports.timed_waits import pause

STATUS_BYTES_MAX = 4096


class Notifier:
    """Writes to NOTIFY_SOCKET. Does nothing if nobody listens. Never blocks, never raises."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        path = variables.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte at the start of an abstract address.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_interval_s = _watchdog_interval_s(variables) if self._address else None
        self._socket: socket.socket | None = None

    def ready(self, status: str = "") -> None:
        self._send("READY=1", *_status(status))

    def status(self, text: str) -> None:
        self._send(*_status(text))

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", *_status(status))

    def reloading(self, clock: Clock) -> None:
        """Reports a reload; call `ready` once the new configuration is in use."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(clock.now_s() * 1_000_000)}")

    def store(self, descriptor: int, name: str) -> None:
        """Gives systemd a copy to keep over a restart of the service, if the unit sets FileDescriptorStoreMax=."""
        self._send("FDSTORE=1", f"FDNAME={name}", descriptor=descriptor)

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    async def keep_watchdog(self) -> None:
        """Reports at half of WATCHDOG_USEC that we are alive, as long as this loop turns."""
        interval_s = self.watchdog_interval_s
        while interval_s is not None:
            self.alive()
            await pause(interval_s, why="systemd wants to hear at intervals that this loop turns")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str, descriptor: int | None = None) -> None:
        if not self._address or not lines:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            data = "\n".join(lines).encode(errors="replace")
            if descriptor is None:
                self._socket.sendto(data, self._address)
            else:
                rights = array.array("i", [descriptor])
                self._socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, self._address)
        except OSError:
            return  # systemd is restarting or its socket is full: a lost status harms nobody


def _status(text: str) -> tuple[str, ...]:
    line = " ".join(text.split())
    return (f"STATUS={line[:STATUS_BYTES_MAX]}",) if line else ()


def _watchdog_interval_s(variables: Mapping[str, str]) -> float | None:
    """Returns half of what systemd allows; None if it does not watch this process."""
    try:
        allowed_us = int(variables.get("WATCHDOG_USEC", "0"))
        watched_pid = int(variables.get("WATCHDOG_PID", "0"))
    except ValueError:
        return None
    if allowed_us <= 0 or watched_pid not in (0, os.getpid()):
        return None
    return allowed_us / 2_000_000
