"""Which of the events that another node tells are new here, and become part of the whole job's history?"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import JobEvent
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.ports.questions import NodeEvents


def take_events(publisher: EventPublisher, job: JobRecord, news: NodeEvents) -> int:
    """Records each new event once, in the node's order. Returns the last one up to which all of the node's are here."""
    node, life = news.node, (news.node, news.submitted_at_ns)
    taken = job.taken.get(life, 0)
    before = news.after  # A node that led for a while has events of others between its own.
    for event in news.events:
        if event.sequence > taken:
            if event.sequence > taken + 1 and not 0 < before <= taken:
                if event.sequence - 1 > news.gone_through:
                    break
                text = f"{event.sequence - 1 - taken} events of node {node} did not arrive in time"
                publisher.publish(job, JobEvent("events_missing", f"{text}; see its own journal", job.cycle))
            taken = event.sequence
            own = msgspec.structs.replace(event, job_id=job.spec.job_id, node=node)
            publisher.take_in(job, own, told_at_ns=news.told_at_ns)
        before = event.sequence
    job.take(life, taken)
    return taken


def take_leaders_events(publisher: EventPublisher, job: JobRecord, news: NodeEvents) -> None:
    """Records what the leader tells of itself. Nothing is missing for the job if it tells only its later events."""
    life = news.node, news.submitted_at_ns
    job.take(life, max(job.taken.get(life, 0), news.gone_through))
    take_events(publisher, job, news)
