"""Which ranks' progress pages does this spawner hold for a returning supervisor?

A rank that holds the GIL can't connect to that supervisor, which has only this page of it. A page costs a descriptor,
and three quarters of those may go to pages at most. Nothing here reads a page.
"""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Sequence

from holdfast_wire.spawner_link import HeldPages, HoldPages

from .supervisor_link import Link

PAGES_AT_ONCE = 128  # in one message, of which the kernel takes 253 descriptors
ABSENCES_MAX = 64  # if there are more, the oldest count as silence of the ranks that have lasted through all of them
_UNCLAIMED_MAX = 2 * PAGES_AT_ONCE


class Pages:
    """The pages of a job's running workers."""

    def __init__(self) -> None:
        # Descriptor, inode and note, by cycle and local rank.
        self._held: dict[tuple[int, int], tuple[int, int, str]] = {}
        self._unclaimed: dict[int, int] = {}  # inode -> descriptor that has arrived before its message
        self._absences: deque[tuple[int, int]] = deque(maxlen=ABSENCES_MAX)
        self._lost_ns = 0  # since when there is no supervisor
        self._owed: list[tuple[int, int]] = []  # pages that are still to be handed over

    # --- from a supervisor -----------------------------------------------------------------------------------------

    def hold(self, message: HoldPages, arrived: list[int]) -> None:
        """Takes all descriptors out of `arrived`. The inode says which one is whose, whatever the order."""
        while arrived:
            fd = arrived.pop(0)
            inode = os.fstat(fd).st_ino
            _close(self._unclaimed.pop(inode, -1))
            self._unclaimed[inode] = fd
        for cycle, local_rank, inode, note in message.pages:
            self.drop(cycle, local_rank)
            fd = self._unclaimed.pop(inode, -1)
            if 0 <= fd < _descriptors_max():  # the kernel gives out the lowest free number
                self._held[cycle, local_rank] = fd, inode, note
            else:
                _close(fd)
        while len(self._unclaimed) > _UNCLAIMED_MAX:
            _close(self._unclaimed.pop(next(iter(self._unclaimed))))

    def drop(self, cycle: int, local_rank: int) -> None:
        """Drops the page of a worker that has ended, if there is one."""
        fd, _, _ = self._held.pop((cycle, local_rank), (-1, 0, ""))
        _close(fd)

    def drop_cycle(self, cycle: int) -> None:
        for key in [key for key in self._held if key[0] == cycle]:
            self.drop(*key)

    # --- to the next one -------------------------------------------------------------------------------------------

    def lose_supervisor(self, now_ns: int) -> None:
        """Notes that there is no supervisor. One that came and served nothing does not end an absence."""
        self._lost_ns = self._lost_ns or now_ns

    def be_served(self, now_ns: int) -> None:
        """Notes that a supervisor serves the job."""
        if self._lost_ns:
            self._absences.append((self._lost_ns, now_ns))
            self._lost_ns = 0

    def hand_over(self, link: Link) -> None:
        """Sends all pages, as `link` takes them. They stay here, for the supervisor after that."""
        self._owed = list(self._held)
        is_told = False

        def send() -> bool:
            nonlocal is_told
            now, rest = self._owed[:PAGES_AT_ONCE], self._owed[PAGES_AT_ONCE:]
            if is_told and not now:
                return False
            link.send_with(*self._message(now, more=bool(rest)))
            self._owed, is_told = rest, True
            return bool(rest)

        link.call_when_sent(send)

    def _message(self, keys: Sequence[tuple[int, int]], *, more: bool) -> tuple[HeldPages, list[int]]:
        held = [(*key, *self._held[key]) for key in keys if key in self._held]
        absences = (*self._absences, *([(self._lost_ns, 0)] if self._lost_ns else ()))
        pages = tuple((cycle, local_rank, inode, note) for cycle, local_rank, _, inode, note in held)
        return HeldPages(pages, absences, more=more), [fd for _, _, fd, _, _ in held]


def _descriptors_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 4 * 3 if soft != resource.RLIM_INFINITY else 1 << 30


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
