"""Whose check runs next, and which requests share the result of one run?

Requests with equal arguments share a run that began at most SHARED_S before them. If there is no place for a run of
their own, they get the newest result that is at most REUSED_S old, counted from the start of its run. Otherwise they
wait, and users take turns. Results are never shared between different arguments.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from supervisor.errors import ExhaustedError

RUNS_MAX = 16  # at the same time; each belongs to a different user, beyond the first
RUNS_SHARED_MAX = 4  # with so many running, users get no second one
RUNS_OF_ONE_MAX = 2
WAITING_OF_ONE_MAX = 16  # requests of one user
SHARED_S = 1.0
REUSED_S = 30.0
KEPT_MAX, KEPT_OF_ONE_MAX = 32, 2  # results

_T = TypeVar("_T")
Arguments = tuple[str, ...]

_log = logging.getLogger("holdfast.healthd")


class _Run(Generic[_T]):
    def __init__(self, uid: int, arguments: Arguments, begun_s: float) -> None:
        self.uid, self.arguments, self.begun_s = uid, arguments, begun_s
        self.ended = anyio.Event()
        self.result: _T | None = None


class _Request(Generic[_T]):
    """A request that waits; `run` is set before `has_run`."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.has_run = anyio.Event()
        self.run: _Run[_T] | None = None


class HealthdQueue(Generic[_T]):
    """The runs of one program, for one event loop."""

    def __init__(self, check: Callable[[Sequence[str]], Awaitable[_T]], tasks: TaskGroup) -> None:
        """`tasks` runs the checks: one goes on if those that asked for it have gone, and others may take its result."""
        self._check = check
        self._tasks = tasks
        self._running: list[_Run[_T]] = []  # the oldest first
        self._kept: list[_Run[_T]] = []
        self._waiting: OrderedDict[int, deque[_Request[_T]]] = OrderedDict()  # the user whose turn is next first

    async def result(self, uid: int, arguments: Arguments) -> _T:
        """Returns the result of a check with these arguments. Raises ExhaustedError if too many requests wait."""
        now_s = anyio.current_time()
        run = _newest(self._running, arguments, now_s - SHARED_S)
        if run is None and self._may_run(uid):
            run = self._start(uid, arguments)
        if run is None:
            run = _newest([*self._kept, *self._running], arguments, now_s - REUSED_S)
        if run is None:
            run = await self._turn(uid, arguments)
        await run.ended.wait()
        if run.result is None:
            raise ExhaustedError("cannot check the node: the check has failed; see the log of holdfast healthd")
        return run.result

    async def _turn(self, uid: int, arguments: Arguments) -> _Run[_T]:
        waiting = self._waiting.setdefault(uid, deque())
        if len(waiting) >= WAITING_OF_ONE_MAX:
            raise ExhaustedError(
                f"cannot check the node: {WAITING_OF_ONE_MAX} requests of user {uid} wait already; ask again later"
            )
        request: _Request[_T] = _Request(arguments)
        waiting.append(request)
        try:
            await request.has_run.wait()
        finally:
            self._leave(uid, request)
        assert request.run is not None
        return request.run

    def _leave(self, uid: int, request: _Request[_T]) -> None:
        waiting = self._waiting.get(uid)
        if waiting is not None and request in waiting:
            waiting.remove(request)
        if not waiting:
            self._waiting.pop(uid, None)

    def _may_run(self, uid: int) -> bool:
        own = sum(run.uid == uid for run in self._running)
        if own:
            return own < RUNS_OF_ONE_MAX and len(self._running) < RUNS_SHARED_MAX
        return len(self._running) < RUNS_MAX

    def _start(self, uid: int, arguments: Arguments) -> _Run[_T]:
        run: _Run[_T] = _Run(uid, arguments, anyio.current_time())
        self._running.append(run)
        self._tasks.start_soon(self._perform, run)
        return run

    async def _perform(self, run: _Run[_T]) -> None:
        try:
            run.result = await self._check(run.arguments)
        except Exception:  # noqa: BLE001 - the bulkhead: no request may end the service
            _log.warning("cannot check the node", exc_info=True)
        self._running.remove(run)
        if run.result is not None:
            self._keep(run)
        run.ended.set()
        self._start_waiting()

    def _keep(self, run: _Run[_T]) -> None:
        self._kept = [
            each for each in self._kept
            if each.arguments != run.arguments and each.begun_s >= anyio.current_time() - REUSED_S
        ]  # fmt: skip
        own = [each for each in self._kept if each.uid == run.uid]
        if len(own) >= KEPT_OF_ONE_MAX:
            self._kept.remove(own[0])
        if len(self._kept) >= KEPT_MAX:
            del self._kept[0]
        self._kept.append(run)

    def _start_waiting(self) -> None:
        for uid in tuple(self._waiting):
            if uid in self._waiting and self._may_run(uid):
                self._waiting.move_to_end(uid)
                self._start_for(uid)

    def _start_for(self, uid: int) -> None:
        """Starts a run for the first request of this user; all that wait with the same arguments share it."""
        run = self._start(uid, self._waiting[uid][0].arguments)
        for other in tuple(self._waiting):
            for request in [each for each in self._waiting[other] if each.arguments == run.arguments]:
                request.run = run
                request.has_run.set()
                self._leave(other, request)


def _newest(runs: Sequence[_Run[_T]], arguments: Arguments, since_s: float) -> _Run[_T] | None:
    fitting = (run for run in runs if run.arguments == arguments and run.begun_s >= since_s)
    return max(fitting, key=lambda run: run.begun_s, default=None)
