"""What runs inside the training process? Heartbeats, sections, calculated timeouts, workload control, commits.

Names are loaded when they are first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; importing typing costs too much here

if TYPE_CHECKING:
    from worker_client.committing import commit
    from worker_client.errors import LeaseLostError, RankMonitorClientError
    from worker_client.fencing_tokens import fencing_token
    from worker_client.rank_monitor_client import RankMonitorClient
    from worker_client.workload_control import WorkloadAction, WorkloadControlRequest

__all__ = [
    "LeaseLostError",
    "RankMonitorClient",
    "RankMonitorClientError",
    "WorkloadAction",
    "WorkloadControlRequest",
    "commit",
    "fencing_token",
]

_HOMES = {
    "LeaseLostError": "worker_client.errors",
    "RankMonitorClient": "worker_client.rank_monitor_client",
    "RankMonitorClientError": "worker_client.errors",
    "WorkloadAction": "worker_client.workload_control",
    "WorkloadControlRequest": "worker_client.workload_control",
    "commit": "worker_client.committing",
    "fencing_token": "worker_client.fencing_tokens",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
