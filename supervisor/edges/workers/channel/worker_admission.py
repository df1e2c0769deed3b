"""May this peer speak for that rank? Open cycles, their secrets, and the pids that were started for them."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import HangLimits
from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.workers.channel.progress_page_reader import CLOCK_TOLERANCE_NS
from supervisor.edges.workers.channel.worker_frames import PROTOCOL, Hello


class OpenCycle(msgspec.Struct):
    job_id: str
    cycle: int
    token: bytes
    spec: JobSpec
    limits: HangLimits
    first_rank: int
    pids: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # local rank -> the worker's pid
    speaking: dict[int, int] = msgspec.field(
        default_factory=dict[int, int]
    )  # local rank -> pid of its connected client
    unknown: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # local rank -> pid that shows the token


class Admitted(msgspec.Struct, frozen=True):
    cycle: OpenCycle


class Refusal(msgspec.Struct, frozen=True):
    reason: str
    retry: bool


class NotYet(msgspec.Struct, frozen=True):
    """The worker with this pid may be about to be announced. `reason` holds if it is not."""

    reason: str


Answer = Admitted | Refusal | NotYet


class WorkerCycles:
    """All open cycles of all jobs."""

    def __init__(self, *, descends_from: Callable[[int, int], bool] = process_table.descends_from) -> None:
        self._open: dict[str, dict[int, OpenCycle]] = {}
        self._descends_from = descends_from
        self._changed = anyio.Event()
        self._unknown_came = anyio.Event()

    def open(self, cycle: OpenCycle) -> None:
        self._open.setdefault(cycle.job_id, {})[cycle.cycle] = cycle
        self._tell()

    def close(self, job_id: str, cycle: int) -> OpenCycle | None:
        cycles = self._open.get(job_id, {})
        closed = cycles.pop(cycle, None)
        if not cycles:
            self._open.pop(job_id, None)
        self._tell()
        return closed

    def get(self, job_id: str, cycle: int) -> OpenCycle | None:
        return self._open.get(job_id, {}).get(cycle)

    def expect(self, job_id: str, cycle: int, local_rank: int, pid: int) -> None:
        found = self.get(job_id, cycle)
        if found is not None:
            found.pids[local_rank] = pid
            self._tell()

    async def next_unknown(self, job_id: str) -> tuple[int, int]:
        """Waits for an unknown process with the token of an open cycle; returns its local rank and pid.

        If another launcher has started it, the caller may expect it.
        """
        while True:
            for cycle in self._open.get(job_id, {}).values():
                if cycle.unknown:
                    return cycle.unknown.popitem()
            self._unknown_came = anyio.Event()
            await self._unknown_came.wait()

    async def changed(self) -> None:
        """Waits for the next open, expect or close."""
        await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def answer(self, hello: Hello, peer: Peer) -> Answer:
        """Returns what to do with a hello now. Decides nothing about its connection."""
        if hello.protocol != PROTOCOL:
            reason = f"it speaks protocol {hello.protocol}, this supervisor {PROTOCOL}"
            return Refusal(f"cannot serve this client: {reason}; install the same holdfast on both sides", retry=False)
        cycles = self._open.get(hello.job_id, {})
        cycle = cycles.get(hello.cycle)
        if cycle is None:
            over = bool(cycles) and hello.cycle < max(cycles)
            why = "that cycle is over" if over else "this supervisor does not run it now"
            return Refusal(f"cannot serve cycle {hello.cycle} of job {hello.job_id[:64]!r}: {why}", retry=not over)
        import hmac  # Late: it loads OpenSSL, and the first workers would wait for it.

        if not hmac.compare_digest(hello.token, cycle.token):
            return Refusal("cannot serve this client: its token is not this cycle's", retry=False)
        local_rank = hello.local_rank
        if local_rank >= cycle.spec.local_world_size or hello.rank != cycle.first_rank + local_rank:
            return Refusal(f"cannot serve rank {hello.rank}: it is not local rank {local_rank} here", retry=False)
        return self._answer_pid(cycle, local_rank, peer)

    def _answer_pid(self, cycle: OpenCycle, local_rank: int, peer: Peer) -> Answer:
        if peer.foreign:
            return Admitted(cycle)  # its ids are of another namespace: the token decides
        pid = cycle.pids.get(local_rank)
        if pid is None:
            cycle.unknown.setdefault(local_rank, peer.pid)
            self._unknown_came.set()
            return NotYet(f"cannot serve local rank {local_rank}: no worker was started for it")
        if peer.pid == pid:
            return Admitted(cycle)
        # A worker may be a shell or a container tool that runs the script as its child. But a child of the process
        # that speaks for the rank, such as a data loader or an evaluation, must not replace it.
        speaking = cycle.speaking.get(local_rank)
        if speaking is not None and speaking != peer.pid and self._descends_from(peer.pid, speaking):
            why = f"pid {speaking} speaks for it, not its child {peer.pid}"
            return NotYet(f"cannot serve local rank {local_rank}: {why}")
        if self._descends_from(peer.pid, pid):
            return Admitted(cycle)
        return NotYet(f"cannot serve local rank {local_rank}: its worker is pid {pid}, not {peer.pid}")


def is_one_clock(sent_ns: int, received_ns: int, peer: Peer) -> bool:
    """Returns whether the rank's stamps are on our clock. If we hung, its hello may have waited long."""
    if abs(sent_ns - received_ns) <= CLOCK_TOLERANCE_NS:
        return True
    theirs = process_table.namespace(peer.pid, "time") if not peer.foreign else None
    return sent_ns < received_ns and theirs is not None and theirs == process_table.namespace(os.getpid(), "time")
