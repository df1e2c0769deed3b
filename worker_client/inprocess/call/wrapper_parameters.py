"""Which parameters does a Wrapper take, what are their defaults, and which values are refused?"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from datetime import timedelta
from typing import Any, TypeVar

from worker_client.call_protocol import CallSettings
from worker_client.inprocess.abort import Abort, AbortTorchDistributed
from worker_client.inprocess.completion import Completion
from worker_client.inprocess.compose import Compose
from worker_client.inprocess.finalize import Finalize
from worker_client.inprocess.health_check import HealthCheck, restart_health_check
from worker_client.inprocess.initialize import Initialize
from worker_client.inprocess.rank_assignment import ActivateAllRanks, RankAssignment, RankFilter, ShiftRanks, resolve
from worker_client.inprocess.store import StoreMixin, TCPStore
from worker_client.inprocess.terminate import Terminate

_T = TypeVar("_T")

# Which durations must be shorter than which others; the same as in the reference product.
_ORDERS = (
    ("soft_timeout", "hard_timeout", "barrier_timeout"),
    ("monitor_process_interval", "barrier_timeout"),
    ("heartbeat_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout"),
    ("monitor_process_interval", "heartbeat_timeout"),
    ("monitor_process_interval", "soft_timeout"),
    ("monitor_thread_interval", "soft_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)


_ABORT = AbortTorchDistributed()
_RANK_ASSIGNMENT = Compose(ActivateAllRanks(), ShiftRanks())


class WrapperParameters:
    """Holds a Wrapper's parameters, each under its name. Raises TypeError and ValueError for bad values."""

    def __init__(
        self,
        *,
        store_factory: type[StoreMixin] = TCPStore,
        store_kwargs: dict[str, Any] | None = None,
        initialize: Initialize | None = None,
        abort: Abort | None = _ABORT,
        finalize: Finalize | None = None,
        health_check: HealthCheck | None = None,
        rank_assignment: RankAssignment | tuple[RankAssignment] = _RANK_ASSIGNMENT,
        rank_filter: RankFilter | None = None,
        monitor_thread_interval: timedelta = timedelta(seconds=1),
        monitor_process_interval: timedelta = timedelta(seconds=1),
        heartbeat_interval: timedelta = timedelta(seconds=1),
        progress_watchdog_interval: timedelta = timedelta(seconds=1),
        soft_timeout: timedelta = timedelta(seconds=60),
        hard_timeout: timedelta = timedelta(seconds=90),
        heartbeat_timeout: timedelta = timedelta(seconds=30),
        barrier_timeout: timedelta = timedelta(seconds=120),
        completion_timeout: timedelta = timedelta(seconds=120),
        last_call_wait: timedelta = timedelta(seconds=1),
        termination_grace_time: timedelta = timedelta(seconds=5),
        monitor_process_logfile: str | None = None,
        monitor_process_pidfile: str | None = None,
        enabled: bool = True,
        completion: Completion | None = None,
        terminate: Terminate | None = None,
    ) -> None:
        _check_type("enabled", enabled, bool)
        self.enabled = enabled
        self.store_factory = _check_store_factory(store_factory)
        _check_type("store_kwargs", {} if store_kwargs is None else store_kwargs, dict)
        self.store_kwargs: dict[str, Any] = {} if store_kwargs is None else store_kwargs

        self.initialize = _check_optional("initialize", initialize, Initialize)
        self.abort = _check_optional("abort", abort, Abort)
        self.finalize = _check_optional("finalize", finalize, Finalize)
        self.health_check = _check_optional("health_check", health_check, HealthCheck)
        self.completion = _check_optional("completion", completion, Completion)
        self.terminate = _check_optional("terminate", terminate, Terminate)
        if rank_filter is not None:
            warnings.warn(
                "rank_filter is deprecated: compose it with rank_assignment", DeprecationWarning, stacklevel=2
            )
        self.rank_filter = rank_filter
        self.rank_assignment = resolve(rank_assignment, rank_filter)

        self.monitor_thread_interval = _check_type("monitor_thread_interval", monitor_thread_interval, timedelta)
        self.monitor_process_interval = _check_type("monitor_process_interval", monitor_process_interval, timedelta)
        self.heartbeat_interval = _check_type("heartbeat_interval", heartbeat_interval, timedelta)
        self.progress_watchdog_interval = _check_type(
            "progress_watchdog_interval", progress_watchdog_interval, timedelta
        )
        self.soft_timeout = _check_type("soft_timeout", soft_timeout, timedelta)
        self.hard_timeout = _check_type("hard_timeout", hard_timeout, timedelta)
        self.heartbeat_timeout = _check_type("heartbeat_timeout", heartbeat_timeout, timedelta)
        self.barrier_timeout = _check_type("barrier_timeout", barrier_timeout, timedelta)
        self.completion_timeout = _check_type("completion_timeout", completion_timeout, timedelta)
        self.last_call_wait = _check_type("last_call_wait", last_call_wait, timedelta)
        self.termination_grace_time = _check_type("termination_grace_time", termination_grace_time, timedelta)
        self.monitor_process_logfile = _check_path("monitor_process_logfile", monitor_process_logfile)
        self.monitor_process_pidfile = _check_path("monitor_process_pidfile", monitor_process_pidfile)
        self._check_orders()
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and not distributed.is_available():
            raise ValueError("cannot make a Wrapper: this torch has no torch.distributed; install one that has")
        self.restart_health_check = restart_health_check(self.health_check)

    def settings(self) -> CallSettings:
        """Returns the settings that the coordinator needs."""
        return CallSettings(**{name: getattr(self, name) for name in CallSettings._fields})

    def _check_orders(self) -> None:
        """Raises one ValueError for all: a user who shortens one limit often has to shorten others, too."""
        wrong = [names for names in _ORDERS if not self._grow(names)]
        if wrong:
            told = ", ".join(f"{name}={getattr(self, name)}" for name in dict.fromkeys(itertools.chain(*wrong)))
            orders = ", ".join(" < ".join(names) for names in wrong)
            raise ValueError(f"cannot make a Wrapper: {told} are in the wrong order; give values so that {orders}")

    def _grow(self, names: tuple[str, ...]) -> bool:
        values: list[timedelta] = [getattr(self, name) for name in names]
        return all(shorter < longer for shorter, longer in itertools.pairwise(values))


def _check_type(name: str, value: object, wanted: type[_T]) -> _T:
    """Returns the value itself. Raises TypeError."""
    if not isinstance(value, wanted):
        raise TypeError(f"cannot make a Wrapper: {name}={value!r} is not a {wanted.__name__}; give one")
    return value


def _check_optional(name: str, value: object, wanted: type[_T]) -> _T | None:
    return None if value is None else _check_type(name, value, wanted)


def _check_store_factory(value: object) -> type[StoreMixin]:
    if not isinstance(value, type) or not issubclass(value, StoreMixin):
        raise TypeError(
            f"cannot make a Wrapper: store_factory={value!r} is not a class of StoreMixin; give one, such as TCPStore"
        )
    return value


def _check_path(name: str, value: object) -> str | None:
    path = _check_optional(name, value, str)
    if path is not None and not os.path.isabs(path):
        raise ValueError(f"cannot make a Wrapper: {name}={path!r} is not an absolute path; give one that begins with /")
    return path
