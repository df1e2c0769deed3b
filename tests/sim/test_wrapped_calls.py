"""Does a job end, whatever fails after a wrapped call has lost a node: a spare, too, before it takes part?"""

from __future__ import annotations

import pytest

from supervisor.core.cluster import lost_node_replacement
from supervisor.core.cluster.coordinator_states import State
from tests.sim.playing import play_many

SEEDS = 150
ALSO = (
    *(2789, 6556),  # these start many new processes on one node
    *(102338, 205887),  # all ranks end before the next leader has heard of their call
)


def test_a_wrapped_call_that_loses_a_node_ends_whatever_fails_next() -> None:
    played = play_many((0, SEEDS, None), wrapped=True)
    for seed in ALSO:
        played += play_many((seed, 1, None), wrapped=True)
    assert not played.failures, played.failures[0]
    assert played.ends["succeeded"] > SEEDS / 2


def test_a_spare_that_is_given_the_same_cycle_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_ready(state: State, *, instead_of: str) -> str | None:
        del instead_of
        return next((node for node, each in state.members.items() if each.is_ready), None)

    monkeypatch.setattr(lost_node_replacement, "find_spare", any_ready)
    assert play_many((0, SEEDS, None), wrapped=True).failures
