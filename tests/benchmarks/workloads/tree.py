"""Times a Tree: `tree.py MODULE RANKS DEAD`. Prints the seconds of its first call and of a restart, and its outcome.

The other ranks' answers are prepared, so that the times cover only what each rank computes by itself.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any


def switch(state: Any) -> str:  # noqa: ANN401  # of one product or the other
    return f"switch {state.rank // 512}"


def host(state: Any) -> str:  # noqa: ANN401
    return f"host {state.rank // 8}"


class HeardError(Exception):
    """Raised once a rank has sent its part."""


class Asking:
    """Records what one rank sends to the others."""

    heard = ""

    def exchange(self, _name: str, value: str, **_: object) -> dict[int, str]:
        self.heard = value
        raise HeardError


class Answering:
    """Answers for all ranks: in our words, and in those of the reference product's store."""

    def __init__(self, new_state: Callable[[int], Any], values: dict[int, str]) -> None:
        self.new_state, self.values = new_state, values

    def exchange(self, *_: object, **__: object) -> dict[int, str]:
        return self.values

    def send_state(self, *_: object) -> None: ...

    def send_key(self, *_: object) -> None: ...

    def get_states(self, ranks: Iterable[int]) -> list[Any]:
        return [self.new_state(rank) for rank in ranks]

    def get_keys(self, ranks: Iterable[int]) -> list[list[str]]:
        return [["root", switch(self.new_state(rank)), host(self.new_state(rank))] for rank in ranks]


def main(module: str, size: int, dead: int) -> None:
    warnings.simplefilter("ignore")
    rules = importlib.import_module(f"{module}.rank_assignment")
    state_type = importlib.import_module(f"{module}.state").State
    reserve = rules.LayerFlag.RESERVE

    def new_state(rank: int) -> Any:  # noqa: ANN401
        return state_type(rank=rank, world_size=size)

    def new_tree() -> Any:  # noqa: ANN401
        return rules.Tree(
            [
                rules.Layer(max_ranks=size - size // 8, key_or_fn="root", flag=reserve),
                rules.Layer(key_or_fn=switch, flag=reserve),
                rules.Layer(min_ranks=4, max_ranks=8, key_or_fn=host, flag=reserve),
            ]
        )

    values: dict[int, str] = {}
    asking = Asking()
    for rank in range(size) if module.startswith("worker_client") else ():
        try:
            # World size 1, so that asking is quick.
            new_tree()(rules.RankAssignmentCtx(state_type(rank=rank, world_size=1), asking, set()))
        except HeardError:
            values[rank] = asking.heard

    store, me = Answering(new_state, values), size // 2
    die = set(random.Random(7).sample([rank for rank in range(size) if rank != me], dead))
    tree = new_tree()
    before = time.perf_counter()
    ctx = tree(rules.RankAssignmentCtx(new_state(me), store, set()))
    built = time.perf_counter()
    ctx = tree(rules.RankAssignmentCtx(ctx.state, store, die))
    done = time.perf_counter()
    state = ctx.state
    print(built - before, done - built, state.rank, state.world_size, state.active_rank, state.active_world_size)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
