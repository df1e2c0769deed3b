"""What has a call taken from its process, and in which order does it give all of that back?"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("holdfast.inprocess")


class Taken:
    """What was taken, each with its name and the function that gives it back. Belongs to the main thread."""

    def __init__(self) -> None:
        self._held: list[tuple[str, Callable[[], object]]] = []

    @property
    def names(self) -> list[str]:
        """What has not been given back, the oldest first."""
        return [what for what, _ in self._held]

    def note(self, what: str, give_back: Callable[[], object]) -> None:
        """From now on `what` is taken."""
        self._held.append((what, give_back))

    def give_back(self) -> None:
        """Gives back the newest first, each once, whatever another raises; raises the first error at the end."""
        first: BaseException | None = None
        while self._held:
            what, give_back = self._held.pop()
            try:
                give_back()
            except BaseException as error:  # noqa: BLE001  # the rest has to be given back, too; raised below
                log.warning("cannot give back %s: %s", what, error)
                first = error if first is None else first
        if first is not None:
            raise first
