"""What is this process called, and what does the kernel do with it when its parent dies?"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_ARG_START, _ENV_START = 48, 50  # in proc_pid_stat(5); the next field is the end

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if _libc.prctl(ctypes.c_int(option), value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def adopt_orphans() -> None:
    """Makes every descendant whose parent dies a child of this process from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> None:
    """Has the kernel send `signal_number` to this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def die_with_link(link_fd: int) -> None:
    """Ends this process when the other end of the link closes, until `outlive_link`; leaves messages unread.

    The parent's death signal won't do: it comes when the thread that started this process ends, which is at once.
    """

    def look(_signal: int, _frame: object) -> None:
        with socket.socket(fileno=os.dup(link_fd)) as link:
            try:
                if link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass  # ECONNRESET: as good as the end of the stream.
        os._exit(1)

    signal.signal(signal.SIGIO, look)
    fcntl.fcntl(link_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link_fd, fcntl.F_SETFL, fcntl.fcntl(link_fd, fcntl.F_GETFL) | os.O_ASYNC)
    look(0, None)  # It may have been closed before.


def outlive_link(link_fd: int) -> None:
    fcntl.fcntl(link_fd, fcntl.F_SETFL, fcntl.fcntl(link_fd, fcntl.F_GETFL) & ~os.O_ASYNC)
    fcntl.fcntl(link_fd, fcntl.F_SETOWN, 0)
    signal.signal(signal.SIGIO, signal.SIG_DFL)


def set_comm(name: bytes) -> None:
    """Sets this process's name as /proc/self/comm shows it; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, name[:15])


def variables() -> dict[bytes, bytes]:
    """Returns the environment of the C library, which a library that is loaded now would read."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found: dict[bytes, bytes] = {}
    at = 0
    while entries and (entry := entries[at]) is not None:
        name, _, value = entry.partition(b"=")
        found[name] = value
        at += 1
    return found


def rename_variable(name: str, other: str) -> None:
    """Shows a variable of this process's start under another name, which is as long, to those who look from outside."""
    start, content = _memory(_ENV_START)
    at = (b"\0" + content).find(f"\0{name}=".encode())
    if at >= 0:
        ctypes.memmove(start + at, other.encode(), len(name))


def _memory(field: int) -> tuple[int, bytes]:
    """Returns the address in this field of /proc/self/stat, and the content up to the one in the next field."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = (int(each) for each in fields[field - 3 : field - 1])  # the first field here is the third
    return start, ctypes.string_at(start, end - start) if start and end > start else b""


class Title:
    """The command line and name of this process in `ps`; keeps the original ones to restore them."""

    def __init__(self) -> None:
        with open("/proc/self/comm", "rb") as file:
            self._comm = file.read().rstrip(b"\n")
        self._start, self._arguments = _memory(_ARG_START)

    def show(self, comm: str, text: str) -> None:
        """Shows `text` (cut to the length of the original command line) and `comm`."""
        set_comm(comm.encode())
        room = len(self._arguments)
        if room > 1:  # The last byte stays NUL: else the kernel would read on into the environment.
            self._write(text.encode()[: room - 1].ljust(room, b"\0"))

    def restore(self) -> None:
        """Shows the original command line and name."""
        set_comm(self._comm)
        self._write(self._arguments)

    def take_arguments(self, arguments: Sequence[str]) -> None:
        """Replaces the last arguments with these, for the script and, as far as they fit, for `ps`."""
        count = len(arguments)
        if not count or list(arguments) == sys.argv[-count:]:
            return
        sys.argv[-count:] = arguments
        sys.orig_argv[-count:] = arguments
        first = self._arguments.split(b"\0")[: -count - 1]  # After the last one comes a NUL, too.
        shown = b"\0".join([*first, *map(os.fsencode, arguments), b""])
        if len(shown) <= len(self._arguments):
            self._write(shown.ljust(len(self._arguments), b"\0"))

    def _write(self, content: bytes) -> None:
        if content:
            ctypes.memmove(self._start, content, len(content))
