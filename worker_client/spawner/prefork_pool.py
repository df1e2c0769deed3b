"""Which forks are ready for a cycle before its workers are ordered, and how does one of them become a rank?

While the workers of one cycle are being stopped, those of the next are forked. Each does what every child must do, then
waits on its channel for its rank. It appears in no cycle's report before it has one, and is ended if none comes.
Nothing depends on it: without one, a worker is forked when it is ordered.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from . import child_state, fork_and_exec
from .binding import Binding
from .child_state import Inherited
from .event_loop import Events
from .fork_and_exec import BecomeWorkerError, Start

PLAN_BYTES_MAX = 64 * 1024  # a larger environment goes to a worker that is forked with it
_STREAMS_MAX = 2
_FIRST_FREE_FD = 3  # below are the standard streams

Adopt = Callable[[int, int], None]  # cycle, pid


class PreforkPool:
    """The forks that wait, all for one cycle."""

    def __init__(
        self, events: Events, inherited: Inherited, *, adopt: Adopt, keep: frozenset[int] = frozenset()
    ) -> None:
        """Calls `adopt` for each fork, to watch and reap it; `adopt` may raise OSError. `keep`: see settle."""
        self._events = events
        self._inherited = inherited
        self._adopt = adopt
        self._keep = keep
        self._cycle = -1
        self._channels: dict[int, int] = {}  # pid -> our end; a number, so a fork never closes it by surprise
        self._wanted = 0
        self._cgroup_folder = ""

    def want(self, cycle: int, workers: int, cgroup_folder: str) -> None:
        """Forks that many for `cycle`, one per turn of the loop, so that deaths and messages are not delayed."""
        self.dismiss()
        self._cycle, self._wanted, self._cgroup_folder = cycle, workers, cgroup_folder
        if workers:
            self._events.set_timer("prefork", 0.0, self._fork_one)

    def take(self, cycle: int, local_rank: int, start: Start) -> int:
        """Returns the pid of a fork that becomes this worker; 0 if none is ready."""
        self._wanted = 0  # Forking more ahead is pointless now.
        if cycle != self._cycle:
            return 0
        streams, numbers = start.streams, sorted(start.streams)
        plan = json.dumps([local_rank, dict(start.env), numbers, start.binding], separators=(",", ":")).encode()
        while self._channels and len(plan) <= PLAN_BYTES_MAX:
            pid = next(iter(self._channels))
            try:
                with _socket_of(self._channels.pop(pid)) as channel:
                    socket.send_fds(channel, [plan], [streams[number] for number in numbers])
            except OSError:
                _end(pid)  # It is gone, or can't be reached: try the next one.
            else:
                return pid
        return 0

    def dismiss(self, cycle: int | None = None) -> None:
        """Ends those that wait for `cycle` (None: for any). The loop reaps them."""
        if cycle is not None and cycle != self._cycle:
            return
        self._wanted = 0
        self._events.cancel_timer("prefork")
        for pid in list(self._channels):
            _end(pid)
            self.forget(pid)

    def forget(self, pid: int) -> None:
        """Forgets a fork that was reaped or will be."""
        if pid in self._channels:
            os.close(self._channels.pop(pid))

    def _fork_one(self) -> None:
        """Forks one. The fork raises BecomeWorkerError once it has its rank."""
        if not self._wanted:
            return
        try:
            self._fork()
        except OSError:  # A limit is reached: if it still is when the workers are forked, the job is told.
            self._wanted = 0
        else:
            self._wanted -= 1
            self._events.set_timer("prefork", 0.0, self._fork_one)

    def _fork(self) -> None:
        pair = [each.detach() for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
        ours, theirs = pair
        try:
            pid = fork_and_exec.fork(self._inherited)
        except OSError:
            os.close(ours)
            os.close(theirs)
            raise
        if pid == 0:
            self._become(theirs)
        os.close(theirs)
        self._channels[pid] = ours
        try:
            self._adopt(self._cycle, pid)
        except OSError:
            _end(pid)  # The reaper of orphans reaps it.
            self.forget(pid)
            raise

    def _become(self, channel: int) -> NoReturn:
        """Waits, in the fork, for a rank, with every signal blocked until then."""
        inherited = self._inherited
        try:
            self._events.close()
            keep = self._keep | {channel}
            child_state.settle(inherited, streams={}, keep=keep, cgroup_folder=self._cgroup_folder)
            child_state.forget_spawner(inherited)
            local_rank, env, streams, bound = _receive(channel)
            for number, fd in streams.items():
                os.dup2(fd, number)
                os.close(fd)
            child_state.take_rank(inherited, streams, env, bound)
        except BaseException as error:  # noqa: BLE001 - whatever it is must not return into the spawner's loop
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)
        raise BecomeWorkerError(local_rank)


def _end(pid: int) -> None:
    """Kills a fork. Only for a child that was not reaped, whose pid can't mean another process."""
    os.kill(pid, signal.SIGKILL)


def _socket_of(fd: int) -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)


def _receive(channel: int) -> tuple[int, dict[str, str], dict[int, int], Binding]:
    """Returns local rank, environment, streams and binding once ordered. Exits if that never happens."""
    with _socket_of(channel) as incoming:
        data, received, _, _ = socket.recv_fds(incoming, PLAN_BYTES_MAX, _STREAMS_MAX)
    if not data:
        os._exit(0)
    # Above the standard streams: where one of those was closed, its number may just have been given to another.
    lifted = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in received]
    for fd in received:
        os.close(fd)
    local_rank, env, numbers, bound = json.loads(data)
    return local_rank, env, dict(zip(numbers, lifted, strict=True)), Binding(*bound)
