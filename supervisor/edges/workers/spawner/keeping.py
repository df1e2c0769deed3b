"""What does one spawner keep for the next supervisor, and which of its reports does that include?"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping

from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX

STATE = "state"  # the others are useless without this text
WORKERS = "workers"  # the workers that have not ended, as the spawner itself keeps them

_log = logging.getLogger("holdfast.jobs")


class Keeping:
    """The keeping of one link."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}  # as the spawner has them
        self._texts: dict[str, str] = {}  # as it should have them
        self._taken = 0  # reports that the texts include
        self._noted = 0  # reports that were passed on
        self._workers: dict[tuple[int, int], int] = {}  # cycle, local rank -> pid
        self._too_long_told = False

    @classmethod
    def of(cls, texts: Mapping[str, str], *, taken: int) -> Keeping:
        """Restores what the previous supervisor left."""
        self = cls()
        self._kept, self._texts = dict(texts), dict(texts)
        self._taken = self._noted = taken
        for cycle, local_rank, pid in json.loads(texts.get(WORKERS, "[]")):
            self._workers[cycle, local_rank] = pid
        return self

    def workers(self) -> Iterator[tuple[int, int, int]]:
        """Yields cycle, local rank and pid."""
        return ((cycle, local_rank, pid) for (cycle, local_rank), pid in self._workers.items())

    def note(self, message: wire.Message) -> None:
        """Notes that a report was passed on; the next turn's texts include its effects."""
        self._noted += 1
        match message:
            case wire.Spawned(cycle, local_rank, pid):
                self._workers[cycle, local_rank] = pid
            case wire.Exited(cycle, local_rank):
                self._workers.pop((cycle, local_rank), None)
            case _:
                pass

    def turn(self, texts: Mapping[str, str]) -> None:
        """Sets texts that include the effects of all reports so far."""
        self._taken = self._noted
        self.change({**texts, WORKERS: json.dumps([*self.workers()], separators=(",", ":"))})

    def change(self, texts: Mapping[str, str]) -> None:
        self._texts |= texts

    def message(self, orders: tuple[wire.Order, ...]) -> tuple[wire.Keep | None, tuple[wire.Order, ...]]:
        """Returns the message to send, None if nothing changed; and the orders that do not fit in its frame."""
        changed = {name: text for name, text in self._texts.items() if self._kept.get(name) != text}
        if not changed and not orders:
            return None, ()
        message = wire.Keep(changed, self._taken, orders)
        if _too_long(message) and orders:
            return self.message(())[0], orders
        if _too_long(message):
            if not self._too_long_told:
                self._too_long_told = True
                _log.warning("the record for the next supervisor is too long: it can't take over this job")
            changed = {STATE: ""}  # no text is better than an old one
            message = wire.Keep(changed, self._taken)
        self._kept |= changed
        return message, ()


def _too_long(message: wire.Keep) -> bool:
    """Returns whether the frame is too long; encodes it only if it may be."""
    texts = sum(map(len, message.texts.values()))
    if texts + 4096 * sum(len(each.workers) for each in message.orders if isinstance(each, wire.Spawn)) < (
        SPAWNER_FRAME_BYTES_MAX // 8
    ):
        return False
    return len(wire.encode(message)) > SPAWNER_FRAME_BYTES_MAX
