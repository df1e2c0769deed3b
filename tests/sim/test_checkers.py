"""Does each checker find what it is for? Defects are planted in the core, one at a time."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import msgspec
import pytest

from supervisor.core import fence_times, orders, term_numbers
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.cluster import (
    coordinator,
    job_termination,
    leader_takeover,
    node_states,
    rendezvous_round,
    restart_policy,
)
from supervisor.core.election import candidate, lead_renewal, leader_loss_detection, node_fence, node_loss_detection
from supervisor.core.fence_times import FENCE_S
from supervisor.core.leader_ledger import Former, Ledger
from supervisor.core.node import node, node_messages
from supervisor.core.rank_silence import Silence
from tests.sim import faults, following, voting
from tests.sim.backend import Backend
from tests.sim.faults import Fault, Kind
from tests.sim.leader_term import LeaderTerm
from tests.sim.playing import play, play_seed
from tests.sim.processes import Processes
from tests.sim.setup import draw_setup

SEEDS = 200
_Patch = pytest.MonkeyPatch


def _none(members: node_states.Members) -> int:
    return 0


def _soon(silence: Silence) -> float:
    return silence.since_s + 1.0


def _nothing(_: Processes, at_s: float) -> None:
    del at_s


def nobody_is_busy(patch: _Patch) -> None:
    """The next cycle begins while the old one still runs."""
    patch.setattr(node_states.Members, "busy", property(_none))


def late_fence(patch: _Patch) -> None:
    """A node that is cut off ends its workers only after the leader has replaced it."""
    for module in (leader_loss_detection, following):
        patch.setattr(module, "FENCE_S", 9.0)


def hasty_leader(patch: _Patch) -> None:
    """A leader replaces a node that is cut off before it has ended its workers."""
    patch.setattr(node_loss_detection, "LOST_S", 3.0)


def stalled_judge(patch: _Patch) -> None:
    """A leader that was stopped judges before it has handled what it has received, and calls its stop their silence."""

    def no_stall(
        state: node_loss_detection.State, event: node_loss_detection.Event, now_s: float
    ) -> node_loss_detection.State:
        del event, now_s
        return state

    patch.setattr(node_loss_detection, "_after_stall", no_stall)


def hasty_node(patch: _Patch) -> None:
    """A node that was stopped judges before it has handled what it has received."""
    patch.setattr(leader_loss_detection.link_silence, "LATE_S", 1e9)


def fresh_answers(patch: _Patch) -> None:
    """The fence of a node counts from the answer, not from the heartbeat that is answered."""
    step = leader_loss_detection.step

    def fresh(
        state: leader_loss_detection.State, event: leader_loss_detection.Event, *, now_s: float
    ) -> tuple[leader_loss_detection.State, tuple[leader_loss_detection.Action, ...]]:
        event = leader_loss_detection.Answered(now_s) if isinstance(event, leader_loss_detection.Answered) else event
        return step(state, event, now_s=now_s)

    patch.setattr(leader_loss_detection, "step", fresh)


def no_second_fence(patch: _Patch) -> None:
    """A spawner does not end the workers of a stopped supervisor."""
    patch.setattr(Processes, "_stand_at_fence", _nothing)


def nothing_added(count: int, *, added: int, newest_term: int, part: int) -> int:
    del count, added, newest_term, part
    return 0


def the_same_term(patch: _Patch) -> None:
    """Each leader is elected for the first term."""
    elect = Backend.elect

    def again(backend: Backend, leader_term: LeaderTerm, above: int) -> tuple[int, Ledger, float, int] | None:
        del above
        backend._revision = 0  # pyright: ignore[reportPrivateUsage]
        return elect(backend, leader_term, 0)

    patch.setattr(Backend, "elect", again)
    patch.setattr(term_numbers, "added_to", nothing_added)


def no_own_fence(patch: _Patch) -> None:
    """A node that hears neither a leader nor the backend continues training."""

    def tell(state: node_fence.State, now_s: float) -> tuple[node_fence.State, tuple[node_fence.Action, ...]]:
        return msgspec.structs.replace(state, tells_at_s=now_s + 1.0), (node_fence.MoveFence(now_s + FENCE_S),)

    patch.setattr(node_fence, "_tell", tell)


def late_own_fence(patch: _Patch) -> None:
    """A node without a leader ends its workers only after another has replaced it; its spawner, too."""
    for module in (candidate, node_fence, leader_loss_detection, voting, following):
        patch.setattr(module, "FENCE_S", 12.0)


def talkative_leader(patch: _Patch) -> None:
    """A leader whose lead is over answers although it has not heard the witnesses for long."""
    patch.setattr(fence_times, "HEARD_S", 60.0)


def forgotten_end(patch: _Patch) -> None:
    """A node that missed the end believes it belonged to another run."""

    def forget(found: Ledger, *, term: int, met_term: int) -> tuple[Ledger, Former | None]:
        del term, met_term
        return (Ledger(), None) if found.is_told else (found, None)

    patch.setattr(candidate, "of_this_run", forget)


def dragged_along(patch: _Patch) -> None:
    """A node that missed the end takes part in the next run."""

    def no(state: coordinator.State, stands: cluster.NodeStands) -> bool:
        del state, stands
        return False

    patch.setattr(leader_takeover, "_missed_the_end", no)


def ranks_from_one(patch: _Patch) -> None:
    order_cycle = rendezvous_round._order_cycle  # pyright: ignore[reportPrivateUsage]

    def shifted(
        state: coordinator.State, chosen: tuple[str, ...], reason: str, now_s: float
    ) -> tuple[coordinator.State, tuple[cluster.Action, ...]]:
        state, actions = order_cycle(state, chosen, reason, now_s)
        return state, tuple(_shifted(each) for each in actions)

    patch.setattr(rendezvous_round, "_order_cycle", shifted)


def _shifted(action: cluster.Action) -> cluster.Action:
    if not isinstance(action, cluster.Send) or not isinstance(action.order, orders.StartCycle):
        return action
    part = action.order.assignment
    part = msgspec.structs.replace(part, first_rank=part.first_rank + 1)
    return msgspec.structs.replace(action, order=msgspec.structs.replace(action.order, assignment=part))


def free_restarts(patch: _Patch) -> None:
    """A restart is counted twice."""
    step = restart_policy.step

    def twice(
        state: restart_policy.State, event: restart_policy.Event, *, now_s: float, jitter: float
    ) -> tuple[restart_policy.State, tuple[restart_policy.Action, ...]]:
        after, actions = step(state, event, now_s=now_s, jitter=jitter)
        return msgspec.structs.replace(after, used=2 * after.used - state.used), actions

    patch.setattr(restart_policy, "step", twice)


def own_verdicts(patch: _Patch) -> None:
    """Each node gets another reason."""

    def told(node: str, order: orders.Order) -> cluster.Action:
        return _with_own_reason(cluster.Send(node, order))

    patch.setattr(job_termination, "Send", told)


def _with_own_reason(action: cluster.Action) -> cluster.Action:
    if not isinstance(action, cluster.Send) or not isinstance(action.order, orders.Conclude):
        return action
    verdict = msgspec.structs.replace(action.order.verdict, reason=action.node)
    return msgspec.structs.replace(action, order=orders.Conclude(verdict))


def hasty_monitor(patch: _Patch) -> None:
    """A rank is judged at the first check."""
    patch.setattr(Silence, "due_at_s", property(_soon))


def forgotten_deadlines(patch: _Patch) -> None:
    """A round that waits never ends."""

    def never(state: coordinator.State) -> None:
        return None

    patch.setattr(coordinator, "next_deadline_s", never)


def restless_timer(patch: _Patch) -> None:
    step = node.step

    def eager(
        state: node.State, event: node_messages.Event, *, now_s: float
    ) -> tuple[node.State, tuple[node_messages.Action, ...]]:
        after, actions = step(state, event, now_s=now_s)
        if isinstance(event, node_messages.DeadlineReached):
            after = msgspec.structs.replace(after, node=after.node + "'")
        return after, actions

    patch.setattr(node, "step", eager)


@pytest.mark.parametrize(
    ("plant", "checker"),
    [
        (nobody_is_busy, "Exclusivity"),
        (late_fence, "Exclusivity"),
        (hasty_leader, "Exclusivity"),
        (hasty_leader, "NoHastyLoss"),
        (stalled_judge, "NoHastyLoss"),
        (fresh_answers, "NoLateFence"),
        (ranks_from_one, "ConsecutiveRanks"),
        (free_restarts, "Budget"),
        (own_verdicts, "Agreement"),
        (hasty_monitor, "NoEarlyHang"),
        (hasty_monitor, "NoHealthyWorkerEnded"),
        (forgotten_deadlines, "Liveness"),
        (restless_timer, "early timer"),
    ],
)
def test_a_planted_defect_is_found(plant: Callable[[_Patch], None], checker: str, monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    for seed in range(SEEDS):
        if any(each.startswith(f"{checker}:") for each in play_seed(seed, nodes=4).complaints):
            return
    pytest.fail(f"{SEEDS} seeds do not show {checker}")


@pytest.mark.parametrize("plant", [forgotten_end, dragged_along])
def test_a_node_that_missed_the_end_and_begins_again_is_found(
    plant: Callable[[_Patch], None], monkeypatch: pytest.MonkeyPatch
):
    """Two nodes are cut off until the others have ended the job; one of them is then another process."""
    faults = (
        Fault(8.0, Kind.CUT, "n0002", lasts_s=45.0),
        Fault(8.0, Kind.CUT, "n0003", lasts_s=45.0),
        Fault(9.0, Kind.NODE_CRASH, "n0003", lasts_s=3.0),
    )
    setups = [draw_setup(seed, nodes=4) for seed in range(SEEDS)]
    setups = [each for each in setups if each.is_elected and each.rules.restart.min_nodes == 2]
    assert not [each for setup in setups for each in play(setup, faults).complaints]
    plant(monkeypatch)
    assert any(each.startswith("OneRun:") for setup in setups for each in play(setup, faults).complaints)


@pytest.mark.parametrize(
    ("plant", "checker", "kind"),
    [
        (no_second_fence, "Exclusivity", Kind.SUPERVISOR_PAUSE),
        (the_same_term, "OneLeader", Kind.SUPERVISOR_PAUSE),
        (no_own_fence, "Exclusivity", Kind.CUT),
    ],
)
def test_a_planted_defect_is_found_where_leaders_are_elected(
    plant: Callable[[_Patch], None], checker: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
):
    plant(monkeypatch)
    for seed in range(SEEDS):
        setup = draw_setup(seed, nodes=4)
        for name in setup.names if setup.is_elected else ():
            world = play(setup, (Fault(8.0, kind, name, lasts_s=14.0),))
            if any(each.startswith(f"{checker}:") for each in world.complaints):
                return
    pytest.fail(f"{SEEDS} seeds do not show {checker}")


@pytest.mark.parametrize(
    ("plant", "first", "second", "seeds"),
    [
        (late_own_fence, Kind.NODE_CRASH, Kind.CUT, range(16, 20)),
        (talkative_leader, Kind.BACKEND_CUT, Kind.BACKEND_CUT, range(28, 32)),
    ],
)
def test_two_faults_at_once_show_what_a_rule_of_the_election_is_for(
    plant: Callable[[_Patch], None], first: Kind, second: Kind, seeds: range, monkeypatch: pytest.MonkeyPatch
):
    games = [
        (setup, (Fault(8.0, first, one, lasts_s=20.0), Fault(8.0, second, other, lasts_s=20.0)))
        for setup in (draw_setup(seed, nodes=4) for seed in seeds)
        if setup.is_elected
        for one, other in itertools.permutations(setup.names, 2)
    ]
    assert not [each for game in games for each in play(*game).complaints]
    plant(monkeypatch)
    assert any(each.startswith("Exclusivity:") for game in games for each in play(*game).complaints)


def impatient_node(patch: _Patch) -> None:
    """A node ends its workers as soon as the backend is away, although a leader answers."""
    patch.setattr(lead_renewal, "answers_until_s", lambda state, heard_at_s: state.renewed_at_s)  # pyright: ignore


def test_training_goes_on_however_long_the_backend_is_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(faults, "BACKEND_HARMLESS_S", math.inf)
    games = [
        (
            dataclasses.replace(setup, life_s=(120.0, 150.0)),
            (Fault(8.0, Kind.BACKEND_LOST, setup.names[0], lasts_s=90.0),),
        )
        for setup in (draw_setup(seed, nodes=4) for seed in range(60))
        if setup.is_elected
    ]
    assert not [each for game in games for each in play(*game).complaints]
    impatient_node(monkeypatch)
    assert any(each.startswith("NoHealthyWorkerEnded:") for game in games for each in play(*game).complaints)
