"""What ends a command early while it asks a supervisor: Ctrl-C, or the loss of the reader of its output?"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from supervisor.edges.machine.own_process import standard_streams, threads


@contextmanager
def ends_at_once(exit_code: int, *, last_words: Callable[[], str] | None = None) -> Generator[None]:
    """Ends the process on the spot: an exception within gRPC leaves a channel behind that can't be closed."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        with suppress(Exception):  # What is half written, or can't be, is not a loss now.
            sys.stdout.flush()
            if last_words is not None:
                standard_streams.say(f"holdfast: {last_words()}")
        os._exit(exit_code)

    is_ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, end) if is_ours else None
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)


def end_when_unread(exit_code: int) -> None:
    """Ends the process as soon as the reader of stdout has gone, even if there is nothing to write."""
    poller = select.poll()
    try:
        poller.register(sys.stdout.fileno(), 0)  # errors only
    except (OSError, ValueError):  # a stdout without a descriptor has no reader that could leave
        return

    def wait() -> None:
        poller.poll()
        os._exit(exit_code)

    with suppress(OSError):  # Without a thread, the next write finds out.
        threads.start(threading.Thread(target=wait, daemon=True))
