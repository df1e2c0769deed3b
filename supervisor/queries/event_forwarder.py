"""How does the leader of a job learn what happens on its other nodes, without anybody waiting for it?

A node sends new events together with its own part of the report, and the next ones only once the leader has confirmed
the last. So a slow or absent leader costs nothing here, and events keep their order; if there are too many, the oldest
are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from supervisor.engine import leaders_events
from supervisor.engine.unsent_events import UnsentEvents, UnsentOfJob
from supervisor.errors import HoldfastError
from supervisor.ports.edges import Clock
from supervisor.ports.questions import LEADER, NodeEvents, NodeRequests, Part, TellUpdate, UpdateTaken
from supervisor.ports.timed_waits import pause

TOGETHER_S = 0.05  # from the first event that is news: a restart is then over, or well under way
PACE_S = 0.2  # between two messages of one node, unless the leader wants a longer pause
PACE_MAX_S = 60.0
ANSWER_TIMEOUT_S = 3.0
AGAIN_S = 1.0  # after an unconfirmed message
SPREAD_LAST_S = 1.0  # of many nodes' last news

_log = logging.getLogger("holdfast")


class EventForwarder:
    """Sends events. A slow leader delays only the events of its own job."""

    def __init__(
        self,
        *,
        unsent: UnsentEvents,
        node_requests: NodeRequests,
        own_part: Callable[[str], Part | None],
        record: Callable[[str, NodeEvents], None],
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        """`record` gets the leader's own events, for this node's history. `jitter` returns a value from 0 to 1."""
        self._unsent = unsent
        self._node_requests = node_requests
        self._own_part = own_part
        self._record = record
        self._clock = clock
        self._jitter = jitter

    async def run(self) -> None:
        """Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                job_id = await self._unsent.next_changed()
                kept = self._unsent.get(job_id)
                if kept is not None and kept.last_told is not None:
                    tasks.start_soon(self._tell_last, job_id, kept, kept.last_told)
                elif not self._node_requests.leads(job_id):
                    kept = self._unsent.of(job_id)
                    kept.has_unsent = True
                    if not kept.is_served:
                        kept.is_served = True
                        tasks.start_soon(self._serve, job_id, kept)

    async def _serve(self, job_id: str, kept: UnsentOfJob) -> None:
        """Sends the events of one job until none are left."""
        while kept.has_unsent:
            await pause(TOGETHER_S, why="what follows from it in a moment is told together, and takes no time from it")
            if kept.pace_s > PACE_S:
                spread_s = kept.pace_s * self._jitter()
                await pause(spread_s, why="a change concerns many nodes at once, whose news must not come together")
            kept.has_unsent = False
            try:
                is_told = await self._tell(job_id, kept)
            except Exception:  # noqa: BLE001 - the bulkhead: a failure to inform the leader must not end the job
                _log.warning("cannot send the events of job %s to its leader", job_id, exc_info=True)
                is_told = False
            pause_s = PACE_S if is_told else AGAIN_S
            await pause(max(pause_s, kept.pace_s), why="what happens meanwhile is told together")
        kept.is_served = False

    async def _tell_last(self, job_id: str, kept: UnsentOfJob, told_last: anyio.Event) -> None:
        """Sends what the leader does not have yet of a job that has ended."""
        if kept.pace_s > PACE_S:
            spread_s = min(kept.pace_s, SPREAD_LAST_S) * self._jitter()
            await pause(spread_s, why="the job ends on many nodes at once, whose news must not come together")
        try:
            while kept.events and (told := kept.told) < kept.events[-1].sequence:
                if not await self._tell(job_id, kept) or kept.told == told:
                    return
        except Exception:  # noqa: BLE001 - the bulkhead: a failure to inform the leader must not disturb the end
            _log.warning("cannot send the last events of job %s to its leader", job_id, exc_info=True)
        finally:
            told_last.set()

    async def _tell(self, job_id: str, kept: UnsentOfJob) -> bool:
        """Sends once. Returns False if it has to be repeated later."""
        part = self._own_part(job_id)
        if part is None or self._node_requests.leads(job_id):
            return True
        gone_through = kept.events[0].sequence - 1 if kept.events else 0
        after = kept.told if gone_through < kept.told else 0
        events, others = leaders_events.next_of(kept.events, after=kept.told), tuple(kept.owed)[:1]
        has = leaders_events.has_through(kept)
        update = TellUpdate(part.part, part.node, events, gone_through, self._clock.unix_ns(), after, *has, others)
        try:
            answer = await self._node_requests.ask(job_id, LEADER, update, timeout_s=ANSWER_TIMEOUT_S)
        except HoldfastError:
            kept.has_unsent = self._unsent.get(job_id) is kept
            return False
        if isinstance(answer, UpdateTaken):
            kept.told = answer.through
            kept.pace_s = min(answer.pace_s, PACE_MAX_S)
            own = answer.own
            if others and kept.owed and kept.owed[0] is others[0]:  # Else another message has told it meanwhile.
                kept.owed.popleft()
            if own is not None:
                leaders_events.keep(kept, own)
                self._record(job_id, own)
            if (kept.events and kept.told < kept.events[-1].sequence) or kept.owed or (own is not None and own.events):
                kept.has_unsent = self._unsent.get(job_id) is kept
        return True
