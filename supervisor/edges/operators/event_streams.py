"""How does a watcher get every event of a job exactly once: first the past ones, then new ones as they happen?"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

import anyio

from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.ports.job_requests import JobHistory, JobRequests
from supervisor.ports.reports import RecordedEvent

PAGE_EVENTS = 500


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
