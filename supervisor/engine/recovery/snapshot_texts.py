"""What does the spawner of a job keep, so that a returning supervisor continues where its predecessor stopped?

It keeps the state at the end of a turn of the engine, before any decision of the turn is sent. That includes what the
previous supervisor had in hand: waiting events and unanswered questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.core import fencing_epochs
from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.facts import JobRules
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.node_messages import Action
from supervisor.core.session_state import JobSessions
from supervisor.engine.engine_loop import EngineEvent
from supervisor.engine.job_record import JobRecord
from supervisor.engine.recovery import node_parts, record_text
from supervisor.engine.recovery.node_parts import NodeParts
from supervisor.engine.recovery.record_text import UnreadableError
from supervisor.engine.recovery.state_snapshot import PartedStateSnapshot, StateSnapshot
from supervisor.ports.reports import RecordedEvent

VERSION = "1"
VERSION_TEXT, SPEC, ENVIRONMENT, STATE, EVENTS = "version", "spec", "environment", "state", "events"
SESSIONS = "letters"  # of a job on several nodes
WHOLE_NODES_MAX = 16  # of a job whose nodes are kept in STATE, where an older version finds them, too


ReadSessions = Callable[[bool], JobSessions | None]


def no_sessions(whole: bool) -> JobSessions | None:
    """Returns None, for a job on one node."""
    del whole


def are_parted(spec: JobSpec) -> bool:
    """Returns whether the leader of the job keeps its nodes in parts."""
    return spec.nodes is not None and not spec.nodes.has_election and spec.nodes.max_nodes > WHOLE_NODES_MAX


class Restored(msgspec.Struct, frozen=True):
    """The data read from the texts."""

    record: JobRecord
    snapshot: StateSnapshot
    events: tuple[RecordedEvent, ...]  # those that may not be on the disk
    sessions: JobSessions | None = None


class SnapshotTexts:
    """Writes the texts of all jobs. The constant part is encoded once, and so is what has not changed of many nodes."""

    def __init__(self) -> None:
        self._fixed: dict[str, tuple[int, dict[str, str]]] = {}  # job id -> submission, texts
        self._parts: dict[str, tuple[object, NodeParts]] = {}  # job id -> the spawner that has them

    def of(
        self,
        job: JobRecord,
        snapshot: StateSnapshot,
        events: Sequence[RecordedEvent],
        sessions: ReadSessions = no_sessions,
    ) -> Mapping[str, str]:
        """Returns the texts of a job that the job's spawner may not have. Raises TypeError for what can't be encoded.

        `sessions` gets whether all are wanted, or only those that have changed.
        """
        submitted_at_ns, fixed = self._fixed.get(job.spec.job_id, (0, {}))
        if submitted_at_ns != job.submitted_at_ns:
            environment = json.dumps(dict(job.environment), separators=(",", ":"))
            fixed = {VERSION_TEXT: VERSION, SPEC: record_text.write(job.spec), ENVIRONMENT: environment}
            self._fixed[job.spec.job_id] = job.submitted_at_ns, fixed
        texts = {**fixed, EVENTS: record_text.write(tuple(events))}
        led = snapshot.coordinator
        if led is None or not are_parted(job.spec):
            said = sessions(True)
            self._parts.pop(job.spec.job_id, None)
            if led is not None:
                led.members.take_changed()  # they are all written
            texts[STATE] = record_text.write(snapshot)
            return texts if said is None else {**texts, SESSIONS: record_text.write(said)}
        parts = self._parts_of(job)
        said = sessions(not parts.is_begun)
        texts |= parts.changes(job, led, said)
        bare = msgspec.structs.replace(
            snapshot, coordinator=node_parts.without_nodes(led), taken={}, recorded_cycle=None
        )
        texts[STATE] = record_text.write(PartedStateSnapshot(bare, len(led.members)))
        if said is not None:
            texts[SESSIONS] = record_text.write(msgspec.structs.replace(said, nodes=(), is_whole=True, left=()))
        return texts

    def _parts_of(self, job: JobRecord) -> NodeParts:
        spawner, parts = self._parts.get(job.spec.job_id, (None, NodeParts()))
        if spawner is not job.spawner:
            parts = NodeParts()
            self._parts[job.spec.job_id] = job.spawner, parts
        return parts

    def forget(self, job_id: str) -> None:
        """Forgets an ended job, or one whose texts did not reach its spawner: the next ones are whole."""
        self._fixed.pop(job_id, None)
        self._parts.pop(job_id, None)


def snapshot(
    job: JobRecord,
    machines: JobMachines,
    led: coordinator.State | None,
    *,
    waiting: Iterable[EngineEvent],
    unfinished: Iterable[Action],
    reports: Iterable[Report],
    now_s: float,
) -> StateSnapshot:
    return StateSnapshot(
        machines=machines,
        coordinator=led,
        waiting=tuple(waiting),
        unfinished=tuple(unfinished),
        reports=tuple(reports),
        submitted_at_ns=job.submitted_at_ns,
        log_dir=job.log_dir,
        spawner_number=job.spawner_number,
        spawner_reason=job.spawner_reason,
        slower_told=job.slower_told,
        running=job.running,
        pids=job.pids,
        shown=job.shown,
        sequence=job.sequence,
        stop_reason=job.stop_reason,
        kept_at_s=now_s,
        recorded_cycle=job.recorded_cycle,
        gpu_places=job.gpu_places,
        taken=job.taken,
        recorded_before=tuple(job.recorded_before),
    )


def restored(texts: Mapping[str, str]) -> Restored:
    """Decodes the texts. Raises UnreadableError if another version wrote them or nothing was written."""
    try:
        return _restored(texts)
    except UnreadableError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError) as error:
        raise UnreadableError(f"cannot read the state of the job: {type(error).__name__}: {error}") from error


def spawner_number(texts: Mapping[str, str]) -> int:
    """Returns which of the job's spawners had these texts; -1: that can't be read."""
    try:
        kept = record_text.read(texts.get(STATE) or "null")
    except UnreadableError:
        return -1
    kept = kept.keepsake if isinstance(kept, PartedStateSnapshot) else kept
    return kept.spawner_number if isinstance(kept, StateSnapshot) else -1


def _restored(texts: Mapping[str, str]) -> Restored:
    missing = [name for name in (SPEC, STATE) if not texts.get(name)]
    if missing:
        raise UnreadableError(f"cannot read the {' and the '.join(missing)} of the job: nothing was kept")
    spec, kept = record_text.read(texts[SPEC]), record_text.read(texts[STATE])
    events = record_text.read(texts.get(EVENTS) or "[]")
    sessions = record_text.read(texts.get(SESSIONS) or "null")
    if isinstance(kept, PartedStateSnapshot) and isinstance(sessions, JobSessions | None):
        kept, sessions = _put_together(kept, sessions, texts)
    if (
        not isinstance(spec, JobSpec)
        or not isinstance(kept, StateSnapshot)
        or not isinstance(sessions, JobSessions | None)
    ):
        raise UnreadableError("cannot read the state of the job: it is something else")
    record = JobRecord(
        spec=spec,
        environment=json.loads(texts.get(ENVIRONMENT) or "{}"),
        submitted_at_ns=kept.submitted_at_ns,
        log_dir=kept.log_dir,
        spawner_number=kept.spawner_number,
        spawner_reason=kept.spawner_reason,
        slower_told=kept.slower_told,
        running=kept.running,
        pids=dict(kept.pids),
        shown=kept.shown,
        sequence=kept.sequence,
        stop_reason=kept.stop_reason,
        recorded_cycle=kept.recorded_cycle,
        gpu_places=kept.gpu_places,
        taken=dict(kept.taken),
        recorded_before=list(kept.recorded_before),
        is_returning=True,
    )
    kept = _with_epochs(kept, record.submitted_at_ms)
    return Restored(record, kept, cast("tuple[RecordedEvent, ...]", events), sessions)


def resume(job: JobRecord, past: Sequence[RecordedEvent], *, has_spawner: bool) -> None:
    """Continues the job's history after `past`, the events that were recorded after the state was kept.

    `has_spawner`: its spawner lives on and is being contacted.
    """
    job.sequence = max([job.sequence, *(event.sequence for event in past)])
    job.recorded_before += past
    job.is_returning = has_spawner


def skip_events(job: JobRecord, count: int) -> None:
    """Leaves out so many numbers of events: the supervisor before may have used them after the state was kept."""
    job.sequence += count


def _with_epochs(kept: StateSnapshot, submitted_at_ms: int) -> StateSnapshot:
    """Returns the state with what a version without fencing epochs does not keep: the next cycle has an epoch."""
    job, led = kept.machines.job, kept.coordinator
    if job.rules.facts.submitted_at_ms:
        return kept
    job = msgspec.structs.replace(job, rules=_submitted_at(job.rules, submitted_at_ms))
    if led is not None:
        epoch = led.own_epoch or fencing_epochs.next_epoch(led.epoch, began_at_ms=submitted_at_ms)
        led = msgspec.structs.replace(led, rules=_submitted_at(led.rules, submitted_at_ms), own_epoch=epoch)
    return msgspec.structs.replace(kept, machines=msgspec.structs.replace(kept.machines, job=job), coordinator=led)


def _submitted_at(rules: JobRules, at_ms: int) -> JobRules:
    return msgspec.structs.replace(rules, facts=msgspec.structs.replace(rules.facts, submitted_at_ms=at_ms))


def _put_together(
    parted: PartedStateSnapshot, sessions: JobSessions | None, texts: Mapping[str, str]
) -> tuple[StateSnapshot, JobSessions | None]:
    bare = parted.keepsake
    assert bare.coordinator is not None, "only a leader's nodes have texts of their own"
    whole = msgspec.structs.replace(
        bare,
        coordinator=node_parts.with_nodes(bare.coordinator, texts, parted.nodes),
        taken=node_parts.taken(texts),
        recorded_cycle=node_parts.recorded_cycle(texts),
    )
    said = sessions and msgspec.structs.replace(sessions, nodes=node_parts.sessions_of(texts))
    return whole, said
