"""The simple families of callbacks: limits, counts, lines for a restarter around this one."""

from __future__ import annotations

import re
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from worker_client import inprocess
from worker_client.inprocess.abort import Abort
from worker_client.inprocess.call.callbacks import Callbacks, is_unfit
from worker_client.inprocess.completion import Completion
from worker_client.inprocess.compose import Compose, fresh
from worker_client.inprocess.exception import HealthCheckError, RestartAbort, RestartError, TimeoutError
from worker_client.inprocess.finalize import Finalize, ThreadedFinalize
from worker_client.inprocess.health_check import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    CudaHealthCheck,
    FaultCounter,
    FaultCounterExceeded,
    HealthCheck,
    restart_health_check,
)
from worker_client.inprocess.initialize import Initialize, RetryController
from worker_client.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterCallback,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
)
from worker_client.inprocess.state import FrozenState, State
from worker_client.inprocess.terminate import Terminate


def _state(
    world_size: int = 4, active: int | None = 4, iteration: int = 0, error: Exception | None = None, rank: int = 0
) -> FrozenState:
    state = State(rank, world_size, active_world_size=active, iteration=iteration, fn_exception=error)
    return state.freeze()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("initialize", "Initialize"),
        ("abort", "Abort"),
        ("finalize", "Finalize"),
        ("health_check", "HealthCheck"),
        ("completion", "Completion"),
        ("terminate", "Terminate"),
    ],
)
def test_each_family_is_reached_by_its_module_and_is_abstract(name: str, kind: str):
    family = getattr(getattr(inprocess, name), kind)
    with pytest.raises(TypeError, match="abstract"):
        family()


# --- RetryController -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [_state(), _state(iteration=2), _state(world_size=2, active=2)])
def test_retries_go_on_within_the_limits(state: FrozenState):
    assert RetryController(max_iterations=3, min_world_size=2, min_active_world_size=2)(state) is state


def test_no_limit_of_iterations_is_the_default():
    RetryController()(_state(world_size=1, active=1, iteration=10**6))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (_state(iteration=3), "iteration=3"),
        (_state(world_size=1, active=1), "world_size=1 "),
        (_state(active=1), "active_world_size=1 "),
        (_state(active=0), "active_world_size=0 "),
        (_state(active=None), "active_world_size=0 "),
    ],
)
def test_beyond_a_limit_the_call_ends_for_good(state: FrozenState, said: str):
    with pytest.raises(RestartAbort, match=said) as raised:
        RetryController(max_iterations=3, min_world_size=2, min_active_world_size=2)(state)
    assert not isinstance(raised.value, Exception)
    for name in ("max_iterations=3", "min_world_size=2", "min_active_world_size=2", f"iteration={state.iteration}"):
        assert name in str(raised.value)


# --- FaultCounter --------------------------------------------------------------------------------------------------


def test_a_rank_is_charged_for_what_it_raised_itself_and_for_nothing_else():
    counter = FaultCounter(max_rank_faults=1)
    failed = _state(error=ValueError("mine"))
    assert counter(_state()) is not None
    assert counter(failed) is failed
    counter(_state())
    with pytest.raises(FaultCounterExceeded, match=r"failed 2 times.*max_rank_faults=1.*ValueError") as raised:
        counter(failed)
    assert isinstance(raised.value, RestartError)


def test_zero_faults_may_be_the_limit_and_none_is_no_limit():
    with pytest.raises(FaultCounterExceeded):
        FaultCounter(0)(_state(error=ValueError()))
    counter = FaultCounter()
    for _ in range(100):
        counter(_state(error=ValueError()))


def test_each_call_of_the_function_counts_anew_also_inside_a_composition():
    counter = FaultCounter(1)
    counter(_state(error=ValueError()))
    renewed = fresh(Compose(CudaHealthCheck(), counter))
    renewed(_state(error=ValueError()))
    with pytest.raises(FaultCounterExceeded):
        renewed(_state(error=ValueError()))
    assert counter.faults_count == 1


# --- the check after a fault ---------------------------------------------------------------------------------------


def test_without_local_rank_it_is_the_users_own(monkeypatch: pytest.MonkeyPatch):
    own = FaultCounter()
    for value in (None, "", "first"):
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if value is not None:
            monkeypatch.setenv("LOCAL_RANK", value)
        assert restart_health_check(None) is None
        assert restart_health_check(own) is own


def test_with_local_rank_the_devices_come_first_then_the_users_from_last_to_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    first, second, third = FaultCounter(), CudaHealthCheck(), FaultCounter()
    check = restart_health_check(Compose(first, Compose(second, third)))
    assert isinstance(check, HealthCheck)
    assert isinstance(check, Compose)
    assert check.instances[:3] == (first, second, third)
    devices = (ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck)
    assert [isinstance(*each) for each in zip(check.instances[3:], devices, strict=True)] == [True] * 3
    state = _state()
    assert check(state) is state  # there is nothing of the kind here
    alone = restart_health_check(None)
    assert isinstance(alone, Compose)
    assert [isinstance(*each) for each in zip(alone.instances, devices, strict=True)] == [True] * 3


def _refused_by(error: Exception) -> HealthCheckError:
    """Returns the error that ends a rank whose health check raises `error`."""

    class Refusing(HealthCheck):
        def __call__(self, state: FrozenState) -> FrozenState:
            raise error

    with pytest.raises(HealthCheckError) as refused:
        Callbacks(None, None, None, Refusing()).after_fault(_state())
    return refused.value


def test_who_is_refused_by_a_check_is_unfit_but_not_who_has_failed_too_often_or_goes_by_choice():
    assert is_unfit(_refused_by(RuntimeError("the device is broken")))
    assert is_unfit(_refused_by(TimeoutError("it does not answer")))
    assert not is_unfit(_refused_by(FaultCounterExceeded("too often")))
    assert not is_unfit(RestartAbort("enough"))
    assert not is_unfit(SystemExit(3))


# --- ThreadedFinalize, CudaHealthCheck -----------------------------------------------------------------------------


class Cuda(SimpleNamespace):
    """The used part of torch.cuda; the device of each thread."""

    def __init__(self, *, is_initialized: bool = True, count: int = 8, error: Exception | None = None) -> None:
        super().__init__()
        self.devices = {threading.get_ident(): 3}
        self.synchronized: list[tuple[int, bool]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self._is_initialized, self._count, self._error = is_initialized, count, error

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._is_initialized

    def current_device(self) -> int:
        return self.devices.get(threading.get_ident(), 0)

    def device_count(self) -> int:
        return self._count

    def set_device(self, device: int) -> None:
        self.devices[threading.get_ident()] = device

    def synchronize(self, device: int) -> None:
        self.synchronized.append((device, threading.current_thread() is threading.main_thread()))
        self.may_end.wait()
        if self._error is not None:
            raise self._error


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)


def test_finalize_runs_on_a_thread_with_its_arguments_and_needs_no_gpu(no_cuda: None):
    seen: list[object] = []

    def finish(*args: object, **kwargs: object) -> None:
        seen.extend([args, kwargs, threading.current_thread() is threading.main_thread()])

    state = _state()
    finalize = ThreadedFinalize(timedelta(seconds=30), finish, (1, 2), {"three": 3})
    assert isinstance(finalize, Finalize)
    assert finalize(state) is state
    assert seen == [(1, 2), {"three": 3}, False]


def test_what_finalize_raises_is_raised_in_the_caller(no_cuda: None):
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        ThreadedFinalize(timedelta(seconds=30), fail)(_state())


def test_a_finalize_that_takes_too_long_is_told_by_name(no_cuda: None):
    may_end = threading.Event()

    def linger() -> None:
        may_end.wait()

    try:
        with pytest.raises(TimeoutError, match="linger"):
            ThreadedFinalize(timedelta(milliseconds=50), linger)(_state())
    finally:
        may_end.set()


def test_finalize_uses_the_callers_device(monkeypatch: pytest.MonkeyPatch):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    seen: list[int] = []
    ThreadedFinalize(timedelta(seconds=30), lambda: seen.append(cuda.current_device()))(_state())
    assert seen == [3]


@pytest.mark.parametrize(("local_rank", "device"), [("5", 5), ("8", 3), (None, 3)])
def test_the_ranks_gpu_is_synchronized_on_a_thread_and_then_here(
    monkeypatch: pytest.MonkeyPatch, local_rank: str | None, device: int
):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    state = _state()
    assert CudaHealthCheck()(state) is state
    assert cuda.synchronized == [(device, False), (device, True)]


def test_an_error_of_cuda_comes_out_of_the_check(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.cuda", Cuda(error=RuntimeError("illegal memory access")))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        CudaHealthCheck()(_state())


def test_a_gpu_that_does_not_come_to_an_end_is_a_timeout(monkeypatch: pytest.MonkeyPatch):
    cuda = Cuda()
    cuda.may_end.clear()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    try:
        with pytest.raises(TimeoutError, match=r"GPU 3 within 0:00:00\.05"):
            CudaHealthCheck(timedelta(milliseconds=50))(_state())
    finally:
        cuda.may_end.set()


def test_cuda_that_is_not_in_use_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    cuda = Cuda(is_initialized=False)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    CudaHealthCheck()(_state())
    assert cuda.synchronized == []


# --- lines for a restarter around this one -------------------------------------------------------------------------


def test_the_lines_of_one_restart(capsys: pytest.CaptureFixture[str]):
    completed = NestedRestarterHandlingCompleted()
    for callback in (
        completed,
        NestedRestarterHandlingStarting(),
        completed,
        NestedRestarterFinalized(),
        NestedRestarterAborted(),
    ):
        state = _state()
        assert callback(state) is state
    lines = capsys.readouterr().out.splitlines()
    start = re.compile(r"\[[^\]]+\] \[ALWAYS\] \[InprocessRestarter\.Restarter\] \[NestedRestarter\] ")
    assert all(start.match(line) for line in lines)
    assert [start.sub("", line) for line in lines] == [
        "name=[InProcess] state=initialize",
        "name=[InProcess] state=handling stage=starting",
        "name=[InProcess] state=handling stage=completed",
        "name=[InProcess] state=finalized",
        "name=[InProcess] state=aborted",
    ]


def test_each_call_of_the_function_begins_with_initialize(capsys: pytest.CaptureFixture[str]):
    completed = NestedRestarterHandlingCompleted()
    completed(_state())
    fresh(completed)(_state())
    assert [line.endswith("state=initialize") for line in capsys.readouterr().out.splitlines()] == [True, True]


def test_only_the_special_rank_speaks(capsys: pytest.CaptureFixture[str]):
    NestedRestarterFinalized()(_state(rank=1))
    assert capsys.readouterr().out == ""
    NestedRestarterFinalized(special_rank=1)(_state(rank=1))
    NestedRestarterCallback("testing", "now", special_rank=1)(_state(rank=1))
    assert "state=testing stage=now" in capsys.readouterr().out


def test_each_line_belongs_to_its_family():
    assert isinstance(NestedRestarterHandlingCompleted(), Initialize)
    assert isinstance(NestedRestarterHandlingStarting(), Abort)
    assert isinstance(NestedRestarterFinalized(), Completion)
    assert isinstance(NestedRestarterAborted(), Terminate)
    assert isinstance(Compose(NestedRestarterHandlingCompleted(), RetryController()), Initialize)
