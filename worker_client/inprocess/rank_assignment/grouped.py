"""Which groups of ranks have lost so many that the rest of them can't be used?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from worker_client.inprocess.rank_assignment.assignment import RankAssignment, RankAssignmentCtx
from worker_client.inprocess.state import State


class FilterCountGroupedByKey(RankAssignment):
    """Marks a rank as terminated unless `condition` holds for the number of living ranks that share its key.

    List it after the step that removes terminated ranks (`ShiftRanks`, `FillGaps`), so that it runs before that step.
    Each rank applies its own `condition` to its own group. Blocks for at most `timeout`, then raises BarrierTimeout;
    a rank that dies meanwhile does not delay the others.
    """

    def __init__(
        self,
        key_or_fn: str | int | Callable[[State], object],
        condition: Callable[[int], bool],
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        self.key_or_fn = key_or_fn
        self.condition = condition
        self.timeout = timeout

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        if ctx.state.rank in ctx.terminated_ranks:
            return ctx
        key = group_key(self.key_or_fn, ctx.state)
        counts = Counter(ctx.exchange("group", key, self.timeout).values())
        # The verdicts are exchanged too: a condition may answer differently on different machines.
        verdict = json.dumps(bool(self.condition(counts[key])))
        verdicts = ctx.exchange("verdict", verdict, self.timeout)
        ctx.terminated_ranks.update(rank for rank, kept in verdicts.items() if not json.loads(kept))
        return ctx


def group_key(key_or_fn: str | int | Callable[[State], object], state: State) -> str:
    """Returns the key as text. Any value with a text is a key, also a function's result such as `state.rank // 8`."""
    return str(key_or_fn(state)) if callable(key_or_fn) else str(key_or_fn)
