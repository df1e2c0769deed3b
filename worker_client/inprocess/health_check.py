"""Is this rank fit to continue after a fault? A check that can't answer does not count against the rank."""

from __future__ import annotations

import abc
import copy
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from worker_client.bounded_threads import BoundedThread, join_all
from worker_client.guarded_log import GuardedLog
from worker_client.inprocess.compose import Compose, flattened
from worker_client.inprocess.devices import device_checks
from worker_client.inprocess.devices.cuda import cuda_in_use
from worker_client.inprocess.exception import HealthCheckError, RestartError, TimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_client.inprocess.devices.device_checks import Verdict
    from worker_client.inprocess.state import FrozenState

DEVICE_CHECK_TIMEOUT_S = 5.0  # for the driver's answer

log = GuardedLog("holdfast")


class HealthCheck(abc.ABC):
    """Called on the main thread after every fault and at the start of every iteration. Raises if the rank is unfit.

    It must look only at this rank: others may be gone, or still in the wrapped function.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...


class CudaHealthCheck(HealthCheck):
    """Waits until the rank's GPU has finished all its work, at most `timeout`; does nothing if CUDA is not in use.

    Raises exception.TimeoutError if that takes longer, and CUDA's own error if its context is corrupt.
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
        if not thread.has_started:
            log.warning("cannot synchronize with GPU %d: %s; the rank counts as healthy", device, thread.error)
            return state
        if not thread.join(self.timeout.total_seconds()):
            raise TimeoutError(
                f"cannot synchronize with GPU {device}: its kernels hang, or many are pending, after {self.timeout}; "
                "see holdfast stacks, or give a longer timeout"
            )
        if thread.error is not None:
            raise thread.error
        cuda.synchronize(device)  # an error of the context may surface only on the caller's thread
        return state


class FaultCounterExceeded(RestartError):
    """Raised when a rank has failed by itself more often than allowed."""


class FaultCounter(HealthCheck):
    """Limits the faults that the function raises on this rank itself; None: no limit.

    Interruptions and timeouts do not count. Each call of the wrapped function starts at zero.
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
                f"max_rank_faults={self.max_rank_faults} times; the last was {type(state.fn_exception).__name__}; "
                "replace its node, or raise max_rank_faults"
            )
        return state

    def fresh(self) -> Self:
        """Returns the same check with its count at zero."""
        renewed = copy.copy(self)
        renewed.faults_count = 0
        return renewed


class _DeviceHealthCheck(HealthCheck):
    """Asks the driver about a device. `device_index` is NVML's number."""

    asks_each = False  # None means all devices that CUDA shows to this process, not just the rank's own (LOCAL_RANK)

    def __init__(self, device_index: int | None = None) -> None:
        self.device_index = device_index

    def _ask(self, what: str, check: Callable[[device_checks.Device], Verdict]) -> None:
        """Raises HealthCheckError only if the driver clearly reports an unfit device."""
        device = device_checks.Device(self.device_index, _local_rank(), self.asks_each)
        verdicts: list[Verdict] = []
        thread = BoundedThread(what, lambda: verdicts.append(check(device)))
        thread.start()
        join_all([thread], DEVICE_CHECK_TIMEOUT_S)
        for verdict in verdicts:
            if verdict.is_unfit:
                raise HealthCheckError(f"cannot go on with this rank: {verdict.reason}; repair or replace the device")
            log.debug("%s: %s", what, verdict.reason)


class ChainedGPUHealthCheck(_DeviceHealthCheck):
    """Finds the rank unfit if the driver reports that a GPU needs a reset, a drain or a reboot, or is lost.

    Without `device_index`, checks each GPU that CUDA shows to this process.
    """

    asks_each = True

    def __call__(self, state: FrozenState) -> FrozenState:
        self._ask("check the GPU", device_checks.check_gpu)
        return state


class ChainedNVLHealthCheck(_DeviceHealthCheck):
    """Checks the NVLinks of a GPU. A link that is down is only logged: it slows training but does not stop it.

    Without `device_index`, checks each GPU that CUDA shows to this process.
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
    """Finds the rank unfit if a link of the InfiniBand card nearest to a GPU went down since construction.

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
        """Returns the same check, starting from the current counters."""
        renewed = copy.copy(self)
        renewed.remember_links()
        return renewed

    def remember_links(self) -> None:
        """Takes the current counters as healthy."""

        def remember(device: device_checks.Device) -> Verdict:
            self._links_down, verdict = device_checks.links_down(device)
            return verdict

        self._ask("read the NIC's counters", remember)


def restart_health_check(health_check: HealthCheck | None) -> HealthCheck | None:
    """Returns the check that runs after a fault: NIC, NVLink and GPU, then the user's own, the last listed first.

    Without LOCAL_RANK, the rank's device is unknown: returns only the user's check, or None.
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
