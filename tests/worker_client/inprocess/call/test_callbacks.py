"""What do the callbacks around the function mean to the call when they raise?"""

from __future__ import annotations

import pytest

from tests.worker_client.inprocess.states import frozen_state
from worker_client.inprocess.call.callbacks import Callbacks, is_unfit
from worker_client.inprocess.call.wrapper_parameters import WrapperParameters
from worker_client.inprocess.completion import Completion
from worker_client.inprocess.exception import HealthCheckError, RestartAbort, TimeoutError
from worker_client.inprocess.finalize import Finalize
from worker_client.inprocess.health_check import (
    FaultCounter,
    FaultCounterExceeded,
    HealthCheck,
)
from worker_client.inprocess.initialize import Initialize
from worker_client.inprocess.state import FrozenState
from worker_client.inprocess.terminate import Terminate


def _refused_by(error: Exception) -> HealthCheckError:
    """Returns the error that ends a rank whose health check raises `error`."""

    class Refusing(HealthCheck):
        def __call__(self, state: FrozenState) -> FrozenState:
            raise error

    with pytest.raises(HealthCheckError) as refused:
        Callbacks(restart_health_check=Refusing()).after_fault(frozen_state())
    return refused.value


def test_who_is_refused_by_a_check_is_unfit_but_not_who_has_failed_too_often_or_goes_by_choice():
    assert is_unfit(_refused_by(RuntimeError("the device is broken")))
    assert is_unfit(_refused_by(TimeoutError("it does not answer")))
    assert not is_unfit(_refused_by(FaultCounterExceeded("too often")))
    assert not is_unfit(RestartAbort("enough"))
    assert not is_unfit(SystemExit(3))


class Noted(Initialize, HealthCheck, Finalize, Completion, Terminate):
    """A callback that notes its name."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def __call__(self, state: FrozenState) -> FrozenState:
        self.notes.append(self.name)
        return state


def test_each_callback_runs_where_it_belongs_and_in_this_order():
    notes: list[str] = []
    callbacks = Callbacks(
        *(Noted(each, notes) for each in ("initialize", "check", "finalize", "restart check", "done", "end"))
    )
    callbacks.before_function(frozen_state())
    assert notes == ["initialize", "check"]
    callbacks.after_fault(frozen_state())
    assert notes[2:] == ["finalize", "restart check"]
    callbacks.after_commit(frozen_state())
    callbacks.before_end(frozen_state())
    assert notes[4:] == ["done", "end"]


def test_a_call_without_callbacks_runs_none():
    callbacks = Callbacks()
    callbacks.before_function(frozen_state())
    callbacks.after_fault(frozen_state())
    callbacks.after_commit(frozen_state())
    callbacks.before_end(frozen_state())


def test_a_finalize_that_fails_ends_the_rank_with_its_own_error_and_before_any_check():
    notes: list[str] = []

    class Failing(Finalize):
        def __call__(self, state: FrozenState) -> FrozenState:
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        Callbacks(finalize=Failing(), restart_health_check=Noted("restart check", notes)).after_fault(frozen_state())
    assert notes == []


def test_each_call_counts_from_zero(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    wrapper = WrapperParameters(health_check=FaultCounter(1))
    failed = frozen_state(error=ValueError("mine"))
    for _ in range(2):
        Callbacks.of(wrapper).after_fault(failed)
    callbacks = Callbacks.of(wrapper)
    callbacks.after_fault(failed)
    with pytest.raises(HealthCheckError, match="it failed 2 times"):
        callbacks.after_fault(failed)


def test_a_completion_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture):
    class Failing(Completion):
        def __call__(self, state: FrozenState) -> FrozenState:
            raise KeyError("lost")

    Callbacks(completion=Failing()).after_commit(frozen_state())
    assert "completion has failed; the call has succeeded all the same" in caplog.text
