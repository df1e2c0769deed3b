"""How is a training function restarted inside its process when any rank of the job fails?

Names and modules are loaded when they are first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; importing typing costs too much here

if TYPE_CHECKING:
    from worker_client.inprocess import (
        abort,
        attribution,
        completion,
        compose,
        exception,
        finalize,
        health_check,
        initialize,
        monitor_thread,
        nested_restarter,
        progress_watchdog,
        rank_assignment,
        state,
        store,
        terminate,
        tools,
        wrap,
    )
    from worker_client.inprocess.call.call_wrapper import CallWrapper
    from worker_client.inprocess.compose import Compose
    from worker_client.inprocess.state import FrozenState, Mode, State
    from worker_client.inprocess.wrap import Wrapper

__all__ = [
    "CallWrapper",
    "Compose",
    "FrozenState",
    "Mode",
    "State",
    "Wrapper",
    "abort",
    "attribution",
    "completion",
    "compose",
    "exception",
    "finalize",
    "health_check",
    "initialize",
    "monitor_thread",
    "nested_restarter",
    "progress_watchdog",
    "rank_assignment",
    "state",
    "store",
    "terminate",
    "tools",
    "wrap",
]

# name → where it lives; "" for a module of this package
_HOMES = {
    "CallWrapper": "call.call_wrapper",
    "Compose": "compose",
    "FrozenState": "state",
    "Mode": "state",
    "State": "state",
    "Wrapper": "wrap",
    "abort": "",
    "attribution": "",
    "completion": "",
    "compose": "",
    "exception": "",
    "finalize": "",
    "health_check": "",
    "initialize": "",
    "monitor_thread": "",
    "nested_restarter": "",
    "progress_watchdog": "",
    "rank_assignment": "",
    "state": "",
    "store": "",
    "terminate": "",
    "tools": "",
    "wrap": "",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{home or name}")
    value = getattr(module, name) if home else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
