"""May this rank begin the next iteration?"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from worker_client.inprocess.exception import RestartAbort

if TYPE_CHECKING:
    from worker_client.inprocess.state import FrozenState


class Initialize(abc.ABC):
    """Called on the main thread at the start of every iteration, the first included.

    An `Exception` leads to another restart on all ranks; a `BaseException` such as RestartAbort ends the call.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...


class RetryController(Initialize):
    """Ends the call once the function has run `max_iterations` times, or if too few ranks are left.

    All ranks decide alike, because the iteration and the world sizes are the same on all.
    """

    def __init__(
        self, max_iterations: int | None = None, min_world_size: int = 1, min_active_world_size: int = 1
    ) -> None:
        self.max_iterations = max_iterations
        self.min_world_size = min_world_size
        self.min_active_world_size = min_active_world_size

    def __call__(self, state: FrozenState) -> FrozenState:
        """Raises RestartAbort if a limit is reached; the error names every value and every limit."""
        active_world_size = state.active_world_size or 0
        if state.world_size < self.min_world_size:
            why = "too few ranks are left"
        elif active_world_size < self.min_active_world_size:
            why = "too few ranks are active"
        elif self.max_iterations is not None and state.iteration >= self.max_iterations:
            why = "no attempt is left"
        else:
            return state
        raise RestartAbort(
            f"cannot start iteration={state.iteration}: {why}; world_size={state.world_size} "
            f"min_world_size={self.min_world_size} active_world_size={active_world_size} "
            f"min_active_world_size={self.min_active_world_size} max_iterations={self.max_iterations}; "
            "start more ranks, or change the limit that is reached"
        )
