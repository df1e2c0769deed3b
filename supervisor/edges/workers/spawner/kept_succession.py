"""Which of a job's spawners has which cycle, as they keep it for the next supervisor, and is none of them missing?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from holdfast_wire import spawner_link as wire

from supervisor.edges.machine import records
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, protocol_fault

SUCCESSION = "succession"  # the text that says which spawner of a job has which cycle
SUCCESSOR = "successor"  # the text with the pid of the spawner that replaces this one: SUCCESSION may be older


class Succession(msgspec.Struct, frozen=True):
    """Which spawner of a job has which cycle."""

    current: int  # the spawner that gets the next cycle
    owners: dict[int, int]  # cycle with something left -> pid
    newest_cycle: int
    is_bare: bool
    is_ending: bool
    held: tuple[str, ...]  # orders that wait for a successor
    turns: int  # in which something was kept
    is_unable: bool = False  # to load what the current one has learned
    ahead: tuple[int, ...] = ()  # of the cycles with something left: those that are only prepared

    @property
    def needed(self) -> set[int]:
        """The spawners that have a cycle, and the one that gets the next one."""
        return {self.current, *self.owners.values()}

    def as_text(self) -> str:
        return msgspec.json.encode(self).decode()

    def held_orders(self) -> list[wire.Order]:
        return [_as_order(wire.decode(text.encode())) for text in self.held]


def _as_order(message: wire.Message) -> wire.Order:
    assert isinstance(message, wire.PrepareStore | wire.ForkAhead | wire.Spawn)
    return message


class IncompleteError(Exception):
    """Raised if a spawner on which a job relies is missing, or of no use here."""


def succession(texts: Mapping[str, str]) -> Succession | None:
    """Decodes it. Returns None if nothing was kept or it is unreadable."""
    try:
        return records.decoded(texts[SUCCESSION], Succession)
    except (KeyError, records.RecordError):
        return None


def turns(texts: Mapping[str, str]) -> int:
    """Returns how new the texts are; -1: there are none."""
    found = succession(texts)
    return found.turns if found is not None else -1


def check_whole(found: Sequence[FoundSpawner]) -> None:
    """Raises IncompleteError if a spawner with workers, or for the next ones, is missing or speaks another protocol.

    Newest texts first.
    """
    if not found:
        raise IncompleteError("its spawner has ended while no supervisor was there")
    for each in found:
        if fault := protocol_fault(each.welcome.ready):
            raise IncompleteError(f"its spawner (pid {each.pid}) can't be taken over: {fault}")
    stood = succession(found[0].texts)
    if stood is None:
        if found[0].texts:
            raise IncompleteError("what its spawner keeps does not say which spawner has which cycle")
        return
    missing = stood.needed - {each.pid for each in found}
    if missing:
        raise IncompleteError(has_ended(*sorted(missing)))


def has_ended(*pids: int) -> str:
    """Returns why a job ends that relied on these spawners."""
    return f"its spawner (pid {', '.join(map(str, pids))}) has ended while no supervisor was there"
