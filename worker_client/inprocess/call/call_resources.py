"""What has a call taken from its process, and in which order is it released?"""

from __future__ import annotations

from collections.abc import Callable

from worker_client.guarded_log import GuardedLog

log = GuardedLog("holdfast.inprocess")


class CallResources:
    """A list of what was taken, each with its name and the function that releases it. Belongs to the main thread."""

    def __init__(self) -> None:
        self._held: list[tuple[str, Callable[[], object]]] = []

    @property
    def names(self) -> list[str]:
        """Returns the names of items not yet released, the oldest first."""
        return [what for what, _ in self._held]

    def note(self, what: str, release: Callable[[], object]) -> None:
        """Notes that `what` is taken from now on."""
        self._held.append((what, release))

    def release(self) -> None:
        """Releases all items, the newest first, each once, despite errors; raises the first error at the end."""
        first: BaseException | None = None
        while self._held:
            what, release = self._held.pop()
            try:
                release()
            except BaseException as error:  # noqa: BLE001  # the rest has to be released, too; raised below
                log.warning("cannot release %s: %s", what, error)
                first = error if first is None else first
        if first is not None:
            raise first
