"""What did a lost spawner leave behind, and is it gone?

This process is a child subreaper, and so is every spawner: while a spawner lives, its job's orphans are its children;
afterwards they are ours. So the processes killed here are our descendants, were not started by us, and belong to no
live spawner. A spawner that a previous supervisor started is not our descendant. All orphans are known by session or by
their marks: the job, and the spawner that has started them. The job alone is not enough: an abandoned search may still
run when the next spawner of the job starts.

The process that writes the logs of cycles shows the job by another mark. It is left alone: it writes what the workers
have printed, and ends by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

import anyio
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, LOG_OF_VARIABLE, LOG_PROCESS_NAME, SPAWNER_VARIABLE
from holdfast_wire.process_sweep import Sweep

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import threads
from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.process_table import ProcessEntry

KILL_S = 2.0  # processes that are still found then multiply faster than they can be killed: the caller looks again


class Orphans:
    """The processes of one job whose spawner is dead or dying. Calls read all of /proc: not for the event loop."""

    def __init__(self, job_id: str, spawner_pid: int, name: str, *, found: bool = False, since_ticks: int = 0) -> None:
        """`name`: the spawner's, which its processes show.

        `spawner_pid`: 0 if it is gone and not known. `since_ticks`: when the spawner was started, if it is gone.
        `found`: a previous supervisor has started the spawner, so its orphans are not our children.
        """
        self._found = found
        self._job_id = job_id
        self._name = name
        self._spawner_pid = spawner_pid
        spawner = process_table.look_up(spawner_pid)
        self._since_ticks = since_ticks or (spawner.started_ticks if spawner else 0)
        # Led by the spawner and by workers -> the worker's cycle. Session 0 is the kernel's.
        self._sessions = {spawner_pid: 0} if spawner_pid else dict[int, int]()
        self._killed: set[tuple[int, int]] = set()  # (pid, start): a zombie shows neither environment nor owner

    def note_session(self, pid: int, cycle: int) -> None:
        """Notes that a worker leads a session: any process in it belongs to the job."""
        self._sessions[pid] = cycle

    def forget_sessions(self, cycle: int) -> None:
        """Forgets an ended cycle: other processes may get its pids."""
        self._sessions = {pid: of for pid, of in self._sessions.items() if of != cycle or pid == self._spawner_pid}

    def kill(self, *, others: frozenset[int]) -> list[int]:
        """Sends SIGKILL to all current ones; returns their pids. `others`: spawners of other jobs, left alone."""
        spared, own_session = {os.getpid(), *others}, os.getsid(0)

        def is_meant(entry: ProcessEntry) -> bool:
            is_candidate = entry.parent_pid == os.getpid() if not self._found else True
            return is_candidate and entry.pid not in spared and self._is_left_by_us(entry, own_session)

        def related(entries: Sequence[ProcessEntry]) -> list[ProcessEntry]:
            return self._find(entries, others, sweep.note_missed)

        sweep = Sweep(is_meant, with_groups=True, related=related)
        sweep.run(Clock().now_s() + KILL_S)
        self._killed |= sweep.found.keys()
        return sorted(entry.pid for entry in sweep.found.values())

    def sweep(self, *, others: frozenset[int]) -> tuple[int, ...]:
        """Kills all current ones and reaps those that have ended; returns the pids of the rest."""
        self.kill(others=others)
        left = self._find(process_table.all_processes(), others, _nothing)
        self._reap(left)
        return tuple(entry.pid for entry in left if entry.state not in "ZX")

    def _find(
        self, entries: Iterable[ProcessEntry], others: frozenset[int], note_missed: Callable[[], None]
    ) -> list[ProcessEntry]:
        table = {entry.pid: entry for entry in entries}
        children: dict[int, list[ProcessEntry]] = {}
        for entry in table.values():
            children.setdefault(entry.parent_pid, []).append(entry)
        own = os.getpid()
        own_session = os.getsid(0)
        spared = {own, *others}
        candidates = children.get(own, [])
        if self._found:
            candidates = list(table.values())
            spared |= _below(others, children)
        waiting: list[ProcessEntry] = []
        for child in candidates:
            try:
                if child.pid not in spared and self._is_left_by_us(child, own_session):
                    waiting.append(child)
            except ProcessLookupError:
                note_missed()
        found: list[ProcessEntry] = []
        while waiting:
            entry = waiting.pop()
            if entry in found:
                continue
            if entry.pid != self._spawner_pid or entry.state not in "ZX":
                found.append(entry)  # the link reaps a dead spawner to learn how it ended
            below = children.get(entry.pid, [])
            if entry.pid == self._spawner_pid:
                below = [each for each in below if not self._writes_logs(each)]
            waiting += below
        return found

    def _writes_logs(self, child: ProcessEntry) -> bool:
        """Returns whether this child of the spawner writes the logs of cycles."""
        return process_table.initial_variable(child.pid, LOG_OF_VARIABLE) == self._job_id

    def _is_left_by_us(self, child: ProcessEntry, own_session: int) -> bool:
        """Returns whether `child`, a child of ours (or anybody's if the spawner was not ours), is left over.

        Raises ProcessLookupError if it has ended before that could be seen.
        """
        if child.session == own_session or child.started_ticks < self._since_ticks:
            return False  # our own helpers stay in our session; no job's process is older than its spawner
        if child.session in self._sessions or (child.pid, child.started_ticks) in self._killed:
            return True
        job_id, spawner = process_table.initial_variables(child.pid, JOB_ID_VARIABLE, SPAWNER_VARIABLE)
        if job_id is None and not child.has_ended:
            now = process_table.look_up(child.pid)
            if now is None or now.has_ended:
                raise ProcessLookupError
        if job_id != self._job_id or not _is_of(self._name, spawner):
            return False
        return not self._found or self._is_this_users(child.pid)

    def _is_this_users(self, pid: int) -> bool:
        """Returns False for another user's process: on one machine, a job of each user may have the same id."""
        try:
            return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
        except FileNotFoundError:
            raise ProcessLookupError from None

    def _reap(self, entries: list[ProcessEntry]) -> None:
        for entry in entries:
            if entry.pid == self._spawner_pid:
                continue
            try:
                os.waitid(os.P_PID, entry.pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                continue  # It is not our child yet: its own parent is dying, too.


def is_marked(pid: int, job_id: str, spawner: str) -> bool:
    """Returns whether a process shows that it belongs to the job and that `spawner` has started it."""
    its_job, its_spawner = process_table.initial_variables(pid, JOB_ID_VARIABLE, SPAWNER_VARIABLE)
    return its_job == job_id and _is_of(spawner, its_spawner)


def _is_of(spawner: str, named: str | None) -> bool:
    """Returns False for another spawner: a machine may have several jobs of one id. Older versions named none."""
    return named in (None, spawner)


def _nothing() -> None:
    """Does nothing."""


def _below(pids: frozenset[int], children: Mapping[int, Sequence[ProcessEntry]]) -> set[int]:
    """Returns all their descendants."""
    found: set[int] = set()
    waiting = [*pids]
    while waiting:
        fresh = {child.pid for child in children.get(waiting.pop(), ())} - found
        found |= fresh
        waiting += fresh
    return found


def kill_cgroup(folder: str) -> None:
    """Kills all processes in a job's cgroup at once; does nothing if it does not exist."""
    if not folder:
        return
    places = [Path(folder), *Path(folder).glob("cycle-*")]
    for place in places:
        try:
            (place / "cgroup.kill").write_text("1")
        except OSError:
            continue  # It was removed, or the kernel is older than 5.14: then our search must do.


def reap_log_processes() -> None:
    """Reaps processes that have written the logs of ended spawners, in a thread. One that still writes is left."""

    def reap() -> None:
        for entry in process_table.all_processes():
            if entry.parent_pid == os.getpid() and entry.has_ended and _name(entry.pid) == LOG_PROCESS_NAME:
                with suppress(ChildProcessError):  # another thread has reaped it
                    os.waitid(os.P_PID, entry.pid, os.WEXITED | os.WNOHANG)

    with suppress(OSError):  # without a thread, they stay until the next call
        threads.start(Thread(target=reap, name="log processes", daemon=True))


def _name(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        return file.read().decode(errors="replace").rstrip("\n")
    return ""


async def wait_for_end(pids: Sequence[int]) -> bool:
    """Returns once the first of `pids` has ended; False at once if waiting is impossible."""
    try:
        descriptor = os.pidfd_open(pids[0])
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    return True
