"""Whichever turn is a leader's last one: do its nodes' texts, written as they change, give back the whole state?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config import JobSpec
from supervisor.config.job_spec import Nodes
from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    Event,
    JobOpened,
    MemberState,
    NodeDown,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeSucceeded,
    Send,
    StopAsked,
)
from supervisor.core.cluster.node_states import Members
from supervisor.core.facts import Cause, JobRules, NodeFacts, RendezvousRules, RestartRules
from supervisor.core.node import node
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.node_messages import JobSubmitted
from supervisor.core.orders import StartCycle
from supervisor.core.session_state import JobSessions, NodeSessionState, SessionState
from supervisor.edges.workers.spawner.spawner_kept_state import SpawnerKeptState
from supervisor.engine.job_record import JobRecord, RecordedCycle
from supervisor.engine.recovery import node_parts, record_text, snapshot_texts
from supervisor.engine.recovery.record_text import UnreadableError
from supervisor.engine.recovery.snapshot_texts import (
    ENVIRONMENT,
    EVENTS,
    SESSIONS,
    SPEC,
    STATE,
    VERSION_TEXT,
    WHOLE_NODES_MAX,
    Restored,
    SnapshotTexts,
)  # fmt: skip
from supervisor.engine.recovery.state_snapshot import StateSnapshot
from tests.engine.world import ObedientSpawner

COUNT = 5  # nodes that come
MAX = WHOLE_NODES_MAX + 1  # that could
NAMES = [f"node {number}" if number else "\udcff" for number in range(COUNT)]
RULES = RestartRules(min_nodes=2, max_restarts=1000, max_no_progress_cycles=0, backoff_base_s=0.0)
RENDEZVOUS = RendezvousRules(max_nodes=MAX, last_call_s=1.0, segment=2)


def rules(number: int) -> JobRules:
    facts = NodeFacts(infrastructure_rank=number, domain="d" if number != 3 else "", process=f"of {number}")
    return JobRules("j", 2, restart=RULES, rendezvous=RENDEZVOUS, facts=facts)


class Leader:
    """One supervisor that leads, and the spawner that outlives it."""

    def __init__(self) -> None:
        spec = JobSpec("j", ("t.py",), nodes=Nodes(2, MAX, "127.0.0.1", 1, NAMES[0], leads=True))
        self.job = JobRecord(spec, {"A": "secret"}, 7, "/logs", spawner=ObedientSpawner(print))
        self.led = coordinator.initial_state("j", leader=NAMES[0])
        self.machines: JobMachines = node.step(
            node.initial_state(NAMES[0]), JobSubmitted(rules(0), node=NAMES[0]), now_s=0.0
        )[0].jobs["j"]
        self.said: dict[str, NodeSessionState] = {}
        self.changed: dict[str, None] = {}
        self.texts = SnapshotTexts()
        self.kept: dict[str, str] = {}
        self.now_s = 0.0
        self.keeping, self.is_new = SpawnerKeptState(), True

    def happen(self, event: Event) -> None:
        self.now_s += 0.7
        self.led, actions = coordinator.step(self.led, event, now_s=self.now_s, jitter=0.5)
        for action in actions:
            if isinstance(action, Send):
                self._say(action.node, record_text.write(action.order).encode("utf-8", "surrogateescape"))
                if isinstance(action.order, StartCycle):
                    self._record(action.node, action.order)
        if isinstance(event, NodeLost):
            self.said.pop(event.node, None)
            self.changed[event.node] = None
        elif isinstance(event, JobOpened | NodeJoined):
            self._say(event.node, b"")
            self.job.take((event.node, 7 + len(self.said)), self.job.sequence)
            self.job.sequence += 1

    def _say(self, name: str, payload: bytes) -> None:
        known = self.said.get(name, NodeSessionState(name, f"of {name}", SessionState()))
        sessions = SessionState(
            known.letters.said + 1, (*known.letters.unconfirmed[-2:], payload), known.letters.received
        )
        self.said[name] = msgspec.structs.replace(known, letters=sessions)
        self.changed[name] = None

    def _record(self, name: str, order: StartCycle) -> None:
        cycle = self.job.recorded_cycle
        if cycle is None or cycle.number != order.assignment.cycle:
            cycle = self.job.recorded_cycle = RecordedCycle(order.assignment.cycle, 1, MAX)
        cycle.parts[name] = (order.assignment.first_rank,)

    def _snapshot(self) -> StateSnapshot:
        return snapshot_texts.snapshot(
            self.job, self.machines, self.led, waiting=(), unfinished=(), reports=(), now_s=self.now_s
        )

    def _sessions(self, whole: bool) -> JobSessions:
        changed, self.changed = self.changed, {}
        names = self.said if whole else [name for name in changed if name in self.said]
        left = () if whole else tuple(name for name in changed if name not in self.said)
        nodes = tuple(self.said[name] for name in names)
        return JobSessions(leads=True, nodes=nodes, gone=("x",), is_whole=whole, left=left)

    def turn(self, *, forgets_empty: bool = True) -> None:
        """Keeps the state. An older spawner does not forget empty texts."""
        self.keeping.turn(self.texts.of(self.job, self._snapshot(), (), self._sessions), are_all=self.is_new)
        self.is_new = False
        message, _ = self.keeping.message(())
        if message is not None:
            self.kept |= message.texts
        if forgets_empty:
            self.kept = {name: text for name, text in self.kept.items() if text}

    def whole_texts(self) -> dict[str, str]:
        """Returns the texts with all of the state, as an older version writes them."""
        self.led.members.changed.clear()
        changed = self.changed
        sessions = record_text.write(self._sessions(True))
        self.changed = changed
        return {STATE: record_text.write(self._snapshot()), SESSIONS: sessions}

    def whole(self) -> Restored:
        return snapshot_texts.restored(self.kept | self.whole_texts())

    def be_replaced(self) -> None:
        """Loses the supervisor; the next one has only the texts."""
        found = snapshot_texts.restored(self.kept)
        assert found.snapshot.coordinator is not None
        assert found.sessions is not None
        found.record.spawner = ObedientSpawner(print)
        self.job, self.led, self.texts = found.record, found.snapshot.coordinator, SnapshotTexts()
        self.said, self.changed = {each.node: each for each in found.sessions.nodes}, {}
        self.keeping, self.is_new = SpawnerKeptState.of(self.kept, taken=0), True


def seen(members: Members) -> object:
    """What anybody can see of them."""
    return (
        [*members.items()], members.segment, members.witnesses, members.ready, members.candidates, members.segments,
        [members.count(state) for state in MemberState], members.excluded, members.leaving, members.turned_away,
        [members.returning(cycle) for cycle in range(-1, 20)], [members.with_rank(rank) for rank in range(COUNT)],
    )  # fmt: skip


def check(leader: Leader) -> None:
    found, whole = snapshot_texts.restored(leader.kept), leader.whole()
    led, wanted = found.snapshot.coordinator, whole.snapshot.coordinator
    assert led is not None
    assert wanted is not None
    assert seen(led.members) == seen(wanted.members)
    none = Members()
    assert msgspec.structs.replace(led, members=none) == msgspec.structs.replace(wanted, members=none)
    assert msgspec.structs.replace(found.snapshot, coordinator=None) == msgspec.structs.replace(
        whole.snapshot, coordinator=None
    )
    assert found.sessions is not None
    assert whole.sessions is not None
    assert {each.node: each for each in found.sessions.nodes} == {each.node: each for each in whole.sessions.nodes}
    assert msgspec.structs.replace(found.sessions, nodes=()) == msgspec.structs.replace(whole.sessions, nodes=())
    assert (found.record.taken, found.record.recorded_cycle) == (whole.record.taken, whole.record.recorded_cycle)


def happening(what: type[Event], number: int, cycle: int) -> Event:
    name = NAMES[number]
    if what is JobOpened:
        return JobOpened(name, rules(number))
    if what is NodeJoined:
        return NodeJoined(name, cycle, Cause("why", 1.5) if cycle > 0 else None)
    if what is NodeFailed:
        return NodeFailed(name, cycle, "it failed")
    if what is NodeDown:
        return NodeDown(name, cycle)
    if what is NodeLost:
        return NodeLost(NAMES[max(1, number)], "it is lost")
    if what is NodeExcluded:
        return NodeExcluded(name, "unfit")
    if what is NodeSucceeded:
        return NodeSucceeded(name, cycle, (1,))
    return DeadlineReached() if what is DeadlineReached else StopAsked("an operator", 15)


KINDS: tuple[type[Event], ...] = (
    JobOpened, NodeJoined, NodeJoined, NodeFailed, NodeDown, NodeLost, NodeExcluded, NodeSucceeded, DeadlineReached,
    DeadlineReached, StopAsked,
)  # fmt: skip
happenings = st.builds(happening, st.sampled_from(KINDS), st.integers(0, COUNT - 1), st.integers(-1, 3))
turns = st.lists(st.tuples(st.lists(happenings, max_size=4), st.booleans()), max_size=12)


@settings(deadline=None, max_examples=150)
@given(turns, st.booleans())
def test_what_is_read_back_after_any_turn_is_the_whole_state(
    turns: list[tuple[list[Event], bool]], forgets_empty: bool
) -> None:
    leader = Leader()
    for number, rule in enumerate(map(rules, range(2))):
        leader.happen(JobOpened(NAMES[number], rule))
        leader.happen(NodeJoined(NAMES[number], -1))
    leader.turn(forgets_empty=forgets_empty)
    check(leader)
    for events, is_last in turns:
        for event in events:
            leader.happen(event)
        leader.turn(forgets_empty=forgets_empty)
        check(leader)
        if is_last:
            leader.be_replaced()


def test_only_the_texts_of_what_has_changed_are_written() -> None:
    leader = Leader()
    for number in range(COUNT):
        leader.happen(JobOpened(NAMES[number], rules(number)))
        leader.happen(NodeJoined(NAMES[number], -1))
    leader.turn()
    leader.happen(NodeExcluded(NAMES[3], "unfit"))
    written = leader.texts.of(leader.job, leader._snapshot(), (), leader._sessions)  # pyright: ignore[reportPrivateUsage]
    assert [name for name in written if name.startswith(node_parts.NODE)] == [node_parts.NODE + NAMES[3]]
    assert [name for name in written if name.startswith(node_parts.SESSION_OF)] == [node_parts.SESSION_OF + NAMES[3]]
    assert not [name for name in written if name.startswith(node_parts.TAKEN)]
    assert node_parts.PLACES not in written


def test_a_job_that_an_older_version_kept_goes_on_in_parts() -> None:
    leader = Leader()
    for number in range(3):
        leader.happen(JobOpened(NAMES[number], rules(number)))
        leader.happen(NodeJoined(NAMES[number], -1))
    leader.turn()
    leader.kept = {name: leader.kept[name] for name in (VERSION_TEXT, SPEC, ENVIRONMENT, EVENTS)} | leader.whole_texts()
    leader.be_replaced()
    leader.happen(NodeJoined(NAMES[2], -1))
    leader.turn(forgets_empty=False)
    check(leader)
    leader.be_replaced()
    leader.happen(NodeLost(NAMES[2], "it is lost"))
    leader.turn(forgets_empty=False)
    check(leader)


def test_a_spawner_that_has_nothing_gets_all() -> None:
    leader = Leader()
    leader.happen(JobOpened(NAMES[0], rules(0)))
    leader.turn()
    leader.kept.clear()
    leader.job.spawner, leader.keeping, leader.is_new = ObedientSpawner(print), SpawnerKeptState(), True
    leader.turn()
    check(leader)


def test_a_state_whose_nodes_are_missing_is_refused() -> None:
    leader = Leader()
    leader.happen(JobOpened(NAMES[0], rules(0)))
    leader.happen(JobOpened(NAMES[1], rules(1)))
    leader.turn()
    del leader.kept[node_parts.NODE + NAMES[0]]
    with pytest.raises(UnreadableError, match="1 of 2 were kept"):
        snapshot_texts.restored(leader.kept)


def test_a_text_that_can_t_be_read_is_refused() -> None:
    leader = Leader()
    leader.happen(JobOpened(NAMES[0], rules(0)))
    leader.turn()
    for text in ("{", '{"number": "x"}'):
        leader.kept[node_parts.NODE + NAMES[0]] = text
        with pytest.raises(UnreadableError, match="cannot read a record"):
            snapshot_texts.restored(leader.kept)
