"""Are stdin, stdout and stderr open, and how is a line written to stderr that can neither block nor fail?

A launcher may be started with closed descriptors, with a full pipe that nobody reads, or with a full disk behind
stderr. None of these may stop a job or delay work for it.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from contextlib import suppress
from typing import TextIO

from holdfast_wire.console_line import ConsoleLine

WAIT_S = 0.5  # for a slow reader of stderr
PIPE_BYTES = 4096  # PIPE_BUF: a pipe that is ready takes this much without blocking

COLUMNS_MIN = 40  # a narrower terminal folds by itself
ERASE = "\r\x1b[K"

_line_lock = threading.Lock()
_has_line = False  # a temporary line is on the terminal
_console_line: ConsoleLine | None = None  # of stderr, once somebody else prints there


def open_missing() -> None:
    """Opens /dev/null in the place of each closed stream.

    Else the next file or socket would get its number, and code that prints would write to it.
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
        if getattr(sys, name) is None:  # for a closed descriptor, Python sets None
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open as long as we live


def say(text: str, *, wait_s: float = WAIT_S) -> bool:
    """Writes one line to stderr that has no secrets and controls no terminal.

    Returns False if it is lost. Never raises. Blocks briefly at most.
    """
    from supervisor.config.redaction import redacted_text  # Late: most commands have nothing to say.
    from supervisor.core.printable import one_line

    return write(sys.stderr, f"{one_line(redacted_text(text))}\n", wait_s=wait_s)


def write(stream: TextIO, text: str, *, wait_s: float = WAIT_S) -> bool:
    """Writes whole lines to any stream in the same way; writes directly to a stream without a descriptor."""
    erase_line()
    text = _fitted(stream, text)
    if stream is sys.stderr and _console_line is not None and _console_line.take():
        text = f"\n{text}"
    return _write(stream, text, wait_s=wait_s)


def console_line() -> ConsoleLine:
    """Returns where each process that prints on this one's streams notes whether the last line is finished."""
    global _console_line
    if _console_line is None:
        _console_line = ConsoleLine()
    return _console_line


def _fitted(stream: TextIO, text: str) -> str:
    """Folds lines at words on a terminal. A line that begins with a space is there to be copied, and stays whole."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return text
    if columns < COLUMNS_MIN or len(text) <= columns:
        return text
    import textwrap  # Late: most lines are short, or not for a terminal.

    fold = textwrap.TextWrapper(columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    lines = text.splitlines()
    return "".join(f"{each if each.startswith(' ') else fold.fill(each)}\n" for each in lines)


def draw_line(text: str) -> None:
    """Shows a temporary line on the terminal, in place of the one before. Other output erases it first."""
    global _has_line
    with _line_lock:
        _has_line = _write(sys.stderr, ERASE + text, wait_s=0.0)


def erase_line() -> None:
    global _has_line
    with _line_lock:
        if _has_line:
            _write(sys.stderr, ERASE, wait_s=0.0)
        _has_line = False


def has_line() -> bool:
    return _has_line


def _write(stream: TextIO, text: str, *, wait_s: float) -> bool:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        descriptor = -1
    try:
        if descriptor < 0:
            stream.write(text)
            stream.flush()
            return True
        return write_bytes(descriptor, text.encode(stream.encoding or "utf-8", "backslashreplace"), wait_s=wait_s)
    except (OSError, ValueError):
        return False


def write_bytes(descriptor: int, data: bytes, *, wait_s: float | None) -> bool:
    """Writes all of the data, even to a descriptor that another process has set not to block.

    Returns False if it takes nothing for `wait_s`; None: waits without limit. Raises OSError.
    """
    unsent = memoryview(data)
    at_once = len(data) if wait_s is None else PIPE_BYTES
    while unsent:
        if not _is_ready(descriptor, wait_s):
            return False
        with suppress(BlockingIOError):  # another process filled it: try again
            unsent = unsent[os.write(descriptor, unsent[:at_once]) :]
    return True


def stderr_is_terminal() -> bool:
    """Returns whether stderr is a terminal that can erase a line."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False


def stdin_is_terminal() -> bool:
    """Returns whether somebody may type at this process."""
    try:
        return os.isatty(0)
    except OSError:  # closed
        return False


def stdin_has_data() -> bool:
    """Returns whether stdin is a file or pipe with data that is meant for this command.

    Batch systems leave an empty pipe open. A shell may read its commands from a file, which it has begun to read then,
    or from a pipe, which it shares with this command.
    """
    import fcntl  # Late: a private supervisor's job has its stdin.
    import termios

    try:
        found = os.fstat(0)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > 0 and os.lseek(0, 0, os.SEEK_CUR) == 0
        if not stat.S_ISFIFO(found.st_mode) or os.path.samestat(found, os.stat(f"/proc/{os.getppid()}/fd/0")):
            return False
        return any(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))
    except OSError:
        return False


def _is_ready(descriptor: int, wait_s: float | None) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(None if wait_s is None else wait_s * 1000))


def stdout_is_broken() -> str:
    """Returns why stdout takes no more output, "" if it does. Drops the buffered output in that case."""
    return _why_broken(sys.stdout)


def settle() -> None:
    """Lets the exit code be the command's own: Python's is 120 if it can't flush a stream at the end."""
    _why_broken(sys.stdout)
    _why_broken(sys.stderr)


def _why_broken(stream: TextIO) -> str:
    try:
        stream.flush()
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            # Python flushes once more at exit; that must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), stream.fileno())
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ""
