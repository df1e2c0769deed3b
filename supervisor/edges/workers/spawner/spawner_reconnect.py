"""How are a job's spawners reached that a previous supervisor started, and ended if that is asked meanwhile?

A spawner may be stopped (SIGSTOP), held by a debugger, or wait for a disk. Its job goes on meanwhile, so there is no
deadline; but people learn of it at once, and a job that they stop ends within a bounded time. One that still loads, and
has nothing of the job, is not waited for if another answers: that may have healthy workers. If none does, the one that
loads may be the replacement of a lost one. If all that answer were replaced, and the one that had the job has ended,
one without a worker or a store is given up after CHILDLESS_S. What it loads may have started other processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio

from supervisor.core.process_facts import SilentSpawner
from supervisor.edges.machine.own_process.threads import in_thread_or_here
from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.unresponsive_process import process_state
from supervisor.edges.workers.spawner import kept_succession, spawner_discovery
from supervisor.edges.workers.spawner.kept_succession import SUCCESSOR
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles, SpawnerIdentity
from supervisor.ports.timed_waits import pause

SILENT_S = 1.0  # after that, a spawner that answers nothing is reported; a stopped one at once
CHILDLESS_S = 30.0  # after that, one without workers has nothing of a job whose spawner has ended
GOES_ON_S = 5.0  # for a spawner that was continued; then it is killed
GONE_S = 5.0  # for a spawner that was killed; then it is given up

_log = logging.getLogger("holdfast")


class SpawnerReconnect:
    """The attempt to reach the spawners of one job. Use it only from the event loop's thread."""

    def __init__(self, recorded: Sequence[tuple[SpawnerFiles, SpawnerIdentity]], found: list[FoundSpawner]) -> None:
        """`found` gets those that were reached."""
        self._missing = dict(recorded)
        self._found = found
        self._are_late = False  # those that have not answered
        self._end_asked = anyio.Event()
        self._given_up = anyio.CancelScope()
        self.killed: list[int] = []  # pids of spawners that did not answer, and whose job was to end
        self.unneeded: list[int] = []  # pids of those that were killed since they had nothing of the job

    @property
    def why_lost(self) -> str:
        """Why a spawner on which the job relies is lost; "": it has ended by itself."""
        pids = ", ".join(map(str, self.killed))
        return pids and f"its spawner (pid {pids}) did not answer, so it was killed with all that it had started"

    def silent(self) -> SilentSpawner | None:
        """Returns the first spawner that has not answered."""
        for identity in self._missing.values():
            if identity.is_alive and (entry := process_table.look_up(identity.pid)) is not None:
                return SilentSpawner(identity.pid, entry.state, process_state(identity.pid))
        return None

    def end(self) -> None:
        """Continues spawners that do not answer, and kills those that do not answer even then."""
        self._end_asked.set()

    async def run(self, on_silent: Callable[[], Awaitable[None]]) -> None:
        """Returns once each spawner was reached, has ended, or can't even be killed, or none that is left has the job.

        `on_silent` is called once if one does not answer.
        """
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._watch, on_silent)
            beside.start_soon(self._end_when_asked)
            with self._given_up:
                async with anyio.create_task_group() as tasks:
                    for files, identity in list(self._missing.items()):
                        tasks.start_soon(self._reach, files, identity)
            beside.cancel_scope.cancel()

    async def _reach(self, files: SpawnerFiles, identity: SpawnerIdentity) -> None:
        reached = await spawner_discovery.reach(files, identity)
        del self._missing[files]
        if reached is not None:
            self._found.append(reached)
        if self._are_late and self._missing:
            await self._end_unneeded()

    async def _end_unneeded(self) -> None:
        """Ends those that have not answered, if others have, and know that they have nothing of the job.

        Each saves what it keeps after its first order, if it can; it may have workers before that. What a replaced one
        keeps names only its own successor, so that proves nothing of later ones. Nor do files of those that have ended.
        """
        kept_paths = [files.keep_path for files in self._missing]
        if await in_thread_or_here(lambda: any(path.exists() for path in kept_paths)):
            return
        others = [each.texts for each in self._found if SUCCESSOR not in each.texts]
        stood = [*filter(None, map(kept_succession.succession, others))]
        named = set[int]().union(*(each.needed for each in stood))
        missing = list(self._missing.values())  # by now
        if self.unneeded or not missing or not stood or any(identity.pid in named for identity in missing):
            return
        self._kill_unneeded(missing)

    async def _end_childless(self) -> None:
        """Ends those that have not answered, if the spawner that had the job has ended, and its workers with it.

        All others were replaced then, by none of these. One of these may have taken over later: it has workers, or a
        store, and goes on with them. A stopped one is not ended: it may have orders that it has not read.
        """
        missing, successors = dict(self._missing), {each.texts.get(SUCCESSOR) for each in self._found}
        pids = {str(identity.pid) for identity in missing.values()}
        if not missing or not successors or None in successors or successors & pids:
            return
        if not await in_thread_or_here(partial(_may_have_job, missing)) and missing == self._missing:
            self._kill_unneeded(list(missing.values()))

    def _kill_unneeded(self, missing: Sequence[SpawnerIdentity]) -> None:
        for identity in missing:
            self.unneeded.append(identity.pid)
            _log.warning("spawner %s of job %s has nothing of it and is ended", identity.pid, identity.job_id)
        self._signal(signal.SIGKILL)
        self._given_up.cancel()

    async def _watch(self, on_silent: Callable[[], Awaitable[None]]) -> None:
        silent = self.silent()
        is_stopped = silent is not None and silent.state == "T"
        if is_stopped:
            await on_silent()
        await pause(SILENT_S, why="people are told only of a spawner that is silent for that long")
        self._are_late = True
        await self._end_unneeded()
        if not is_stopped and not self.unneeded:
            await on_silent()
        while True:
            await pause(CHILDLESS_S, why="one that has taken over starts a worker or a store within that time")
            await self._end_childless()

    async def _end_when_asked(self) -> None:
        await self._end_asked.wait()
        self._signal(signal.SIGCONT)
        await pause(GOES_ON_S, why="a spawner that goes on answers within that time, which ends this")
        self.killed += [identity.pid for identity in self._missing.values()]
        self._signal(signal.SIGKILL)
        await pause(GONE_S, why="a spawner that was killed is gone within that time, which ends this")
        self._given_up.cancel()

    def _signal(self, number: int) -> None:
        for identity in self._missing.values():
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(identity.pid)
                try:
                    if identity.is_alive:
                        signal.pidfd_send_signal(descriptor, number)
                finally:
                    os.close(descriptor)


def _may_have_job(spawners: Mapping[SpawnerFiles, SpawnerIdentity]) -> bool:
    """Returns whether one of them keeps something, is stopped, or has a worker or a store. Reads all of /proc.

    Each of those leads a session. What a module has started as it was loaded is in the spawner's.
    """
    for files, identity in spawners.items():
        entry = process_table.look_up(identity.pid)
        is_stopped = entry is not None and entry.state in "Tt"
        below = process_table.descendants(identity.pid)
        if is_stopped or files.keep_path.exists() or any(each.session == each.pid for each in below):
            return True
    return False
