"""Nodes without namespaces: plain processes on loopback addresses. The links between them can't be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

from tests.cluster.lab import READY_S
from tests.e2e.launch import processes_with

COOKIE = "HOLDFAST_LOOPBACK_NODE"


class LoopbackNode:
    """A node; see lab.Node."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"127.0.0.{number}"
        self.name = self.address
        self._cookie = uuid.uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, environment: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, env={**environment, COOKIE: self._cookie},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def lose_power(self) -> None:
        """Kills everything at once; unlike a dead machine's, the kernel says goodbye to the other nodes."""
        while pids := processes_with(self._cookie, COOKIE):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for each in self._started:
                with suppress(subprocess.TimeoutExpired):
                    each.wait(READY_S)


@contextmanager
def loopback_nodes(count: int) -> Generator[dict[int, LoopbackNode]]:
    nodes = {number: LoopbackNode(number) for number in range(1, count + 1)}
    try:
        yield nodes
    finally:
        for node in nodes.values():
            node.lose_power()
