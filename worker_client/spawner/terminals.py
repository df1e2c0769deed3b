"""How does a worker get a terminal while its output is kept as well?

It gets its own terminal, similar to the one that people watch: its output is passed on and kept. Both of its streams
share one, so the output stays in the order in which it was printed.
"""

from __future__ import annotations

import fcntl
import os
import termios
from contextlib import suppress

_GET_PEER = 0x5441  # TIOCGPTPEER: the other side of a terminal, without its name in /dev/pts
_SIZE_BYTES = 8


def make_like(console_fd: int) -> tuple[int, int]:
    """Returns a new terminal: our side, which does not block, and the worker's. Raises OSError if none is available."""
    ours, theirs = os.openpty()
    try:
        # Passed-on output reaches another terminal; only that one may turn a line's end into CR LF.
        attributes = termios.tcgetattr(console_fd)
        attributes[1] &= ~termios.OPOST
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        follow_size(ours, console_fd, b"")
        os.set_blocking(ours, False)
    except (OSError, termios.error) as error:
        os.close(ours)
        os.close(theirs)
        raise OSError(*error.args) from None
    return ours, theirs


def worker_side(ours: int) -> int:
    """Returns another descriptor of the worker's side. Raises OSError."""
    return fcntl.ioctl(ours, _GET_PEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def follow_size(ours: int, console_fd: int, known: bytes) -> bytes:
    """Gives the worker's terminal the size of the one that people watch; returns it in the kernel's form."""
    with suppress(OSError):
        size = fcntl.ioctl(console_fd, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
        if size != known:
            fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
        return size
    return known
