"""How does a thread open files of a job without harming the processes that are started meanwhile?

A new process gets a copy of every descriptor and closes it before it executes. A file system that never answers holds
up that close, and with it the start of any job's spawner. So a thread that reads a job's files has its own table of
descriptors, which no other thread's children copy. In return it can't use the descriptors of other threads.

A process that such a thread starts copies only what the thread has. From another thread, it would copy our locks and
connections, and hold them for as long as it waits for a dead folder, even after our end.
"""

from __future__ import annotations

import asyncio  # anyio can be woken only from its own threads
import ctypes
import itertools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from supervisor.edges.machine.own_process import threads

_T = TypeVar("_T")

_CLOSE_RANGE = 436  # on every architecture; glibc has a wrapper only since 2.34
_UNSHARE = 2
_LAST = 0xFFFFFFFF
_libc = ctypes.CDLL(None, use_errno=True)


def separate(*kept: int) -> bool:
    """Gives this thread its own descriptor table with only `kept`. Returns False if the kernel can't (before 5.9)."""
    # The first call makes the table with only what lies below its range: nothing above is copied or has to be closed.
    edges = sorted((-1, *kept), reverse=True)
    if not _close_range(edges[0] + 1, _LAST, _UNSHARE):
        return False
    for above, below in itertools.pairwise(edges):
        if above - below > 1:
            _close_range(below + 1, above - 1, 0)
    return True


def _close_range(first: int, last: int, flags: int) -> bool:
    return _libc.syscall(_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(flags)) == 0


def separately(work: Callable[[], _T], *kept: int) -> _T:
    """Returns the result of `work`, done in a separate thread while this one waits; raises what `work` raises.

    The thread has only the descriptors in `kept`. Raises OSError without a thread.
    """
    outcome, others = Future[_T](), {int(name) for name in os.listdir("/proc/self/fd")}.difference(kept)

    def run() -> None:
        try:
            if separate(*kept):
                _occupy(others)
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it belongs to the waiting caller, in the other thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="job file", daemon=True)
    threads.start(thread)
    thread.join()
    return outcome.result()


def _occupy(numbers: set[int]) -> None:
    """Keeps what this thread opens from having one of these numbers.

    In each process that is forked, libuv closes the pipe of its event loop, by the numbers that the loop's thread has.
    """
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number in numbers - {null}:
        with suppress(OSError):  # It is above a limit that was lowered since, so nothing gets that number.
            os.dup2(null, number, inheritable=False)


class OwnThread:
    """Does one thing after another in a separate daemon thread. Use it only from the event loop's thread.

    A stuck thread is abandoned: neither the loop nor the end of the process waits for it.
    """

    def __init__(self, *kept: int) -> None:
        """Starts the thread. Raises OSError if there is no thread or descriptor left."""
        self._loop = asyncio.get_running_loop()
        self._work = queue.SimpleQueue[Callable[[], None] | None]()
        self._told = queue.SimpleQueue[Callable[[], None]]()
        self._is_separate = False
        # The loop is usually woken through a descriptor that this thread does not have.
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        started = threading.Event()
        try:
            threads.start(threading.Thread(target=self._run, args=(kept, started), name="job files", daemon=True))
        except OSError:
            os.close(self._wakeup)
            raise
        started.wait()  # takes one system call
        self._loop.add_reader(self._wakeup, self._hear)

    async def call(self, work: Callable[[], _T]) -> _T:
        """Returns the result of `work`; raises what it raises."""
        future: asyncio.Future[_T] = self._loop.create_future()

        def do() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it belongs to the waiting caller, in the other thread
                self._told.put(partial(_fail, future, error))
            else:
                self._told.put(partial(_succeed, future, result))
            os.eventfd_write(self._wakeup, 1)

        self._work.put(do)
        return await future

    def end(self, last: Callable[[], None]) -> None:
        """Makes the thread do `last` and end. Never waits."""
        self._work.put(last)
        self._work.put(None)
        self._loop.remove_reader(self._wakeup)
        if self._is_separate:  # else the thread shares it and closes it
            os.close(self._wakeup)

    def _run(self, kept: tuple[int, ...], started: threading.Event) -> None:
        self._is_separate = separate(self._wakeup, *kept)
        started.set()
        while (work := self._work.get()) is not None:
            work()
        os.close(self._wakeup)

    def _hear(self) -> None:
        os.eventfd_read(self._wakeup)
        while not self._told.empty():
            self._told.get()()


def _succeed(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():  # else nobody waits any more
        future.set_result(result)


def _fail(future: asyncio.Future[_T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
