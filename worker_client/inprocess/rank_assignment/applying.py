"""How does the Wrapper use its rank assignment?"""

from __future__ import annotations

from typing import cast

from worker_client.inprocess.compose import Compose, flattened
from worker_client.inprocess.rank_assignment.assignment import RankAssignment, RankAssignmentCtx, RankFilter
from worker_client.inprocess.rank_assignment.composable import ActivateAllRanks
from worker_client.inprocess.state import Mode


def resolve(rank_assignment: object, rank_filter: object = None) -> RankAssignment:
    """Returns the intended assignment. Raises TypeError.

    Unwraps tuples of one element, which trailing commas in the guides' examples produce. `rank_filter` is the older
    argument; it runs after the assignment and activates ranks instead of `ActivateAllRanks`.
    """
    given = rank_assignment
    while isinstance(given, tuple) and len(cast("tuple[object, ...]", given)) == 1:
        given = cast("tuple[object]", given)[0]
    if not isinstance(given, RankAssignment):
        raise TypeError(f"cannot assign ranks with {given!r}: it is not a RankAssignment; give one")
    if rank_filter is None:
        return given
    if not isinstance(rank_filter, RankFilter):
        raise TypeError(f"cannot filter ranks with {rank_filter!r}: it is not a RankFilter; give one")
    steps = [step for step in flattened((given,)) if not isinstance(step, ActivateAllRanks)]
    return Compose(rank_filter, *cast("list[RankAssignment]", steps))


def assign(rank_assignment: RankAssignment, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
    """Runs all steps. If none of them says which ranks are active, all are. Raises what the steps raise."""
    activates = any(getattr(step, "activates", False) for step in flattened((rank_assignment,)))
    if not activates:
        ctx.state.mode = Mode.INITIALIZED  # a user's step may still set it
    assigned = cast("RankAssignmentCtx | None", rank_assignment(ctx))  # a user's step may forget to return it
    if assigned is None:
        raise TypeError(f"cannot assign ranks with {rank_assignment!r}: it returned None; return its context")
    if assigned.state.mode is Mode.INITIALIZED:
        return ActivateAllRanks()(assigned)
    return assigned
