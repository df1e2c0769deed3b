"""Which rank, and of how many, is this process in this iteration, for us, the wrapped function and the callbacks?"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields


class Mode(enum.Enum):
    """What a rank does in the current iteration."""

    INITIALIZED = enum.auto()  # not yet assigned
    ACTIVE = enum.auto()  # calls the wrapped function
    INACTIVE = enum.auto()  # waits as a reserve
    TERMINATED = enum.auto()


@dataclass(frozen=True)
class FrozenState:
    """The immutable state that callbacks get. `fn_exception` is the original exception, never a copy."""

    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int | None
    initial_rank: int
    initial_world_size: int
    iteration: int
    mode: Mode
    fn_exception: Exception | None


@dataclass(init=False)
class State:
    """The state of a rank. `rank` and `world_size` count all living ranks; the wrapped function sees `active_*`.

    `fn_exception` is set only if the function itself raised.
    """

    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int | None
    initial_rank: int
    initial_world_size: int
    iteration: int
    mode: Mode
    fn_exception: Exception | None

    def __init__(
        self,
        rank: int,
        world_size: int,
        active_rank: int | None = None,
        active_world_size: int | None = None,
        initial_rank: int | None = None,
        initial_world_size: int | None = None,
        iteration: int = 0,
        mode: Mode = Mode.INITIALIZED,
        fn_exception: Exception | None = None,
    ) -> None:
        """`initial_*` default to the current values."""
        self.rank = rank
        self.world_size = world_size
        self.active_rank = active_rank
        self.active_world_size = active_world_size
        self.initial_rank = rank if initial_rank is None else initial_rank
        self.initial_world_size = world_size if initial_world_size is None else initial_world_size
        self.iteration = iteration
        self.mode = mode
        self.fn_exception = fn_exception

    @classmethod
    def from_env(cls) -> State:
        """Reads RANK and WORLD_SIZE; a process without them is rank 0 of 1."""
        return cls(rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1")))

    def set_distributed_vars(self) -> None:
        """Sets RANK and WORLD_SIZE for the wrapped function, to the text "None" if the rank is not active."""
        os.environ["RANK"] = str(self.active_rank)
        os.environ["WORLD_SIZE"] = str(self.active_world_size)

    def start_again(self) -> None:
        """Resets everything except the iteration to the state before the first assignment."""
        self.rank, self.world_size = self.initial_rank, self.initial_world_size
        self.active_rank, self.active_world_size = None, None
        self.mode = Mode.INITIALIZED

    def advance(self, iteration: int | None = None) -> None:
        """Advances to the next iteration, or to `iteration`: after a supervisor's death, a number may be skipped."""
        self.iteration = self.iteration + 1 if iteration is None else iteration
        self.fn_exception = None

    def freeze(self) -> FrozenState:
        return FrozenState(**{name: getattr(self, name) for name in _FIELDS})

    def copy_from(self, other: State | FrozenState, fields: Iterable[str] | None = None) -> None:
        """Copies `fields` from `other`; all of them by default."""
        for name in _FIELDS if fields is None else fields:
            setattr(self, name, getattr(other, name))


_FIELDS = tuple(field.name for field in fields(FrozenState))
