"""Is this rank fit to go on after a fault? A check that cannot answer says nothing against the rank."""

from __future__ import annotations

import abc
import copy
import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from worker_client.bounded_threads import BoundedThread, join_all
from worker_client.inprocess.compose import Compose, flattened
from worker_client.inprocess.devices import device_checks
from worker_client.inprocess.devices.cuda import cuda_in_use
from worker_client.inprocess.exception import HealthCheckError, RestartError, TimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_client.inprocess.devices.device_checks import Verdict
    from worker_client.inprocess.state import FrozenState

DEVICE_CHECK_TIMEOUT_S = 5.0  # a driver that doesn't answer by then has not answered

log = logging.getLogger("holdfast")


class HealthCheck(abc.ABC):
    """Called on the main thread after every fault and at the start of every iteration. Raises if the rank is unfit.

    It looks at this rank alone: others may be gone, or still in the wrapped function.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...


class CudaHealthCheck(HealthCheck):
    """Waits until all that was given to the rank's GPU is done, at most `timeout`; nothing where CUDA is not in use.

    Raises exception.TimeoutError if it takes longer, and CUDA's own error if its context is corrupt.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=30)) -> None:
        self.timeout = timeout

    def __call__(self, state: FrozenState) -> FrozenState:
        cuda = cuda_in_use()
        if cuda is None:
            return state
        local_rank = _local_rank()
        device = cuda.current_device()
        if local_rank is not None and local_rank < cuda.device_count():
            device = local_rank
        thread = BoundedThread("synchronize with the GPU", lambda: cuda.synchronize(device))
        thread.start()
        if not thread.join(self.timeout.total_seconds()):
            raise TimeoutError(
                f"cannot synchronize with GPU {device} within {self.timeout}; kernels hang, or many are pending"
            )
        if thread.error is not None:
            raise thread.error
        cuda.synchronize(device)  # an error of the context may come out on the caller's thread alone
        return state


class FaultCounterExceeded(RestartError):
    """Raised when a rank has failed by itself more often than it may."""


class FaultCounter(HealthCheck):
    """Counts the faults that the function raised on this rank itself; None is no limit.

    A rank that was only interrupted or timed out is not charged. Each call of the wrapped function counts from zero.
    """

    def __init__(self, max_rank_faults: int | None = None) -> None:
        self.max_rank_faults = max_rank_faults
        self.faults_count = 0

    def __call__(self, state: FrozenState) -> FrozenState:
        if state.fn_exception is None:
            return state
        self.faults_count += 1
        if self.max_rank_faults is not None and self.faults_count > self.max_rank_faults:
            raise FaultCounterExceeded(
                f"cannot go on with rank {state.rank}: it failed {self.faults_count} times and may fail "
                f"max_rank_faults={self.max_rank_faults} times; the last was {type(state.fn_exception).__name__}"
            )
        return state

    def fresh(self) -> Self:
        """Returns the same check with nothing counted."""
        renewed = copy.copy(self)
        renewed.faults_count = 0
        return renewed


class _DeviceHealthCheck(HealthCheck):
    """Asks the driver about a device. `device_index` is NVML's."""

    asks_each = False  # None is each device that CUDA shows to this process, not the rank's own alone, by LOCAL_RANK

    def __init__(self, device_index: int | None = None) -> None:
        self.device_index = device_index

    def _ask(self, what: str, check: Callable[[device_checks.Device], Verdict]) -> None:
        """Raises HealthCheckError for a clear no, and for nothing else."""
        device = device_checks.Device(self.device_index, _local_rank(), self.asks_each)
        verdicts: list[Verdict] = []
        thread = BoundedThread(what, lambda: verdicts.append(check(device)))
        thread.start()
        join_all([thread], DEVICE_CHECK_TIMEOUT_S)
        for verdict in verdicts:
            if verdict.is_unfit:
                raise HealthCheckError(f"cannot go on with this rank: {verdict.reason}")
            log.debug("%s: %s", what, verdict.reason)


class ChainedGPUHealthCheck(_DeviceHealthCheck):
    """Unfit where the driver says that a GPU needs a reset, a drain or a reboot, or is lost.

    Without `device_index`, each GPU that CUDA shows to this process is asked.
    """

    asks_each = True

    def __call__(self, state: FrozenState) -> FrozenState:
        self._ask("check the GPU", device_checks.check_gpu)
        return state


class ChainedNVLHealthCheck(_DeviceHealthCheck):
    """Looks at the NVLinks of a GPU. One that is down is logged: it slows training but does not stop it.

    Without `device_index`, each GPU that CUDA shows to this process is asked.
    """

    asks_each = True

    def __call__(self, state: FrozenState) -> FrozenState:
        self._ask("check the NVLinks", device_checks.check_nvlinks)
        return state


class _OwnGPUHealthCheck(ChainedGPUHealthCheck):
    """Checks only the rank's own GPU; the other ranks check theirs."""

    asks_each = False


class _OwnNVLHealthCheck(ChainedNVLHealthCheck):
    """Checks only the NVLinks of the rank's own GPU."""

    asks_each = False


class ChainedNicHealthCheck(_DeviceHealthCheck):
    """Unfit where a link of the InfiniBand card that is nearest to a GPU went down since construction.

    Without `device_index`, that is the rank's own GPU.
    """

    def __init__(self, device_index: int | None = None) -> None:
        super().__init__(device_index)
        self._links_down: dict[str, int] = {}
        self.remember_links()

    def __call__(self, state: FrozenState) -> FrozenState:
        self._ask("check the NIC", lambda device: device_checks.check_nic(device, self._links_down))
        return state

    def fresh(self) -> Self:
        """Returns the same check, starting from the present counters."""
        renewed = copy.copy(self)
        renewed.remember_links()
        return renewed

    def remember_links(self) -> None:
        """Takes the present counters as healthy."""

        def remember(device: device_checks.Device) -> Verdict:
            self._links_down, verdict = device_checks.links_down(device)
            return verdict

        self._ask("read the NIC's counters", remember)


def restart_health_check(health_check: HealthCheck | None) -> HealthCheck | None:
    """Returns the check that runs after a fault: NIC, NVLink and GPU, then the user's own, its last one first.

    Without LOCAL_RANK nobody knows the rank's device: then it is the user's check, or None.
    """
    if _local_rank() is None:
        return health_check
    own = flattened((health_check,)) if health_check is not None else ()
    checks = [check for check in own if isinstance(check, HealthCheck)]
    return Compose(*checks, _OwnGPUHealthCheck(), _OwnNVLHealthCheck(), ChainedNicHealthCheck())


def _local_rank() -> int | None:
    try:
        return int(os.environ["LOCAL_RANK"])
    except (KeyError, ValueError):
        return None
