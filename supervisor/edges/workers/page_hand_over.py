"""Which progress pages of ranks go from one supervisor to the next, through a job's spawner?

A page is made for a rank's connection (channel/), waits here for the next message to the spawner (spawner/), and comes
back from there to another supervisor. The holder of a page owns its descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

PAGES_AT_ONCE = 128  # in one message to a spawner; the kernel takes 253 descriptors


class PageNote(msgspec.Struct, frozen=True):
    """What a supervisor must know to read a page, and to ask its rank for stacks, without the rank's connection."""

    made_at_ns: int
    sections: tuple[str, ...]  # the names of the slots
    pid: int  # 0: unknown
    stacks_signal: int
    stacks_fd: int


class OfferedPage(msgspec.Struct, frozen=True):
    """A page for a spawner."""

    cycle: int
    local_rank: int
    fd: int
    note: PageNote

    @property
    def inode(self) -> int:
        """Says which page this is, for the process that gets the descriptor together with others."""
        return os.fstat(self.fd).st_ino


class ReturnedPage(msgspec.Struct, frozen=True):
    """A page from a spawner. `absences`: when there was no supervisor, on CLOCK_MONOTONIC; 0: until now."""

    fd: int
    note: PageNote
    absences: tuple[tuple[int, int], ...]

    def drop(self) -> None:
        """Closes it: nobody needs it."""
        os.close(self.fd)


class PageOffers:
    """The pages of all jobs that no spawner has yet. Without a spawner that takes them, there are none."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[tuple[int, int], OfferedPage]] = {}

    def accept(self, job_id: str) -> None:
        """Notes that a spawner of the job holds pages."""
        self._waiting.setdefault(job_id, {})

    def end(self, job_id: str) -> None:
        """Drops what waits: the job has no spawner any more."""
        for page in self._waiting.pop(job_id, {}).values():
            os.close(page.fd)

    def offer(self, job_id: str, cycle: int, local_rank: int, fd: int, note: PageNote) -> None:
        """Offers a page; `fd` stays the caller's. Raises OSError if there are too few descriptors."""
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            self.withdraw(job_id, cycle, local_rank)
            waiting[cycle, local_rank] = OfferedPage(cycle, local_rank, os.dup(fd), note)

    def withdraw(self, job_id: str, cycle: int, local_rank: int) -> None:
        """Drops the rank's page if no spawner has it yet."""
        page = self._waiting.get(job_id, {}).pop((cycle, local_rank), None)
        if page is not None:
            os.close(page.fd)

    def take(self, job_id: str, is_worker: Callable[[int, int], bool]) -> list[OfferedPage]:
        """Returns waiting pages of the workers of one spawner. The caller owns their descriptors."""
        waiting = self._waiting.get(job_id)
        if not waiting:
            return []
        keys = [key for key in waiting if is_worker(*key)][:PAGES_AT_ONCE]
        return [waiting.pop(key) for key in keys]


def note_text(note: PageNote) -> str:
    return msgspec.json.encode(note).decode()


def note_from(text: str) -> PageNote | None:
    """Returns None if another version wrote it."""
    try:
        return msgspec.json.decode(text, type=PageNote)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
