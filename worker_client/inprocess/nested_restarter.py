"""How does an outer restarter, which reads our output, learn that we are handling a fault?

Each line is `[time] [ALWAYS] [InprocessRestarter.Restarter] [NestedRestarter] name=[InProcess] state=… stage=…`, on
stdout, from one rank only.
"""

from __future__ import annotations

import copy
import logging
import sys
from typing import TYPE_CHECKING, Self

from worker_client.inprocess.abort import Abort
from worker_client.inprocess.completion import Completion
from worker_client.inprocess.initialize import Initialize
from worker_client.inprocess.terminate import Terminate

if TYPE_CHECKING:
    from worker_client.inprocess.state import FrozenState

_LINE = "[%(asctime)s] [ALWAYS] [InprocessRestarter.Restarter] [NestedRestarter] %(message)s"


class NestedRestarterLogger:
    """Writes one line to stdout per call, whatever the script's logging levels and handlers."""

    def __init__(self) -> None:
        self._formatter = logging.Formatter(_LINE)

    def log_message(self, message: str) -> None:
        record = logging.LogRecord("InprocessRestarter.Restarter", logging.INFO, "", 0, message, None, None)
        # In one write, since the ranks of a node often share their output.
        sys.stdout.write(self._formatter.format(record) + "\n")
        sys.stdout.flush()


_SHARED_LOGGER = NestedRestarterLogger()


class NestedRestarterCallback:
    """Reports `restarter_state`, and `restarter_stage` if given, on the rank whose initial number is `special_rank`."""

    def __init__(
        self,
        restarter_state: str,
        restarter_stage: str | None = None,
        logger: NestedRestarterLogger = _SHARED_LOGGER,
        special_rank: int = 0,
    ) -> None:
        self.restarter_state = restarter_state
        self.restarter_stage = restarter_stage
        self.logger = logger
        self.special_rank = special_rank

    def __call__(self, state: FrozenState) -> FrozenState:
        if state.initial_rank == self.special_rank:
            stage = "" if self.restarter_stage is None else f" stage={self.restarter_stage}"
            self.logger.log_message(f"name=[InProcess] state={self.restarter_state}{stage}")
        return state


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """Reports `state=initialize` at the first iteration of a call, then `state=handling stage=completed`.

    A restart is handled only once all of `initialize` is done: in a Compose, list this first.
    """

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("initialize", special_rank=special_rank)

    def __call__(self, state: FrozenState) -> FrozenState:
        state = super().__call__(state)
        self.restarter_state, self.restarter_stage = "handling", "completed"
        return state

    def fresh(self) -> Self:
        """Returns the same callback as before its first call."""
        renewed = copy.copy(self)
        renewed.restarter_state, renewed.restarter_stage = "initialize", None
        return renewed


class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """Reports `state=handling stage=starting` when a fault is about to be handled."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("handling", "starting", special_rank=special_rank)


class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """Reports `state=finalized` when all ranks have completed."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("finalized", special_rank=special_rank)


class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """Reports `state=aborted` when the rank leaves with an error."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("aborted", special_rank=special_rank)
