"""How is a fault made in a job, and how is it undone? Each returns its undo, None if it is not possible."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.soak.crew import Job

Undo = Callable[[], None]
Fault = Callable[[Job, Random], Undo | None]


class Failing(Protocol):
    def fail(self) -> None: ...
    def mend(self) -> None: ...


def _nothing() -> None:
    """Changes nothing."""


def _signalled(pid: int, number: int, *, resumed: bool = False) -> Undo | None:
    if pid <= 1:
        return None
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None

    def resume() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return resume if resumed else _nothing


def _any_rank(job: Job, dice: Random) -> int:
    return job.pid(dice.randrange(job.ranks))


def worker_killed(job: Job, dice: Random) -> Undo | None:
    return _signalled(_any_rank(job, dice), signal.SIGKILL)


def worker_stopped(job: Job, dice: Random) -> Undo | None:
    return _signalled(_any_rank(job, dice), signal.SIGSTOP)


def worker_stopped_a_moment(job: Job, dice: Random) -> Undo | None:
    return _signalled(_any_rank(job, dice), signal.SIGSTOP, resumed=True)


def spawner_killed(job: Job, dice: Random) -> Undo | None:
    return _signalled(job.spawner(), signal.SIGKILL)


def spawner_stopped_a_moment(job: Job, dice: Random) -> Undo | None:
    return _signalled(job.spawner(), signal.SIGSTOP, resumed=True)


def spawner_stopped_and_worker_killed(job: Job, dice: Random) -> Undo | None:
    """The spawner is the dead worker's parent, so nobody learns of the death from it."""
    if _signalled(job.spawner(), signal.SIGSTOP) is None:
        return None
    return _signalled(_any_rank(job, dice), signal.SIGKILL)


def store_host_killed(job: Job, dice: Random) -> Undo | None:
    return _signalled(job.store_host(), signal.SIGKILL)


def store_host_stopped_and_worker_killed(job: Job, dice: Random) -> Undo | None:
    if _signalled(job.store_host(), signal.SIGSTOP) is None:
        return None
    return _signalled(_any_rank(job, dice), signal.SIGKILL)


def failing(place: Failing, *, and_worker: bool) -> Fault:
    """Makes the place of its logs fail until the fault is undone, with or without a restart in between."""

    def fault(job: Job, dice: Random) -> Undo | None:
        place.fail()
        if and_worker:
            _signalled(_any_rank(job, dice), signal.SIGKILL)
        return place.mend

    return fault
