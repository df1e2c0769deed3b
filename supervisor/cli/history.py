"""What do this user's journals say, if their disk answers?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from supervisor.edges.machine.folders import state_dir
from supervisor.edges.machine.journal.timed_reads import TimedReads

if TYPE_CHECKING:
    from supervisor.edges.machine.journal.journal_reader import JournalReader

Answer = TypeVar("Answer")
_READS = TimedReads(stuck_max=1)  # of this process: a view that refreshes does not wait again for the same disk


class History:
    """The journals in a state directory, `explicit` or that of `state_dir.find`, and in those that belong to it."""

    def __init__(self, explicit: str | None) -> None:
        self._explicit = explicit

    @property
    def folder(self) -> Path:
        return state_dir.find(self._explicit)

    def read(self, ask: Callable[[JournalReader], Answer]) -> Answer:
        """Returns what `ask` finds. Raises HoldfastError for an unreadable journal and a disk that does not answer."""
        from supervisor.edges.machine.journal.journal_reader import open_reader

        def read() -> Answer:
            with open_reader(*state_dir.places(self._explicit)) as reader:
                return ask(reader)

        return _READS.read(read, place=self.folder)
