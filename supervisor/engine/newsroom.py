"""How does the leader of a job learn what happens on its other nodes, without anybody waiting for it?

A node tells its new events and its own part together, the next ones only once the leader has confirmed the last. So a
leader that is slow or away costs nothing here, and events keep their order; the oldest of too many are given up.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import anyio
import msgspec

from supervisor.errors import HoldfastError
from supervisor.pauses import pause
from supervisor.ports import Clock, RecordedEvent
from supervisor.questions import LEADER, Colleagues, NewsTaken, Part, TellNews

KEPT_EVENTS_MAX = 4096  # of a job, also those that were told: a new leader may want them
AT_ONCE_MAX = 250
AT_ONCE_CHARACTERS = 100_000  # of the events that are told together; beyond it the rest has to wait
DETAILS_CHARACTERS_MAX = 50_000  # of one event; longer ones stay in this node's journal
PACE_S = 0.2  # between two messages of one node, where the leader wants no longer pause
PACE_MAX_S = 60.0
ANSWER_TIMEOUT_S = 3.0
AGAIN_S = 1.0  # after one that was not confirmed

_log = logging.getLogger("holdfast")


class _Kept(msgspec.Struct):
    events: deque[RecordedEvent] = msgspec.field(default_factory=lambda: deque[RecordedEvent](maxlen=KEPT_EVENTS_MAX))
    told: int = 0  # the leader has all events up to this one


class Newsroom:
    """`note` and `changed` never block and never raise."""

    def __init__(
        self,
        *,
        colleagues: Colleagues,
        own_part: Callable[[str], Part | None],
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        """`jitter` is a random value from 0 to 1."""
        self._colleagues = colleagues
        self._own_part = own_part
        self._clock = clock
        self._jitter = jitter
        self._pace_s = 0.0  # as the leader wants it
        self._jobs: dict[str, _Kept] = {}
        self._untold: dict[str, None] = {}
        self._wakes = anyio.Event()

    def note(self, event: RecordedEvent) -> None:
        if event.sequence == 1:
            self._jobs.pop(event.job_id, None)  # The id is used again.
        self._jobs.setdefault(event.job_id, _Kept()).events.append(event)
        self.changed(event.job_id)

    def changed(self, job_id: str) -> None:
        if not self._colleagues.leads:
            self._untold[job_id] = None
            self._wakes.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wakes.wait()
            if self._pace_s > PACE_S:
                spread_s = self._pace_s * self._jitter()
                await pause(spread_s, why="a change concerns many nodes at once, whose news must not come together")
            self._wakes = anyio.Event()
            untold, self._untold = self._untold, {}
            pause_s = PACE_S
            for job_id in untold:
                try:
                    is_told = await self._tell(job_id)
                except Exception:  # noqa: BLE001 - the bulkhead: what the leader does not learn must not end the job
                    _log.warning("the news of job %s cannot be told to its leader", job_id, exc_info=True)
                    is_told = False
                if not is_told:
                    pause_s = AGAIN_S
            await pause(max(pause_s, self._pace_s), why="what happens meanwhile is told together")

    async def _tell(self, job_id: str) -> bool:
        """False: it has to be told again later."""
        part = self._own_part(job_id)
        if part is None or self._colleagues.leads:
            return True
        kept = self._jobs.setdefault(job_id, _Kept())
        gone_through = kept.events[0].sequence - 1 if kept.events else 0
        news = TellNews(part.part, part.node, _next_events(kept), gone_through, self._clock.unix_ns())
        try:
            answer = await self._colleagues.ask(job_id, LEADER, news, timeout_s=ANSWER_TIMEOUT_S)
        except HoldfastError:
            self.changed(job_id)
            return False
        if isinstance(answer, NewsTaken):
            kept.told = answer.through
            self._pace_s = min(answer.pace_s, PACE_MAX_S)
            if kept.events and kept.told < kept.events[-1].sequence:
                self.changed(job_id)
        return True


def _next_events(kept: _Kept) -> tuple[RecordedEvent, ...]:
    """The oldest that were not told, as many as one message holds."""
    chosen: list[RecordedEvent] = []
    characters = 0
    for event in kept.events:
        if event.sequence <= kept.told:
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
