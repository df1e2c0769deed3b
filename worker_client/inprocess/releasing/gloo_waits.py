"""How is a rank released that waits inside Gloo: in a collective that hangs, or for a peer that will never connect?

Gloo has no way to abort. So the abort shuts down the connections of Gloo's process groups: each pending operation
then fails at once, here and on the peers. At that moment, the kernel tells which connections are Gloo's: each of Gloo's
devices has a thread that waits in its own epoll instance, and /proc shows which thread waits in which instance and what
it watches. Sockets of TCPStore, event loops, gRPC and other threads are never touched; neither are listening sockets,
since that would end the process.

While a group is being created, each pair of ranks is one connection. Its passive side waits without a socket of its own
that could be closed; there is only Gloo's listener. So we connect in the peer's place. A connection to the listener
names its pair by a number, and all numbers are small: we connect once for each number and hang up, which breaks the
pair.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import stat
import struct
from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

from worker_client.inprocess.releasing import foreign_sockets

CONNECT_TIMEOUT_S = 0.2  # to a listener in this very process
HANG_UP_S = 0.5  # to all listeners: the main thread may wait for it
PAIRS_MAX = 1024  # few enough not to fill the listener's backlog

_NUMBER = struct.Struct("=q")  # of a pair of ranks
_LOOP_THREAD = "gloo_tcp_loop"  # the name of a device's thread in newer versions of torch
_EPOLL_LINK = "anon_inode:[eventpoll]"
# The first argument of these system calls is the epoll instance: epoll_wait (none on arm), epoll_pwait, epoll_pwait2.
_WAIT_CALLS = {"x86_64": {232, 281, 441}, "aarch64": {22, 441}}.get(platform.machine(), set[int]())
_WATCHED = re.compile(r"^tfd:\s*(\d+)\s+events:\s*[0-9a-f]+\s+data:\s*([0-9a-f]+).*\bino:([0-9a-f]+)", re.MULTILINE)
_FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
_EPOLLS_MAX = 4096  # no training process has more, and the abort must end soon


class _Watched(NamedTuple):
    """One line of an epoll instance: a watched descriptor, with its inode at registration."""

    descriptor: int
    data: int
    inode: int


def shut_down_gloo_connections() -> int:
    """Ends every connection of Gloo's process groups in this process, also while it is established; returns how many.

    Never blocks and never raises. Returns 0 if there is no Gloo group, or if /proc does not show it.
    """
    count = 0
    for epoll in _gloo_epolls():
        count += sum(map(_shut_down, _watched_by(epoll)))
    return count


def gloo_listeners() -> list[tuple[int, int]]:
    """Returns (descriptor, inode) of each socket on which one of Gloo's devices accepts other ranks."""
    watched = (entry for epoll in _gloo_epolls() for entry in _watched_by(epoll))
    return [(entry.descriptor, entry.inode) for entry in watched if _is_listener(entry)]


class HangUps:
    """Breaks the pairs that Gloo's listeners still await, over several calls if one has too little time."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}  # by inode: the next number; the listener that was tried last is the last

    def hang_up(self, listeners: Iterable[tuple[int, int]], pairs: int) -> None:
        """Goes on with the first `pairs` pairs of each listener (descriptor, inode), once each. Never raises.

        Blocks for HANG_UP_S at most. One that does not take a number has to wait for the next call, which begins with
        those that had no turn yet, or whose turn is longest ago.
        """
        until_s = monotonic() + HANG_UP_S
        tried = {inode: at for at, inode in enumerate(self._next)}
        for descriptor, inode in sorted(listeners, key=lambda each: tried.get(each[1], -1)):
            if monotonic() >= until_s:
                return
            number = self._next.pop(inode, 0)
            if number < min(pairs, PAIRS_MAX):
                with foreign_sockets.borrowed(descriptor, inode) as own:
                    listens = own is not None and foreign_sockets.listens(own)
                    address = foreign_sockets.own_address(own) if own is not None and listens else None
                while number < min(pairs, PAIRS_MAX) and address and _break_pair(address, number, until_s):
                    number += 1
            self._next[inode] = number


def _break_pair(address: tuple[str, int], number: int, until_s: float) -> bool:
    left_s = until_s - monotonic()
    if left_s <= 0.0:
        return False
    try:
        with socket.create_connection(address, min(left_s, CONNECT_TIMEOUT_S)) as connection:
            connection.sendall(_NUMBER.pack(number))
    except OSError:  # too slow under load, or no descriptor is left
        return False
    return True


def _gloo_epolls() -> list[int]:
    """Returns Gloo's epoll instances: those in which Gloo's thread waits. If no thread has that name (older torch), or
    the thread is busy now, judges by an instance's features, except instances in which another named thread waits.
    """
    waiters, has_named_loop = _epoll_waiters()
    found: list[int] = []
    for descriptor in _epoll_descriptors():
        waiter = waiters.get(descriptor)
        if waiter == _LOOP_THREAD or ((waiter is None or not has_named_loop) and _is_of_gloos_make(descriptor)):
            found.append(descriptor)
    return found


def _epoll_waiters() -> tuple[dict[int, str], bool]:
    """Returns epoll descriptor → name of the thread that waits in it, and whether any thread has Gloo's name."""
    waiters: dict[int, str] = {}
    has_named_loop = False
    for thread in _numbers("/proc/self/task"):
        name = _read(f"/proc/self/task/{thread}/comm").rstrip("\n")
        has_named_loop |= name == _LOOP_THREAD
        call = _read(f"/proc/self/task/{thread}/syscall").split()
        if len(call) > 1 and call[0].isdigit() and int(call[0]) in _WAIT_CALLS:
            waiters[int(call[1], 16)] = name
    return waiters, has_named_loop


def _epoll_descriptors() -> list[int]:
    found: list[int] = []
    for descriptor in _numbers("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{descriptor}") == _EPOLL_LINK:
                found.append(descriptor)
    return found[:_EPOLLS_MAX]


def _is_of_gloos_make(epoll: int) -> bool:
    """Returns whether exec keeps it, it stores pointers, and it watches one wake-up pipe and a listening TCP socket.

    Python's, libuv's and gRPC's instances are not inherited; the first two store the descriptor, not a pointer.
    """
    flags = _FLAGS.search(_read(f"/proc/self/fdinfo/{epoll}"))
    if flags is None or int(flags[1], 8) & os.O_CLOEXEC:
        return False
    watched = _watched_by(epoll)
    if any(entry.data == entry.descriptor for entry in watched):
        return False
    pipes = [entry for entry in watched if _is_pipe(entry.descriptor)]
    return len(pipes) == 1 and any(map(_is_listener, watched))


def _watched_by(epoll: int) -> list[_Watched]:
    lines = _WATCHED.findall(_read(f"/proc/self/fdinfo/{epoll}"))
    return [_Watched(int(descriptor), int(data, 16), int(inode, 16)) for descriptor, data, inode in lines]


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _is_listener(entry: _Watched) -> bool:
    with foreign_sockets.borrowed(entry.descriptor, entry.inode) as own:
        return own is not None and foreign_sockets.listens(own)


def _shut_down(entry: _Watched) -> bool:
    with foreign_sockets.borrowed(entry.descriptor, entry.inode) as own:
        if own is None or foreign_sockets.listens(own):
            return False
        if foreign_sockets.peer(own) is None and not foreign_sockets.connects(own):
            return False
        return foreign_sockets.shut_down(own)


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
