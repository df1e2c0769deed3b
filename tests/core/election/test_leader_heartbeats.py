"""Nodes confirm the heartbeats of their leader, and count only those of which the leader knows that they arrive."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.election import leader_heartbeats
from supervisor.core.election.leader_heartbeats import HeardLeader, LeaderHeartbeat, State
from supervisor.core.facts import JobState, Verdict
from supervisor.core.leader_ledger import Ledger

IN_CYCLE_4 = Ledger(cycle=4, opened=4, parts=("a", "b", "c"))


def leader(recorded: Ledger | None = IN_CYCLE_4) -> State:
    return leader_heartbeats.with_ledger(State("a"), recorded)


def confirmed(state: State, node: str, sent_at_s: float, cycle: int = 4) -> State:
    return leader_heartbeats.confirmed(state, node, LeaderHeartbeat(sent_at_s, cycle, counts=False))


def test_a_heartbeat_counts_once_the_leader_relies_on_them():
    state = leader()
    assert leader_heartbeats.heartbeats(state, 1.0) == dict.fromkeys(("b", "c"), LeaderHeartbeat(1.0, 4, counts=False))
    state = confirmed(state, "b", 1.0)
    assert not any(each.counts for each in leader_heartbeats.heartbeats(state, 2.0).values())
    state = confirmed(state, "c", 2.0)
    assert all(each.counts for each in leader_heartbeats.heartbeats(state, 3.0).values())


def test_the_leader_relies_on_them_as_before_if_the_cycle_goes_on_without_a_node():
    recorded = msgspec.structs.replace(IN_CYCLE_4, vacant=("c",))
    state = leader_heartbeats.with_ledger(confirmed(confirmed(leader(), "b", 1.0), "c", 2.0), recorded)
    assert leader_heartbeats.last_confirmed_s(state) == 1.0
    state = leader_heartbeats.with_ledger(confirmed(leader(), "b", 1.0), recorded)  # c never confirmed
    assert leader_heartbeats.heartbeats(state, 2.0) == {"b": LeaderHeartbeat(2.0, 4, counts=True)}
    refilled = leader_heartbeats.with_ledger(state, msgspec.structs.replace(IN_CYCLE_4, parts=("a", "b", "d")))
    assert leader_heartbeats.last_confirmed_s(refilled) is None
    assert leader_heartbeats.last_confirmed_s(confirmed(refilled, "d", 3.0)) == 3.0


def test_the_leader_relies_on_them_once_all_have_and_then_on_any():
    state = confirmed(leader(), "b", 1.0)
    assert leader_heartbeats.last_confirmed_s(state) is None
    state = confirmed(state, "c", 2.0)
    assert leader_heartbeats.last_confirmed_s(state) == 2.0
    state = confirmed(confirmed(state, "b", 7.0), "c", 1.5)  # that one was late
    assert leader_heartbeats.last_confirmed_s(state) == 7.0
    state = confirmed(confirmed(state, "x", 9.0), "b", 9.0, cycle=3)  # no node of the cycle; of another cycle
    assert leader_heartbeats.last_confirmed_s(state) == 7.0


def test_each_cycle_begins_anew_and_a_change_of_the_ledger_does_not():
    state = confirmed(confirmed(leader(), "b", 1.0), "c", 1.0)
    assert leader_heartbeats.with_ledger(state, msgspec.structs.replace(IN_CYCLE_4, witnesses=("b",))) == state
    later = leader_heartbeats.with_ledger(state, Ledger(cycle=5, opened=5, parts=("a", "b", "c")))
    assert leader_heartbeats.last_confirmed_s(later) is None
    assert not any(each.counts for each in leader_heartbeats.heartbeats(later, 2.0).values())


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        Ledger(),
        msgspec.structs.replace(IN_CYCLE_4, opened=5),
        msgspec.structs.replace(IN_CYCLE_4, stop_signal=15),
        msgspec.structs.replace(IN_CYCLE_4, verdict=Verdict(JobState.FAILED, 1, "why")),
        msgspec.structs.replace(IN_CYCLE_4, parts=("a",)),
    ],
)
def test_nobody_confirms_while_no_cycle_runs(recorded: Ledger | None):
    state = leader_heartbeats.with_ledger(confirmed(leader(), "b", 1.0), recorded)
    assert leader_heartbeats.heartbeats(state, 1.0) == {}
    assert leader_heartbeats.last_confirmed_s(state) is None


def test_a_node_remembers_the_last_one_if_it_counted():
    assert leader_heartbeats.heard(LeaderHeartbeat(1.0, 4, counts=True), 9.0) == HeardLeader(4, 9.0)
    assert leader_heartbeats.heard(LeaderHeartbeat(1.0, 5, counts=False), 9.0) is None
