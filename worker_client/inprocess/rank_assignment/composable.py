"""How do ranks get new numbers when some are gone, and how many of them are active?"""

from __future__ import annotations

from bisect import bisect_left

from worker_client.inprocess.rank_assignment.assignment import (
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
)
from worker_client.inprocess.state import Mode, State


class ShiftRanks(RankAssignment):
    """Moves every rank down by the number of terminated ones below it, so the order is kept."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        gone = _gone(ctx)
        ctx.state.rank -= bisect_left(gone, ctx.state.rank)
        return _shrunk(ctx, gone)


class FillGaps(RankAssignment):
    """Lets ranks below the new world size keep their numbers; the n-th of the others takes the n-th gap."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        gone = _gone(ctx)
        state = ctx.state
        kept = state.world_size - len(gone)
        if state.rank >= kept:
            # Terminated ranks from `kept` on leave no gap, so only ranks that move count.
            first_moved = bisect_left(gone, kept)
            state.rank = gone[(state.rank - kept) - (bisect_left(gone, state.rank) - first_moved)]
        return _shrunk(ctx, gone)


class ActivateAllRanks(RankFilter):
    """Makes all ranks active, so all call the wrapped function."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        _activate(ctx.state, ctx.state.world_size)
        return ctx

    def check_beside(self, others: tuple[object, ...]) -> None:
        for other in others:
            if isinstance(other, ActivateAllRanks | MaxActiveWorldSize | ActiveWorldSizeDivisibleBy):
                name = type(other).__name__
                raise TypeError(
                    f"cannot compose ActivateAllRanks with {name}: both say which ranks are active; leave one out"
                )


class MaxActiveWorldSize(RankFilter):
    """Limits the active ranks to `max_active_world_size`, those with the lowest numbers; None: no limit."""

    def __init__(self, max_active_world_size: int | None = None) -> None:
        if max_active_world_size is not None and max_active_world_size < 0:
            raise ValueError(f"cannot activate at most {max_active_world_size} ranks: it is negative; give 0 or more")
        self.max_active_world_size = max_active_world_size

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        size, limit = _active_so_far(ctx.state), self.max_active_world_size
        _activate(ctx.state, size if limit is None else min(size, limit))
        return ctx


class ActiveWorldSizeDivisibleBy(RankFilter):
    """Makes the number of active ranks a multiple of `divisor`; those with the lowest numbers are active."""

    def __init__(self, divisor: int = 1) -> None:
        if divisor < 1:
            raise ValueError(f"cannot divide the active world size by {divisor}: it is not positive; give 1 or more")
        self.divisor = divisor

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        _activate(ctx.state, _active_so_far(ctx.state) // self.divisor * self.divisor)
        return ctx


def _gone(ctx: RankAssignmentCtx) -> list[int]:
    """Returns the terminated ranks in order. Raises RankDiscarded on one of them."""
    if ctx.state.rank in ctx.terminated_ranks:
        raise RankDiscarded(
            f"cannot keep rank {ctx.state.rank} (initially {ctx.state.initial_rank}): it counts as terminated; "
            "end this process"
        )
    return sorted(ctx.terminated_ranks)


def _shrunk(ctx: RankAssignmentCtx, gone: list[int]) -> RankAssignmentCtx:
    ctx.state.world_size -= len(gone)
    ctx.terminated_ranks = set()
    return ctx


def _active_so_far(state: State) -> int:
    """Returns what filters start from: the previous active world size, limited by the current world size."""
    size = state.active_world_size
    return state.world_size if size is None else min(size, state.world_size)


def _activate(state: State, size: int) -> None:
    """Activates the first `size` ranks under their current numbers."""
    is_active = state.rank < size
    state.active_world_size = size
    state.active_rank = state.rank if is_active else None
    state.mode = Mode.ACTIVE if is_active else Mode.INACTIVE
