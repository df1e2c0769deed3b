"""Are stdin, stdout and stderr there, and how does a line reach stderr that can neither block nor fail?

A launcher is started with closed descriptors, with a full pipe that nobody reads, with a full disk behind stderr. None
of these may stop a job, or hold up what has to be done for it.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

WAIT_S = 0.5  # for a reader of stderr that is slow
PIPE_BYTES = 4096  # PIPE_BUF: a pipe that is ready takes so much without blocking

before_writing: Callable[[], None] | None = None  # makes room where a line stands that will be taken back


def open_missing() -> None:
    """Puts /dev/null in the place of each that is closed.

    Else the next file or socket would get its number, and be written to by whatever prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != number:
                    os.dup2(opened, number)
                    os.close(opened)
                os.set_inheritable(number, True)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:  # Python's answer to a closed descriptor
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open as long as we live


def say(text: str, *, wait_s: float = WAIT_S) -> bool:
    """Writes a line to stderr. False: it could not be written, and is lost. Never raises, never blocks for long."""
    return write(sys.stderr, f"{text}\n", wait_s=wait_s)


def write(stream: TextIO, text: str, *, wait_s: float = WAIT_S) -> bool:
    """The same for any stream and text; without a descriptor, the stream is written to as it is."""
    if before_writing is not None:
        before_writing()
    return write_raw(stream, text, wait_s=wait_s)


def write_raw(stream: TextIO, text: str, *, wait_s: float = WAIT_S) -> bool:
    """The same, past `before_writing`."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        descriptor = -1
    try:
        if descriptor < 0:
            stream.write(text)
            stream.flush()
            return True
        data = memoryview(text.encode(stream.encoding or "utf-8", "backslashreplace"))
        while data:
            if not _is_ready(descriptor, wait_s):
                return False
            with suppress(BlockingIOError):  # somebody else filled it: asked again
                data = data[os.write(descriptor, data[:PIPE_BYTES]) :]
    except (OSError, ValueError):
        return False
    return True


def stderr_is_terminal() -> bool:
    """Whether somebody looks, on a terminal that can take a line back."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # it was closed
        return False


def _is_ready(descriptor: int, wait_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(wait_s * 1000))


def stdout_is_broken() -> str:
    """Why stdout takes nothing more, "" if it does. What waits to be written is then given up."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            # Python flushes once more at exit; let that go nowhere instead of failing again.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ""
