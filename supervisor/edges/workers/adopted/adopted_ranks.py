"""How is a job kept if another launcher started its ranks? This replaces a spawner: it starts nothing, it meets them.

A script that uses the in-process Wrapper under plain python, torchrun or srun has a private supervisor, too. Its ranks
connect with a hello; pidfds show their ends. The process that started them reaps them, so their exit codes are not
known here, and it ends them: this one sends only signals that a rank or a person requested.
"""

from __future__ import annotations

import contextlib
import os
import signal as signals
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from holdfast_wire import spawner_link as link

from supervisor.config.job_spec import JobSpec
from supervisor.edges.workers.adopted.adopted_record import AdoptedRecord, Known
from supervisor.edges.workers.channel.progress_page_reader import now_ns
from supervisor.ports.edges import Clock, Spawner, nobody_asks

Tell = Callable[[link.FromSpawner], None]


class Meeting(Protocol):
    """The worker socket, as far as it meets ranks."""

    async def next_unknown(self, job_id: str) -> tuple[int, int]:
        """Waits for an unknown process with the token of an open cycle; returns its local rank and pid."""
        ...


class AdoptedRanks:
    """Meets the ranks of one job; see ports.Spawners. `keep` runs until the job ends or no rank came for `idle_s`."""

    def __init__(
        self,
        *,
        workers: Meeting,
        clock: Clock,
        record: AdoptedRecord,
        on_open: Callable[[], None],
        on_idle: Callable[[], None],
        idle_s: float,
        has_others: bool = False,
    ) -> None:
        """`on_open`: ranks can connect. `on_idle`: no rank is here, and none has come for `idle_s`.

        `has_others`: there are ranks on other nodes; the job ends with them once some ranks have come here.

        """
        self.has_others = has_others
        self._workers = workers
        self.clock = clock
        self.record = record
        self._on_open = on_open
        self._on_idle = on_idle
        self._idle_s = idle_s

    async def keep(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        on_started: Callable[[Spawner], None],
        on_message: Tell,
        on_end_seen: Callable[[int, int], None] = nobody_asks,
    ) -> str:
        """Runs until the job was told to end."""
        del environment, on_end_seen  # an end is seen here first
        async with anyio.create_task_group() as tasks:
            ranks = _Ranks(tasks, on_message, self)
            on_started(ranks)
            version = ".".join(map(str, sys.version_info[:3]))
            on_message(link.Ready(os.getpid(), link.PROTOCOL, version, "adopt", "they were started by others", (), ""))
            tasks.start_soon(self._meet, spec.job_id, ranks)
            tasks.start_soon(ranks.watch_idle, self._idle_s)
            await ranks.ended.wait()
            tasks.cancel_scope.cancel()
        return "the job has ended"

    async def _meet(self, job_id: str, ranks: _Ranks) -> None:
        while True:
            ranks.meet(*await self._workers.next_unknown(job_id))

    def open(self) -> None:
        self._on_open()

    def idle(self) -> None:
        self._on_idle()


class _Ranks:
    """The ranks; see ports.Spawner. Messages are answered at once; only the ends of ranks come later."""

    def __init__(self, tasks: TaskGroup, tell: Tell, owner: AdoptedRanks) -> None:
        self._tasks = tasks
        self._tell = tell
        self._owner = owner
        self._pidfds: dict[int, int] = {}  # by local rank; open while the process is watched
        self._left = anyio.Event()  # set when a rank has come or ended
        self._came: set[int] = set()  # local ranks
        self._cycle = -1
        self.ended = anyio.Event()

    @property
    def pid(self) -> int:
        return os.getpid()

    def keep(self, texts: Mapping[str, str], orders: Sequence[link.Order], on_kept: Callable[[], None]) -> None:
        """Performs the orders and keeps nothing: a successor meets the ranks itself."""
        for order in orders:
            self.send(order)

    def send(self, message: link.Order) -> None:
        match message:
            case link.PrepareStore(cycle, host, port):
                self._tell(link.StoreReady(cycle, host, port))  # the script's own store is not touched
            case link.Spawn(cycle):
                self._cycle = cycle
                self._miss_known()
                self._owner.open()
            case link.Signal():
                self._signal(message)
            case link.KillTree(cycle):
                self._tell(link.Emptied(cycle, 0, ()))
            case link.End():
                self.ended.set()
            case _:
                pass  # a message of the other direction

    def kill(self, reason: str) -> None:
        """Does nothing: its processes are not ours to end, and it can't hang."""

    def process_state(self) -> str:
        return "the ranks were started by others"

    async def watch_idle(self, idle_s: float) -> None:
        while not (self._came and self._owner.has_others):
            with anyio.move_on_after(None if self._pidfds else idle_s) as waited:
                await self._left.wait()
            if waited.cancelled_caught:
                self._owner.idle()
                return

    def _miss_known(self) -> None:
        """Reports ranks that a dead predecessor met and that ended before they connected here."""
        for known in self._owner.record.known():
            if known.pidfd < 0:
                self._tell_missed(known)
            else:
                self._tasks.start_soon(self._watch_known, known)

    async def _watch_known(self, known: Known) -> None:
        try:
            await anyio.wait_readable(known.pidfd)
        finally:
            os.close(known.pidfd)
        if known.local_rank not in self._came:
            self._tell_missed(known)

    def _tell_missed(self, known: Known) -> None:
        self._tell_start(known.local_rank, known.pid)
        self._tell_end(known.local_rank, known.pid)

    def meet(self, local_rank: int, pid: int) -> None:
        if local_rank in self._pidfds:
            return
        try:
            self._pidfds[local_rank] = os.pidfd_open(pid)
        except OSError:
            return  # It has ended already, and its connection with it.
        self._came.add(local_rank)
        self._owner.record.note(local_rank, pid)
        self._changed()
        self._tell_start(local_rank, pid)
        self._tasks.start_soon(self._watch, local_rank, pid)

    async def _watch(self, local_rank: int, pid: int) -> None:
        pidfd = self._pidfds[local_rank]
        try:
            await anyio.wait_readable(pidfd)
        finally:
            del self._pidfds[local_rank]
            os.close(pidfd)
        self._changed()
        self._tell_end(local_rank, pid)

    def _tell_start(self, local_rank: int, pid: int) -> None:
        self._tell(link.Spawned(self._cycle, local_rank, pid, now_ns(self._owner.clock), "adopt"))

    def _tell_end(self, local_rank: int, pid: int) -> None:
        # Only its parent learns how it ended: what it was doing then decides whether that was a loss.
        self._tell(link.Exited(self._cycle, local_rank, pid, 0, None, False, False, now_ns(self._owner.clock)))

    def _signal(self, message: link.Signal) -> None:
        for local_rank in message.local_ranks or tuple(self._pidfds):
            pidfd = self._pidfds.get(local_rank)
            if pidfd is None:
                continue
            with contextlib.suppress(OSError):  # It is ending in this moment.
                for number in message.numbers:
                    signals.pidfd_send_signal(pidfd, number)

    def _changed(self) -> None:
        self._left.set()
        self._left = anyio.Event()
