"""States of a rank, as callbacks get them."""

from __future__ import annotations

from worker_client.inprocess.state import FrozenState, State


def frozen_state(
    world_size: int = 4, active: int | None = 4, iteration: int = 0, error: Exception | None = None, rank: int = 0
) -> FrozenState:
    state = State(rank, world_size, active_world_size=active, iteration=iteration, fn_exception=error)
    return state.freeze()
