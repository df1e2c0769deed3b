"""Is a simulated job that begins again after a loss of data told apart from one that a leader has forgotten?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.cluster.node_states import MemberState
from supervisor.core.election import candidate
from tests.sim.faults import Fault, Kind, draw_schedule
from tests.sim.playing import play
from tests.sim.setup import Setup, draw_setup

LOST_AT_S = 12.0


def elected(seed: int) -> Setup:
    """Three nodes with an elected leader; one suffices."""
    drawn = next(each for number in range(seed, seed + 1000) if (each := draw_setup(number, nodes=3)).is_elected)
    restart = msgspec.structs.replace(drawn.rules.restart, max_restarts=5, min_nodes=1)
    rendezvous = msgspec.structs.replace(drawn.rules.rendezvous, max_nodes=3, elastic=True)
    rules = msgspec.structs.replace(drawn.rules, restart=restart, rendezvous=rendezvous)
    return replace(drawn, rules=rules, life_s=(60.0, 70.0), answer_max_s=0.02, delay_max_s=0.05)


@pytest.mark.parametrize(("seed", "numbers"), [(711542, (0, 1)), (719084, (0, 1)), (714998, (1, 3, 5, 6, 7))])
def test_a_leader_that_nobody_who_knows_can_reach_begins_another_history(seed: int, numbers: tuple[int, ...]):
    setup = draw_setup(seed)
    drawn = draw_schedule(setup)
    world = play(setup, [drawn[number] for number in numbers])
    assert world.complaints == []
    assert world.histories.count == 2


def forgets_all(stands: cluster.NodeStands) -> cluster.NodeStands:
    return msgspec.structs.replace(stands, cycle=-1, assignment=None, state=MemberState.JOINED, restarts_used=0)


def test_a_node_that_could_tell_and_does_not_is_found(monkeypatch: pytest.MonkeyPatch):
    """The backend loses its data while a node is cut off. The others reach the next leader, and know what has begun."""
    games = [
        (
            elected(1000 * seed),
            (Fault(LOST_AT_S, Kind.BACKEND_WIPED, "n0000"), Fault(LOST_AT_S, Kind.CUT, name, 0, 9.0)),
        )
        for seed in range(10)
        for name in ("n0000", "n0001", "n0002")
    ]
    assert not [each for game in games for each in play(*game).complaints]
    introduced = candidate._introduced  # pyright: ignore
    monkeypatch.setattr(candidate, "_introduced", lambda *given: forgets_all(introduced(*given)))  # pyright: ignore
    monkeypatch.setattr(candidate, "newer", lambda found, _: found)  # pyright: ignore
    assert any(each.startswith("forgotten:") for game in games for each in play(*game).complaints)
