"""What does one spawner keep for the next supervisor, and which of its reports does that include?"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping

from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX

from supervisor.edges.machine import records

STATE = "state"  # the others are useless without this text
OTHER_BYTES = 4096  # of a frame with one text, beside that
WORKERS = "workers"  # the workers that have not ended, as the spawner itself keeps them

_log = logging.getLogger("holdfast.jobs")


class SpawnerKeptState:
    """The keeping of one link."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}  # as the spawner has them
        self._changed: dict[str, str] = {}  # those that it should have otherwise
        self._taken = 0  # reports that the texts include
        self._noted = 0  # reports that were passed on
        self._workers: dict[tuple[int, int], int] = {}  # cycle, local rank -> pid
        self._too_long_told = False
        self._has_state = True  # unless it was withdrawn

    @classmethod
    def of(cls, texts: Mapping[str, str], *, taken: int) -> SpawnerKeptState:
        """Restores what the previous supervisor left."""
        self = cls()
        self._kept = {name: text for name, text in texts.items() if text}
        self._taken = self._noted = taken
        with contextlib.suppress(records.RecordError):
            for cycle, local_rank, pid in records.decoded(texts.get(WORKERS, "[]"), list[tuple[int, int, records.Pid]]):
                self._workers[cycle, local_rank] = pid
        return self

    def workers(self) -> Iterator[tuple[int, int, int]]:
        """Yields cycle, local rank and pid."""
        return ((cycle, local_rank, pid) for (cycle, local_rank), pid in self._workers.items())

    def has_worker(self, cycle: int, local_rank: int) -> bool:
        return (cycle, local_rank) in self._workers

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

    def turn(self, texts: Mapping[str, str], *, are_all: bool = False) -> None:
        """Sets texts that include the effects of all reports so far. An empty one is removed.

        Others stay, unless these `are_all`: a previous supervisor may have left more.
        """
        self._taken = self._noted
        if are_all:
            texts = dict.fromkeys(self._kept, "") | dict(texts)
        self.change({**texts, WORKERS: json.dumps([*self.workers()], separators=(",", ":"))})

    def change(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            if self._kept.get(name, "") == text:
                self._changed.pop(name, None)
            else:
                self._changed[name] = text

    def confirmation(self, send: Callable[[wire.Keep], None]) -> Callable[[], None]:
        """Returns the function that lets the spawner forget all reports so far, once another one keeps their effects.

        The texts here stay as they are.
        """
        noted = self._noted

        def confirm() -> None:
            if self._taken < noted:
                self._taken = noted
                send(wire.Keep({}, noted))

        return confirm

    def message(self, orders: tuple[wire.Order, ...]) -> tuple[wire.Keep | None, tuple[wire.Order, ...]]:
        """Returns the message to send, None if nothing changed; and the orders that do not fit in its frame."""
        changed = self._changed
        if not changed and not orders:
            return None, ()
        message = wire.Keep(changed, self._taken, orders)
        if orders and _are_too_long(orders):
            return self.message(())[0], orders
        if any(map(_is_too_long, changed.values())):
            if not self._too_long_told:
                self._too_long_told = True
                _log.warning("the record for the next supervisor is too long: it can't take over this job")
            is_told, self._has_state = not self._has_state, False
            return None if is_told else wire.Keep({STATE: ""}, self._taken), orders  # no text is better than an old one
        self._changed, self._has_state = {}, True
        self._kept |= changed
        for name in [name for name, text in changed.items() if not text]:
            del self._kept[name]
        return message, ()


def _are_too_long(orders: tuple[wire.Order, ...]) -> bool:
    """Returns whether no frame holds the orders; encodes them only if it may be."""
    if 4096 * sum(len(each.workers) for each in orders if isinstance(each, wire.Spawn)) < SPAWNER_FRAME_BYTES_MAX // 8:
        return False
    return len(wire.encode(wire.Keep({}, 0, orders))) > SPAWNER_FRAME_BYTES_MAX


def _is_too_long(text: str) -> bool:
    return len(text) > SPAWNER_FRAME_BYTES_MAX // 8 and len(json.dumps(text)) > SPAWNER_FRAME_BYTES_MAX - OTHER_BYTES
