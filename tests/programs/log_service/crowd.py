"""Many nodes send lines to one leaf: each with its own relay and connections, all in this process."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup
from holdfast_wire.log_pieces import Piece, Receipt, file_of_cycle

from supervisor.core.log_funnel.log_relay import Relay
from supervisor.edges.machine.logs.log_tier_supervision import LogTier
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.programs.log_service.log_tier_settings import Settings, address_of
from supervisor.programs.log_service.upstream import Upstream
from supervisor.programs.log_service.wakeup import Wakeup

JOB = "crowd"
KEPT_BYTES_MAX = 256 * 1024  # per node
LINE_BYTES = 100


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Node:
    """A node's lines, each kept until its receipt comes."""

    def __init__(self, number: int, address: str, tls: Tls | None, secrets: dict[str, str]) -> None:
        self.number = number
        self.moved = Wakeup()
        self.relay = Relay(bytes_max=KEPT_BYTES_MAX, pieces_max=100_000)
        settings = Settings(tier="sender", job_id=JOB, name=f"node {number}")
        settings = msgspec.structs.replace(settings, **secrets)
        self.upstream = Upstream(
            settings,
            tls,
            self.relay,
            on_receipt=self._on_receipt,
            on_trouble=self.note_trouble,
            on_away=self.moved.wake,
        )
        self.upstream.move(address_of(address))
        self._stream = number + 1
        self._file = file_of_cycle(0)
        self.position = self.written = self.said = 0
        self.has_ended = self.was_connected = False
        self.trouble = ""

    def say(self, count: int) -> None:
        lines = b"".join(
            f"{self.number}: line {self.said + each} ".encode().ljust(LINE_BYTES - 1, b".") + b"\n"
            for each in range(count)
        )
        self.said += count
        self._take(lines, ends=False)

    def end(self) -> None:
        self._take(b"", ends=True)

    async def until_room(self) -> None:
        while self.relay.is_full:
            await self.moved.wait()

    async def until_ended(self) -> None:
        while not self.has_ended:
            await self.moved.wait()

    async def until_connected(self) -> None:
        while not self.was_connected:
            await self.moved.wait()

    async def until_trouble(self, words: str) -> None:
        while words not in self.trouble or not self.trouble:
            await self.moved.wait()

    def note_trouble(self, trouble: str) -> None:
        self.trouble = trouble
        self.was_connected = self.was_connected or not trouble
        self.moved.wake()

    def _take(self, lines: bytes, *, ends: bool) -> None:
        self.relay.take(0, Piece(self._stream, self._file, self.written, self.position, lines, ends))
        self.position += len(lines)
        self.upstream.wake()

    def _on_receipt(self, link: int | None, receipt: Receipt) -> None:
        del link
        self.written = max(self.written, receipt.position)
        self.has_ended = receipt.ended
        self.moved.wake()


class Servers:
    """One leaf and the root, as processes that are replaced when they die."""

    def __init__(self, folder: Path, tasks: TaskGroup, token: bytes, secrets: dict[str, str]) -> None:
        self.folder = folder
        self.log = folder / "train_cycle0.log"
        self.lost: list[str] = []
        leaf_port, root_port = free_ports(2)
        self.address = f"127.0.0.1:{leaf_port}"
        self.root_address = f"127.0.0.1:{root_port}"
        token_file = folder / "token"
        if token:
            token_file.write_bytes(token)
            token_file.chmod(0o600)
        shared = {
            "job_id": JOB,
            "host": "127.0.0.1",
            "graceful_s": 20.0,
            "quiet_s": 0.3,
            "token_file": str(token_file) if token else "",
        }
        shared |= secrets
        prefix: dict[str, object] = {"cycle_prefix": str(folder / "train.log")}
        self.root = self._tier({"tier": "root", "name": "root", "port": root_port, **shared, **prefix}, tasks)
        self.leaf = self._tier(
            {"tier": "leaf", "name": "leaf 0", "port": leaf_port, "queue_chunks": 393_216, **shared}, tasks
        )
        self.leaf.tell(json.dumps({"address": self.root_address}).encode())

    def _tier(self, settings: dict[str, object], tasks: TaskGroup) -> LogTier:
        own_log = str(self.folder / f"{settings['tier']}.own.log")
        line = json.dumps(settings | {"log_path": own_log}).encode()
        tier = LogTier(line, ends_in_s=20.0, on_lost=self.lost.append, on_away=_nothing)
        tasks.start_soon(tier.run)
        return tier

    async def until_ready(self) -> None:
        await self.root.ready.wait()
        await self.leaf.ready.wait()


@asynccontextmanager
async def servers(folder: Path, token: bytes = b"", **secrets: str) -> AsyncGenerator[Servers]:
    """Runs the servers. `secrets`: files for TLS, as in Settings."""
    async with anyio.create_task_group() as tasks:
        made = Servers(folder, tasks, token, secrets)
        await made.until_ready()
        yield made
        made.leaf.finish()
        made.root.finish()


@asynccontextmanager
async def nodes(count: int, address: str, token: bytes = b"", **secrets: str) -> AsyncGenerator[list[Node]]:
    settings = msgspec.structs.replace(Settings(tier="sender", job_id=JOB, name=""), **secrets)
    tls = cluster_tls.from_token(token) if token else settings.tls()
    async with anyio.create_task_group() as tasks:
        made = [Node(number, address, tls, secrets) for number in range(count)]
        for node in made:
            tasks.start_soon(node.upstream.run)
        yield made
        tasks.cancel_scope.cancel()


def memory_bytes(pid: int) -> int:
    """Returns the process's private memory."""
    text = Path("/proc", str(pid), "smaps_rollup").read_text()
    return sum(int(found) for found in re.findall(r"Private_\w+:\s+(\d+) kB", text)) * 1024


def cpu_s(pid: int) -> float:
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def now_s() -> float:
    return time.monotonic()


def faults_in(log: Path, said: dict[int, int]) -> str:
    """Returns what is wrong with a file that should have each node's lines once, in order; "" if nothing."""
    last = dict.fromkeys(said, -1)
    with log.open("rb") as file:
        for line in file:
            found = re.fullmatch(rb"(\d+): line (\d+) \.*\n", line)
            if found is None or len(line) != LINE_BYTES:
                return f"a line is not whole: {line[:80]!r}"
            node, number = int(found[1]), int(found[2])
            if number != last[node] + 1:
                return f"line {number} of node {node} comes after {last[node]}"
            last[node] = number
    missing = {node: (number + 1, said[node]) for node, number in last.items() if number + 1 != said[node]}
    return f"lines are missing: {missing}" if missing else ""


def _nothing() -> None:
    """Does nothing: the next tier's address never changes here."""
