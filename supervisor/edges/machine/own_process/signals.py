"""Which signal has this supervisor received?"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import FrameType

import anyio
from anyio.abc import TaskStatus

from supervisor.edges.machine.own_process.ignored_signals import numbers
from supervisor.errors import ConfigurationError


async def receive(
    names: Sequence[str],
    on_signal: Callable[[int], None],
    *,
    is_ignored_then: Callable[[], bool] | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Calls `on_signal` with the number of each signal until cancelled; then restores the old handlers.

    `is_ignored_then`: asked at that moment whether the signals are ignored from then on instead.
    Raises ConfigurationError for a name that is not a signal, or one that can't be handled (SIGKILL, SIGSTOP).
    """
    wanted = numbers(names)
    if not wanted:
        task_status.started()
        await anyio.Event().wait()
    with ExitStack() as handled:
        handled.callback(_restore, {number: signal.getsignal(number) for number in wanted}, is_ignored_then)
        try:
            arriving = handled.enter_context(anyio.open_signal_receiver(*wanted))
        except (OSError, RuntimeError, ValueError) as error:
            listed = ", ".join(number.name for number in wanted)
            raise ConfigurationError(
                f"cannot handle the signals {listed}: {error}; leave out what can't be handled"
            ) from error
        task_status.started()
        async for number in arriving:
            on_signal(int(number))


def _restore(
    handlings: Mapping[signal.Signals, Callable[[int, FrameType | None], object] | int | None],
    is_ignored_then: Callable[[], bool] | None,
) -> None:
    """Restores the handlers; the event loop would set the default, even if a signal was ignored, as under nohup."""
    if is_ignored_then is not None and is_ignored_then():
        handlings = dict.fromkeys(handlings, signal.SIG_IGN)
    for number, handling in handlings.items():
        if handling is not None and signal.getsignal(number) is not handling:
            signal.signal(number, handling)
