"""Does each checker see what it is for? Defects are planted in the core, one at a time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from supervisor.core.cluster import coordinator, endings, membership, restart_policy, rounds
from supervisor.core.cluster import messages as cluster
from supervisor.core.node import node, rank_monitor
from tests.sim import network
from tests.sim.playing import play_seed

SEEDS = 200
_Patch = pytest.MonkeyPatch


def nobody_is_busy(patch: _Patch) -> None:
    """The next cycle begins beside what still runs."""
    patch.setattr(membership.Members, "busy", property(lambda self: 0))


def late_fence(patch: _Patch) -> None:
    """A node that is cut off ends its workers after the leader has replaced it."""
    patch.setattr(network, "FENCE_S", 9.0)


def ranks_from_one(patch: _Patch) -> None:
    order_cycle = rounds._order_cycle  # pyright: ignore[reportPrivateUsage]

    def shifted(*arguments: object) -> object:
        state, actions = order_cycle(*arguments)  # type: ignore[arg-type]
        return state, tuple(
            msgspec.structs.replace(
                each,
                order=msgspec.structs.replace(
                    each.order,
                    assignment=msgspec.structs.replace(
                        each.order.assignment, first_rank=each.order.assignment.first_rank + 1
                    ),
                ),
            )
            for each in actions
        )

    patch.setattr(rounds, "_order_cycle", shifted)


def free_restarts(patch: _Patch) -> None:
    """A unit is taken twice."""
    step = restart_policy.step

    def twice(state: restart_policy.State, event: restart_policy.Event, **rest: float) -> object:
        after, actions = step(state, event, **rest)  # type: ignore[arg-type]
        taken = after.used - state.used
        return msgspec.structs.replace(after, used=after.used + taken), actions

    patch.setattr(restart_policy, "step", twice)


def own_verdicts(patch: _Patch) -> None:
    """Each node hears another reason."""
    to_all = endings._to_all  # pyright: ignore[reportPrivateUsage]

    def told(state: object, order: object) -> tuple[cluster.Action, ...]:
        sent = to_all(state, order)  # type: ignore[arg-type]
        if not hasattr(order, "verdict"):
            return sent
        return tuple(
            msgspec.structs.replace(
                each,
                order=msgspec.structs.replace(
                    each.order, verdict=msgspec.structs.replace(each.order.verdict, reason=each.node)
                ),
            )
            for each in sent
        )

    patch.setattr(endings, "_to_all", told)


def hasty_monitor(patch: _Patch) -> None:
    """A rank is condemned at the first look."""
    patch.setattr(rank_monitor.Silence, "due_at_s", property(lambda self: self.since_s + 1.0))


def forgotten_deadlines(patch: _Patch) -> None:
    """A round that waits has no end."""
    patch.setattr(coordinator, "next_deadline_s", lambda state: None)


def restless_timer(patch: _Patch) -> None:
    step = node.step

    def eager(state: node.State, event: object, *, now_s: float) -> object:
        after, actions = step(state, event, now_s=now_s)  # type: ignore[arg-type]
        if type(event).__name__ == "DeadlineReached":
            after = msgspec.structs.replace(after, node=after.node + "'")
        return after, actions

    patch.setattr(node, "step", eager)


@pytest.mark.parametrize(
    ("plant", "checker"),
    [
        (nobody_is_busy, "Exclusivity"),
        (late_fence, "Exclusivity"),
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
