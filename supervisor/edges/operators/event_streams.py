"""How does a watcher get every event of a job exactly once: first the past ones, then new ones as they happen?"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio

from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.errors import ExhaustedError, HoldfastError, NoAnswerError, NotFoundError
from supervisor.ports.job_requests import JobHistory, JobRequests
from supervisor.ports.reports import RecordedEvent, SeenEvents

PAGE_EVENTS = 500
LEADER_AGAIN_S = 1.0
LEADER_FAILS = (NoAnswerError, NotFoundError, ExhaustedError)  # the last one: its history can't be read

Note: TypeAlias = Callable[[str], Awaitable[None]]  # gets which events are missing, and why


async def past_events(
    history: JobHistory, job_id: str, *, after_sequence: int, limiter: anyio.CapacityLimiter
) -> AsyncGenerator[RecordedEvent]:
    """Yields the events recorded so far, in order. Asks the disk only for what memory lacks: it may not answer."""
    last = after_sequence
    while True:
        page = await _page(history, job_id, last, limiter)
        for event in page:
            yield event
            last = event.sequence
        if len(page) < PAGE_EVENTS:
            return


async def _page(history: JobHistory, job_id: str, last: int, limiter: anyio.CapacityLimiter) -> Sequence[RecordedEvent]:
    in_memory = history.events_in_memory(job_id, after_sequence=last, limit=PAGE_EVENTS)
    if in_memory is not None:
        return in_memory
    return await in_thread(lambda: history.events(job_id, after_sequence=last, limit=PAGE_EVENTS), limiter=limiter)


async def all_events(
    job_service: JobRequests, history: JobHistory, job_id: str, *, after_sequence: int, limiter: anyio.CapacityLimiter
) -> AsyncGenerator[RecordedEvent]:
    """Yields past events, then new ones until the job ends. Events that a slow reader lost come from the history."""
    last = after_sequence
    async with job_service.subscribe(
        job_id
    ) as coming:  # before the past is read, so that no event is missed in between
        async with contextlib.aclosing(past_events(history, job_id, after_sequence=last, limiter=limiter)) as recorded:
            async for event in recorded:
                yield event
                last = event.sequence
        async for event in coming:
            if event.sequence > last + 1:
                async with contextlib.aclosing(
                    past_events(history, job_id, after_sequence=last, limiter=limiter)
                ) as missed:
                    async for each in missed:
                        yield each
                        last = each.sequence
            if event.sequence > last:
                yield event
                last = event.sequence
    await job_service.until_complete(job_id)
    async with contextlib.aclosing(past_events(history, job_id, after_sequence=last, limiter=limiter)) as rest:
        async for event in rest:
            yield event


async def own_events(
    job_service: JobRequests,
    history: JobHistory,
    job_id: str,
    *,
    after_sequence: int,
    follow: bool,
    limiter: anyio.CapacityLimiter,
) -> AsyncGenerator[RecordedEvent]:
    """Yields the events that this node has; with `follow`, until the job ends."""
    if follow:
        events = all_events(job_service, history, job_id, after_sequence=after_sequence, limiter=limiter)
    else:
        await job_service.until_complete(job_id)
        events = past_events(history, job_id, after_sequence=after_sequence, limiter=limiter)
    async with contextlib.aclosing(events):
        async for event in events:
            yield event


# --- of all nodes of a job -----------------------------------------------------------------------------------------


async def recorded_events(
    job_service: JobRequests,
    history: JobHistory,
    job_id: str,
    *,
    after_sequence: int,
    limiter: anyio.CapacityLimiter,
    note: Note,
) -> AsyncGenerator[RecordedEvent]:
    """Yields the whole job's events so far: from its leader, or this node's if the leader does not answer."""
    elsewhere = job_service.events_elsewhere(job_id, after_sequence=after_sequence, follow=False)
    has_begun = False
    if elsewhere is not None:
        try:
            async with contextlib.aclosing(elsewhere):
                async for event in elsewhere:
                    has_begun = True
                    yield event
            return
        except LEADER_FAILS as error:
            rest = "nothing that came later is shown" if has_begun else "these are the events of this node alone"
            await note(f"{_why(error)}; {rest}")
    if not has_begun:
        events = own_events(job_service, history, job_id, after_sequence=after_sequence, follow=False, limiter=limiter)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event


async def followed_events(
    job_service: JobRequests,
    history: JobHistory,
    job_id: str,
    *,
    after_sequence: int,
    limiter: anyio.CapacityLimiter,
    note: Note,
) -> AsyncGenerator[RecordedEvent]:
    """Yields the whole job's events until it ends here, from whichever node leads it.

    A leader that does not answer is asked again. Until it answers, and while this node leads, its own events come. Each
    leader numbers the events itself, and is asked for all of them; those that were shown do not come again.
    """
    ask_leader = partial(job_service.events_elsewhere, job_id, after_sequence=0, follow=True)
    seen = SeenEvents()
    told_through = own_through = after_sequence
    known_through = after_sequence if ask_leader() is None else 0  # if this node leads: the numbers are its own
    is_silent = is_over = False
    while not is_over:
        if (elsewhere := ask_leader()) is None:  # This node leads, or the job has ended.
            told_through, is_silent = 0, False
        else:
            if known_through:  # This node leads no more. Its disk is asked only now: it may not answer.
                await _mark_known(seen, past_events(history, job_id, after_sequence=0, limiter=limiter), known_through)
                known_through = 0
            has_begun = False
            try:
                async with contextlib.aclosing(elsewhere):
                    async for event in elsewhere:
                        has_begun, is_silent = True, False
                        seen.next_source()  # Another node may lead since the last answer.
                        if seen.is_new(event) and event.sequence > told_through:
                            yield event
                is_over = True  # The leader's part has ended: this node's own end may not be among its events.
            except LEADER_FAILS as error:
                if not is_silent and ask_leader() is not None:
                    is_silent = True
                    await note(
                        f"{_why(error)}; the leader is asked again, and only this node's events are shown until then"
                    )
            if has_begun:
                told_through = own_through = 0  # The watcher has what is known, and the next leader numbers it itself.
            seen.next_source()
        if not is_over:
            async with job_service.subscribe(job_id) as coming:  # before the past is read, to miss no event
                own = past_events(history, job_id, after_sequence=own_through, limiter=limiter)
                async with contextlib.aclosing(own):
                    async for event in own:
                        own_through = event.sequence
                        if seen.is_new(event):
                            yield event
                with anyio.move_on_after(LEADER_AGAIN_S):
                    async for _ in coming:
                        break
                    else:
                        is_over = True
    rest = own_events(job_service, history, job_id, after_sequence=own_through, follow=True, limiter=limiter)
    async with contextlib.aclosing(rest):
        async for event in rest:
            if seen.is_new(event):
                yield event


async def _mark_known(seen: SeenEvents, past: AsyncGenerator[RecordedEvent], through: int) -> None:
    """Marks the events that the watcher had from this node before: the next leader tells them with its own numbers."""
    async with contextlib.aclosing(past):
        async for event in past:
            if event.sequence > through:
                return
            seen.is_new(event)


def _why(error: HoldfastError) -> str:
    """Returns why the leader's events do not come. The disk that it names is not this node's."""
    return f"the leader can't show its events: {error}" if isinstance(error, ExhaustedError) else str(error)
