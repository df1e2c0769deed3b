"""How does root's process start and kill users' supervisors without a wait in a thread that others use?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import anyio

from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users import user_process
from supervisor.edges.users.user_folders import Record, UserFolder
from supervisor.edges.users.user_process import StartedSupervisor
from supervisor.errors import ExhaustedError, NotNowError

STARTS_AT_ONCE_MAX, STARTS_PER_S = 16.0, 0.2  # of supervisors of one login, or restarts of one
START_TIMEOUT_S = 70.0  # longer than systemd waits for a unit
KILL_TIMEOUT_S = 10.0  # for systemd to pass the signal on, and for a look at all processes
KILLED_TIMEOUT_S = 5.0  # for the kernel to end a killed process
KILLS_MAX = 8  # at the same time

_log = logging.getLogger("holdfast.users")


class Processes(Protocol):
    """Starts and kills supervisors. All methods block; those that kill never raise."""

    def start(self, identity: Identity, limits: Limits, folder: UserFolder) -> StartedSupervisor:
        """Starts a supervisor whose hand-over socket is open. Raises HoldfastError."""
        ...

    def kill(self, record: Record) -> None:
        """Kills the supervisor itself; its jobs continue."""
        ...

    def kill_all(self, record: Record) -> None:
        """Kills the supervisor and all that it has started."""
        ...


class _Starts:
    """What first starts of one login, or restarts of one supervisor, share: one at a time, in a thread of their own."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.calls = SideThreads(stuck_max=1)


class SupervisorProcesses:
    """Calls Processes in threads of their own."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._of: dict[int | str, _Starts] = {}  # login, or name of an identity
        # Name of an identity → held while its late start is undone. Kept as long as a thread may need it.
        self._discarding = WeakValueDictionary[str, threading.Lock]()
        self._starts = ConnectionRateLimit(STARTS_AT_ONCE_MAX, STARTS_PER_S)
        self._places = anyio.CapacityLimiter(KILLS_MAX)
        self._kills = SideThreads(stuck_max=KILLS_MAX)

    async def start(
        self,
        identity: Identity,
        limits: Limits,
        folder: UserFolder,
        login: int,
        *,
        is_first: bool = False,
        is_last: bool = False,
        check: Callable[[], None] | None = None,
    ) -> StartedSupervisor:
        """Starts a supervisor. Raises HoldfastError.

        `is_first`: it has no jobs yet. Others are restarts, whose jobs must not wait for those of the same login.
        `is_last`: however often, since it only ends its jobs. `check`: called first, in the thread of the start; it may
        block, and raise HoldfastError.
        """
        whose = login if is_first else identity.name
        starts = self._of.setdefault(whose, _Starts())
        discarding = self._discarding.setdefault(identity.name, threading.Lock())
        async with starts.lock:
            if not is_last and not self._starts.allows(whose, anyio.current_time()):
                raise ExhaustedError(
                    f"cannot start the supervisor of user id {identity.uid}: supervisors of this login were started "
                    f"too often; try again in {1 / STARTS_PER_S:g} s"
                )

            def start() -> StartedSupervisor:
                with discarding:
                    pass  # The next start, first or not, must not meet what a late one has left.
                if check is not None:
                    check()
                return self._processes.start(identity, limits, folder)

            def discard(late: StartedSupervisor) -> None:
                with discarding:
                    self._discard(late, folder, is_first=is_first)

            try:
                return await starts.calls.call(start, timeout_s=START_TIMEOUT_S, discard=discard)
            except OSError as error:
                kind = ExhaustedError if kernel_error_remedies.remedy(error) else NotNowError
                raise kind(f"cannot start the supervisor of user id {identity.uid}: {error}; see the log") from error

    async def kill(self, record: Record) -> bool:
        """Kills the supervisor itself; its jobs continue. Returns whether it is gone."""
        return await self._killed(record, self._processes.kill)

    async def kill_all(self, record: Record) -> bool:
        """Kills the supervisor and all that it has started. Returns whether the supervisor is gone."""
        return await self._killed(record, self._processes.kill_all)

    def forget(self, whose: int | str) -> None:
        """Forgets a login without supervisors, or an identity, unless a start is stuck: that one may still come."""
        if whose in self._of and not self._of[whose].calls.stuck:
            del self._of[whose]

    async def _killed(self, record: Record, kill: Callable[[Record], None]) -> bool:
        try:
            async with self._places:
                await self._kills.call(partial(kill, record), timeout_s=KILL_TIMEOUT_S, discard=bool)
        except OSError as error:
            _log.error("cannot kill the supervisor of user id %s: %s", record.identity.uid, error)
        return await user_process.until_gone(record, KILLED_TIMEOUT_S)

    def _discard(self, late: StartedSupervisor, folder: UserFolder, *, is_first: bool) -> None:
        """Ends a supervisor whose start took too long, with its unit and its record if it has no jobs."""
        if is_first:
            self._processes.kill_all(late.record)
            if not _names_another(folder.record(), late.record):
                folder.forget()
        else:
            self._processes.kill(late.record)


def _names_another(record: Record | None, late: Record) -> bool:
    return record is not None and (record.pid, record.started_ticks) != (late.pid, late.started_ticks)
