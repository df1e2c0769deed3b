"""What does Ctrl-C do to a command that asks a supervisor?"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT


@contextmanager
def ends_at_once() -> Generator[None]:
    """It ends the process where it stands: an exception within gRPC leaves a channel behind that can't be closed."""
    is_ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, _end) if is_ours else None
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    with suppress(Exception):  # What is half written, or can't be, is no loss now.
        sys.stdout.flush()
    os._exit(INTERRUPTED)
