"""Which arguments does the Wrapper accept, and which does it refuse?"""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from worker_client import inprocess
from worker_client.inprocess import Compose, Wrapper, rank_assignment
from worker_client.inprocess.store import StoreMixin, TCPStore

SECOND = timedelta(seconds=1)


class MyStore(StoreMixin): ...


def function() -> int:
    return 3


def test_parameters_and_defaults_are_the_documented_ones():
    parameters = inspect.signature(Wrapper).parameters
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters.values())
    seconds = {
        name: each.default.total_seconds() for name, each in parameters.items() if isinstance(each.default, timedelta)
    }
    assert seconds == {
        "monitor_thread_interval": 1, "monitor_process_interval": 1, "heartbeat_interval": 1,
        "progress_watchdog_interval": 1, "soft_timeout": 60, "hard_timeout": 90, "heartbeat_timeout": 30,
        "barrier_timeout": 120, "completion_timeout": 120, "last_call_wait": 1, "termination_grace_time": 5,
    }  # fmt: skip
    for name in ("store_kwargs", "initialize", "finalize", "health_check", "completion", "terminate"):
        assert parameters[name].default is None
    assert parameters["store_factory"].default is TCPStore
    assert isinstance(parameters["abort"].default, inprocess.abort.AbortTorchDistributed)
    assert parameters["enabled"].default is True
    wrapper = Wrapper()
    assert all(hasattr(wrapper, name) for name in parameters)


@pytest.mark.parametrize(
    "given",
    [
        {"enabled": 1},
        {"store_factory": dict},
        {"store_factory": MyStore()},
        {"store_kwargs": [1]},
        {"initialize": function},
        {"abort": inprocess.initialize.RetryController()},
        {"finalize": 1},
        {"health_check": "no"},
        {"rank_assignment": None},
        {"rank_filter": rank_assignment.ShiftRanks()},
        {"soft_timeout": 60},
        {"last_call_wait": 1.0},
        {"monitor_process_logfile": Path("/x")},
        {"abort": Compose(inprocess.abort.AbortTorchDistributed(), inprocess.initialize.RetryController())},
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wrong_type_is_a_type_error(given: dict[str, Any]):
    with pytest.raises(TypeError):
        Wrapper(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"soft_timeout": 90 * SECOND}, "soft_timeout < hard_timeout < barrier_timeout"),
        ({"hard_timeout": 120 * SECOND}, "soft_timeout < hard_timeout < barrier_timeout"),
        ({"monitor_process_interval": 30 * SECOND}, "monitor_process_interval < heartbeat_timeout"),
        ({"heartbeat_timeout": 120 * SECOND}, "heartbeat_timeout < barrier_timeout"),
        ({"heartbeat_interval": 30 * SECOND}, "heartbeat_interval < heartbeat_timeout"),
        ({"monitor_process_interval": SECOND, "soft_timeout": SECOND}, "monitor_process_interval < soft_timeout"),
        (
            {"monitor_thread_interval": 9 * SECOND, "soft_timeout": 9 * SECOND},
            "monitor_thread_interval < soft_timeout",
        ),
        (
            {"progress_watchdog_interval": 9 * SECOND, "soft_timeout": 9 * SECOND},
            "progress_watchdog_interval < soft_timeout",
        ),
        ({"monitor_process_logfile": "relative.log"}, "monitor_process_logfile"),
        ({"monitor_process_pidfile": "relative.pid"}, "monitor_process_pidfile"),
    ],
)
def test_equal_durations_are_in_the_wrong_order(given: dict[str, Any], text: str):
    with pytest.raises(ValueError, match=text):
        Wrapper(**given)


def test_all_durations_in_the_wrong_order_are_named_at_once():
    with pytest.raises(ValueError, match="cannot make a Wrapper") as caught:
        Wrapper(barrier_timeout=6 * SECOND)
    assert str(caught.value) == (
        "cannot make a Wrapper: soft_timeout=0:01:00, hard_timeout=0:01:30, barrier_timeout=0:00:06, "
        "heartbeat_timeout=0:00:30 are in the wrong order; "
        "give values so that soft_timeout < hard_timeout < barrier_timeout, heartbeat_timeout < barrier_timeout"
    )


def test_what_the_guides_show_is_taken():
    shift = rank_assignment.ShiftRanks()
    assert Wrapper(rank_assignment=(shift,)).rank_assignment is shift
    assert Wrapper(store_factory=MyStore, store_kwargs={"port": 1}).store_kwargs == {"port": 1}
    with pytest.warns(DeprecationWarning, match="rank_filter"):
        wrapper = Wrapper(rank_filter=rank_assignment.MaxActiveWorldSize(2))
    assert isinstance(wrapper.rank_assignment, rank_assignment.RankAssignment)
