"""What do ranks do when the restart hits them in awkward places?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from holdfast_wire import page_layout

from tests.worker_client.inprocess.scenario import (
    FOR_EVER_S,
    INJECTED,
    RANK,
    WORLD_SIZE,
    NotedAbort,
    NotedFinalize,
    NotedInitialize,
    note,
    noting,
    scenario,
)
from worker_client import inprocess
from worker_client.inprocess import CallWrapper, FrozenState, State
from worker_client.inprocess.coordinating.coordination import Coordination
from worker_client.inprocess.monitor_thread import RankShouldRestart
from worker_client.inprocess.watching import main_thread_watch


def _one_fault(call: CallWrapper, stay: Callable[[], None], after_s: float = 0.2) -> None:
    """In iteration 0, rank 1 fails while rank 0 is in `stay`."""
    if call.iteration == 0:
        if RANK == 1:
            time.sleep(after_s)
            note("raise")
            raise ValueError("by intention")
        stay()


def _be_busy() -> None:
    """Lets the exception come in a task, and not in the event loop."""
    time.sleep(0.001)


def _train(wrapper: inprocess.Wrapper, stay: Callable[[], None]) -> None:
    """Runs a whole call under `wrapper`, with that one fault."""

    @wrapper
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        _one_fault(call, stay)
        return RANK

    note("returned", value=train())


@scenario
def suppressed() -> None:
    """Rank 0 suppresses it three times."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)

    def stay() -> None:
        for _ in range(3):
            with contextlib.suppress(BaseException):
                time.sleep(FOR_EVER_S)
            note("suppressed")
        time.sleep(FOR_EVER_S)

    _train(inprocess.Wrapper(), stay)


@scenario
def a_filter_raises() -> None:
    """Every line that anybody logs makes the script's filter raise; rank 0 hangs in Python code."""

    class Rank(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError("Default process group has not been initialized")

    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    logging.getLogger().handlers[0].addFilter(Rank())
    _train(inprocess.Wrapper(), lambda: time.sleep(FOR_EVER_S))


@scenario
def a_handler_hangs() -> None:
    """From the first iteration to the end of the call, the disk of the script's log hangs; rank 0 hangs in Python."""

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            answers.wait()

    answers = threading.Event()
    initialize = NotedInitialize("initialize", lambda state: logging.basicConfig(level=logging.INFO, handlers=[Log()]))
    _train(inprocess.Wrapper(initialize=initialize), lambda: time.sleep(FOR_EVER_S))
    answers.set()


@scenario
def releasing_fails() -> None:
    """Rank 0 suppresses it once, so it is released again; that and the last step fail."""

    class Broken(inprocess.abort.AbortTorchDistributed):
        def release_again(self, state: FrozenState) -> None:
            raise OSError("by intention, again")

        def clear_after(self) -> None:
            raise OSError("by intention, at the end")

    def stay() -> None:
        with contextlib.suppress(BaseException):
            time.sleep(FOR_EVER_S)
        time.sleep(FOR_EVER_S)

    _train(inprocess.Wrapper(abort=Broken()), stay)


@scenario
def while_importing() -> None:
    """Rank 0 imports a module in each iteration, which can be executed once and takes half a second."""
    source = """
import pathlib, time
from tests.worker_client.inprocess import scenario
if hasattr(scenario, "operator"):
    raise RuntimeError("the operator is registered already")
scenario.operator = "registered"
pathlib.Path("importing").touch()
end_s = time.monotonic() + 0.5
while time.monotonic() < end_s:
    pass
"""
    importing = Path("importing")

    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if RANK == 0:
            importlib.import_module("registers_once")
            note("imported")
        elif call.iteration == 0:
            while not importing.exists():
                time.sleep(0.01)
            raise ValueError("by intention")
        if call.iteration == 0:
            time.sleep(FOR_EVER_S)
        return RANK

    if RANK == 0:
        Path("registers_once.py").write_text(source)
        sys.path.insert(0, os.getcwd())
    note("returned", value=train())


@scenario
def an_import_hangs() -> None:
    """Rank 0's module executes Python without an end."""
    Path(f"endless_{RANK}.py").write_text("while True:\n    pass\n")
    sys.path.insert(0, os.getcwd())
    intervals = ("monitor_process_interval", "monitor_thread_interval", "progress_watchdog_interval")
    short = {name: timedelta(seconds=0.1) for name in intervals}
    _train(
        noting(soft_timeout=timedelta(seconds=1), **short),
        lambda: note("imported", module=str(importlib.import_module(f"endless_{RANK}"))),
    )


@scenario
def cleans_up_slowly() -> None:
    """Rank 0 needs a second in `finally`; nothing interrupts that."""

    def stay() -> None:
        try:
            time.sleep(FOR_EVER_S)
        finally:
            end_s = time.monotonic() + 1.0
            while time.monotonic() < end_s:
                with contextlib.suppress(KeyError):
                    time.sleep(0.001)
                    raise KeyError
            note("cleaned")

    _train(inprocess.Wrapper(), stay)


@scenario
def in_a_destructor() -> None:
    """Rank 0 is in one when the exception comes, which Python can't propagate."""

    class Slow:
        def __del__(self) -> None:
            note("destructor")
            end_s = time.monotonic() + FOR_EVER_S
            while time.monotonic() < end_s:
                pass

    def stay() -> None:
        slow = Slow()
        del slow
        note("after destructor")
        while True:
            pass

    _train(inprocess.Wrapper(), stay)


@scenario
def atomic() -> None:
    """Rank 0 is in a block when rank 1 fails, and tries to enter another one."""

    def stay(call: CallWrapper) -> None:
        with call.atomic(), call.atomic():
            time.sleep(0.6)
            note("left the block")
        time.sleep(0.1)
        with call.atomic():
            note("in the second block")
            time.sleep(FOR_EVER_S)

    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        _one_fault(call, lambda: stay(call))
        with call.atomic():
            pass
        return RANK

    note("returned", value=train())


@scenario
def atomic_while_aborting() -> None:
    """Rank 0 tries to enter a block when the restart is on its way."""

    def stay(call: CallWrapper) -> None:
        aborting.wait()
        note("wants in")
        with call.atomic():
            note("in the block")

    aborting = threading.Event()

    def slow(_state: FrozenState) -> None:
        aborting.set()
        time.sleep(0.3)

    @noting(abort=NotedAbort("abort", slow))
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        _one_fault(call, lambda: stay(call))
        return RANK

    note("returned", value=train())


@scenario
def a_signal_handler_raises() -> None:
    """As torch's of SIGCHLD does: in rank 1 while it waits for its abort, in rank 0 while it waits for rank 1."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    raised, was_struck = [0], Path("struck")

    def fail(*_: object) -> None:
        raised[0] += 1
        raise RuntimeError("DataLoader worker is killed")

    def strike(where: str) -> None:
        """Sends the signal three times while the main thread waits in that function, and logs nothing."""
        main = threading.main_thread().ident or 0

        def is_there() -> bool:
            stack = "".join(traceback.format_stack(sys._current_frames()[main]))  # pyright: ignore[reportPrivateUsage]
            return where in stack and "waiter.acquire" in stack and "guarded_log.py" not in stack

        for already in range(3):
            while not is_there():
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGUSR1)
            while raised[0] <= already:
                time.sleep(0.001)
        note("struck", where=where)

    def abort(_: FrozenState) -> None:
        if RANK == 1:
            strike("in wait_aborted")
            raised[0] = 0

    def finish() -> None:
        strike("in arrive")
        was_struck.touch()

    def finalize(_: FrozenState) -> None:
        if RANK == 0:
            threading.Thread(target=finish, daemon=True).start()
        while RANK == 1 and not was_struck.exists():
            time.sleep(0.001)

    signal.signal(signal.SIGUSR1, fail)
    callbacks = {"abort": NotedAbort("abort", abort), "finalize": NotedFinalize("finalize", finalize)}
    _train(noting(**callbacks), lambda: time.sleep(FOR_EVER_S))


@scenario
def collateral() -> None:
    """An error of rank 0's function because of the abort is no fault of its own."""
    ended = threading.Event()

    def stay() -> None:
        ended.wait()
        raise RuntimeError("connection closed by abort")

    _train(noting(abort=NotedAbort("abort", lambda state: ended.set())), stay)


@scenario
def refused_in_the_function() -> None:
    """The abort lets the function go, and takes longer than the end of a call waits for the thread."""
    released = threading.Event()

    def release_slowly(_: FrozenState) -> None:
        released.set()
        time.sleep(2.0)
        note("aborted")

    @noting(abort=NotedAbort("abort", release_slowly))
    def train() -> None:
        note("fn")
        released.wait()

    try:
        train()
    except inprocess.exception.InternalError as error:
        note("refused", message=str(error))


@scenario
def refused_before_the_abort() -> None:
    """The abort waits for another thread's atomic block, which outlasts the call."""
    is_inside, may_end = threading.Event(), threading.Event()

    @noting(abort=NotedAbort("abort"))
    def train(call: CallWrapper = INJECTED) -> None:
        def work() -> None:
            with call.atomic():
                is_inside.set()
                may_end.wait()

        threading.Thread(target=work, daemon=True).start()
        is_inside.wait()
        note("fn")
        time.sleep(1.0)  # until it is refused

    try:
        train()
    except inprocess.exception.InternalError:
        note("refused")
    may_end.set()
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-monitor"):
            thread.join()


@scenario
def in_a_task_group() -> None:
    """The exception comes in a task of rank 0, beside one that fails as it is cancelled."""

    async def work() -> None:
        while True:
            _be_busy()
            await asyncio.sleep(0)

    async def fails_too() -> None:
        try:
            await asyncio.sleep(FOR_EVER_S)
        finally:
            raise ValueError("cancelled")

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            tasks.create_task(fails_too())

    _train(noting(), lambda: asyncio.run(both()))


@scenario
def ends_in_a_task_group() -> None:
    """Rank 0's function is to end its process, in a group with the exception."""

    async def work() -> None:
        try:
            while True:
                _be_busy()
                await asyncio.sleep(0)
        except RankShouldRestart as error:
            raise BaseExceptionGroup("both", [error, GeneratorExit()]) from None

    try:
        _train(noting(), lambda: asyncio.run(work()))
    except BaseExceptionGroup:
        note("left")


@scenario
def interrupted_as_it_begins() -> None:
    """A restart of iteration 1 is known before the function is called: what is expected of the main thread there?"""
    begin = Coordination.begin

    def begin_and_be_interrupted(self: Coordination, state: State) -> None:
        begin(self, state)
        for watch in main_thread_watch._live:  # pyright: ignore[reportPrivateUsage]
            watch.unwind()

    Coordination.begin = begin_and_be_interrupted

    @noting()
    def train() -> None:
        (watch,) = main_thread_watch._live  # pyright: ignore[reportPrivateUsage]
        note("fn", is_unwinding=watch.words[page_layout.WORD_WATCH] == page_layout.WATCH_UNWINDING)

    train()


@scenario
def aborted_from_a_thread() -> None:
    """A thread of rank 1's function requests a restart."""
    from worker_client.inprocess.monitor_thread import async_abort_main_thread

    def refused() -> None:
        try:
            async_abort_main_thread("too early, too late")
        except RuntimeError as error:
            note("refused", message=str(error))

    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0:
            Path(f"begun-{RANK}").touch()
            while len(list(Path().glob("begun-*"))) < WORLD_SIZE:
                time.sleep(0.01)
            if RANK == 1:
                threading.Thread(target=async_abort_main_thread, args=("a thread found it",)).start()
            time.sleep(FOR_EVER_S)
        return RANK

    refused()
    note("returned", value=train())
    refused()
