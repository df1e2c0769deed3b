"""Which events of their leaders do other nodes keep, so that a job's history outlives the loss of a leader?

A leader answers the news of a few nodes with its own events. They record them, and tell the next leader. Every node
tells its own events itself, so the next leader has the whole history, as far as anybody is left who knows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from supervisor.engine.unsent_events import KEPT_EVENTS_MAX, UnsentOfJob
from supervisor.ports.questions import NodeEvents, TellUpdate
from supervisor.ports.reports import RecordedEvent

KEEPERS_MAX = 8  # nodes that keep their leader's events
AT_ONCE_MAX = 250
AT_ONCE_CHARACTERS = 100_000  # of events sent together; the rest has to wait
DETAILS_CHARACTERS_MAX = 50_000  # of one event; longer details stay in its node's journal


def next_of(kept: Iterable[RecordedEvent], *, after: int) -> tuple[RecordedEvent, ...]:
    """Returns the oldest events after that one, as many as one message holds."""
    chosen: list[RecordedEvent] = []
    characters = 0
    for event in kept:
        if event.sequence <= after:
            continue
        size = len(event.reason) + sum(len(key) + len(value) for key, value in event.details)
        if size > DETAILS_CHARACTERS_MAX:
            details = (("left_out", f"{len(event.details)} details, which the journal of node {event.node} has"),)
            event = msgspec.structs.replace(event, details=details)
            size = len(event.reason)
        characters += size
        if chosen and (characters > AT_ONCE_CHARACTERS or len(chosen) == AT_ONCE_MAX):
            break
        chosen.append(event)
    return tuple(chosen)


def own_next(kept: UnsentOfJob, own: NodeEvents, told: TellUpdate) -> NodeEvents:
    """Returns the events of this leader, `own`, that follow those which the node has by its own word."""
    through = told.leader_through if told.leader_submitted_at_ns == own.submitted_at_ns else 0
    return _part(own, kept.events, through)


def keep(kept: UnsentOfJob, told: NodeEvents) -> None:
    """Keeps what a leader has told of itself. A leader that is new here is owed the events of the others."""
    life = told.node, told.submitted_at_ns
    if life != kept.leader:
        kept.leader = life
        kept.owed = deque(part for other in kept.heard if other != life for part in _parts(other, kept.heard[other]))
    known = kept.heard.setdefault(life, deque(maxlen=KEPT_EVENTS_MAX))
    last = known[-1].sequence if known else 0
    known.extend(event for event in told.events if event.sequence > last)


def has_through(kept: UnsentOfJob) -> tuple[int, int]:
    """Returns the submission of the leader heard last, and its newest event that is kept here."""
    known = kept.heard.get(kept.leader)
    return kept.leader[1], known[-1].sequence if known else 0


def _parts(life: tuple[str, int], known: deque[RecordedEvent]) -> Iterator[NodeEvents]:
    part = _part(NodeEvents(*life), known, 0)
    while part.events:
        yield part
        part = _part(NodeEvents(*life), known, part.events[-1].sequence)


def _part(whose: NodeEvents, known: deque[RecordedEvent], through: int) -> NodeEvents:
    gone_through = known[0].sequence - 1 if known else 0
    after = through if gone_through < through else 0
    return msgspec.structs.replace(whose, events=next_of(known, after=through), gone_through=gone_through, after=after)
