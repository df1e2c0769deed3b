"""Which callbacks run on the main thread around the function, and what does it mean when one of them raises?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from worker_client.guarded_log import GuardedLog
from worker_client.inprocess.call.failed_iteration import in_a_line
from worker_client.inprocess.compose import fresh
from worker_client.inprocess.exception import HealthCheckError
from worker_client.inprocess.health_check import FaultCounterExceeded

if TYPE_CHECKING:
    from typing import Self

    from worker_client.inprocess.call.wrapper_parameters import WrapperParameters
    from worker_client.inprocess.completion import Completion
    from worker_client.inprocess.finalize import Finalize
    from worker_client.inprocess.health_check import HealthCheck
    from worker_client.inprocess.initialize import Initialize
    from worker_client.inprocess.state import FrozenState
    from worker_client.inprocess.terminate import Terminate

log = GuardedLog("holdfast.inprocess")


def is_unfit(error: BaseException) -> bool:
    """Returns whether a health check rejected the process, so that a new one may do better.

    A rank that has used up its allowed faults is not unfit: the user chose to end it.
    """
    return isinstance(error, HealthCheckError) and not isinstance(error.__cause__, FaultCounterExceeded)


class Callbacks(NamedTuple):
    """The callbacks of one call, without what counters remember of earlier calls."""

    initialize: Initialize | None = None
    health_check: HealthCheck | None = None
    finalize: Finalize | None = None
    restart_health_check: HealthCheck | None = None
    completion: Completion | None = None
    terminate: Terminate | None = None

    @classmethod
    def of(cls, parameters: WrapperParameters) -> Self:
        return cls(
            fresh(parameters.initialize),
            fresh(parameters.health_check),
            fresh(parameters.finalize),
            fresh(parameters.restart_health_check),
            parameters.completion,
            parameters.terminate,
        )

    def before_function(self, state: FrozenState) -> None:
        """Runs at the start of every iteration. An exception is a fault of the iteration."""
        if self.initialize is not None:
            self.initialize(state)
        if self.health_check is not None:
            self.health_check(state)

    def after_fault(self, state: FrozenState) -> None:
        """Runs between two iterations. An exception ends the rank; HealthCheckError means that a check rejected it."""
        if self.finalize is not None:
            self.finalize(state)
        if self.restart_health_check is not None:
            try:
                self.restart_health_check(state)
            except Exception as error:  # a check says in its own words why the rank is unfit
                raise HealthCheckError(
                    f"cannot go on with rank {state.rank}: {in_a_line(error)}; repair what its health check found"
                ) from error

    def after_commit(self, state: FrozenState) -> None:
        """Runs once all ranks have completed. An exception is only logged: nothing may undo the call's success."""
        try:
            if self.completion is not None:
                self.completion(state)
        except Exception:  # the call is committed
            log.exception("rank %d: completion has failed; the call has succeeded all the same", state.rank)

    def before_end(self, state: FrozenState) -> None:
        """Runs on a rank that leaves the call by a fault of its own, or that is discarded."""
        if self.terminate is not None:
            self.terminate(state)
