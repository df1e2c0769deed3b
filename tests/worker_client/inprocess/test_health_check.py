"""When does a health check find its rank unfit?"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

import pytest

from tests.worker_client.inprocess.fake_cuda import Cuda
from tests.worker_client.inprocess.states import frozen_state
from worker_client.inprocess.compose import Compose, fresh
from worker_client.inprocess.exception import RestartError, TimeoutError
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


def test_a_rank_is_charged_for_what_it_raised_itself_and_for_nothing_else():
    counter = FaultCounter(max_rank_faults=1)
    failed = frozen_state(error=ValueError("mine"))
    assert counter(frozen_state()) is not None
    assert counter(failed) is failed
    counter(frozen_state())
    with pytest.raises(FaultCounterExceeded, match=r"failed 2 times.*max_rank_faults=1.*ValueError") as raised:
        counter(failed)
    assert isinstance(raised.value, RestartError)


def test_zero_faults_may_be_the_limit_and_none_is_no_limit():
    with pytest.raises(FaultCounterExceeded):
        FaultCounter(0)(frozen_state(error=ValueError()))
    counter = FaultCounter()
    for _ in range(100):
        counter(frozen_state(error=ValueError()))


def test_each_call_of_the_function_counts_anew_also_inside_a_composition():
    counter = FaultCounter(1)
    counter(frozen_state(error=ValueError()))
    renewed = fresh(Compose(CudaHealthCheck(), counter))
    renewed(frozen_state(error=ValueError()))
    with pytest.raises(FaultCounterExceeded):
        renewed(frozen_state(error=ValueError()))
    assert counter.faults_count == 1


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
    state = frozen_state()
    assert check(state) is state  # there is nothing of the kind here
    alone = restart_health_check(None)
    assert isinstance(alone, Compose)
    assert [isinstance(*each) for each in zip(alone.instances, devices, strict=True)] == [True] * 3


@pytest.mark.parametrize(("local_rank", "device"), [("5", 5), ("8", 3), (None, 3)])
def test_the_ranks_gpu_is_synchronized_on_a_thread_and_then_here(
    monkeypatch: pytest.MonkeyPatch, local_rank: str | None, device: int
):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    state = frozen_state()
    assert CudaHealthCheck()(state) is state
    assert cuda.synchronized == [(device, False), (device, True)]


def test_an_error_of_cuda_comes_out_of_the_check(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.cuda", Cuda(error=RuntimeError("illegal memory access")))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        CudaHealthCheck()(frozen_state())


def test_a_gpu_that_does_not_come_to_an_end_is_a_timeout(monkeypatch: pytest.MonkeyPatch):
    cuda = Cuda()
    cuda.may_end.clear()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    try:
        with pytest.raises(TimeoutError, match=r"GPU 3: its kernels hang, or many are pending, after 0:00:00\.05"):
            CudaHealthCheck(timedelta(milliseconds=50))(frozen_state())
    finally:
        cuda.may_end.set()


def test_a_rank_without_room_for_a_thread_counts_as_healthy(monkeypatch: pytest.MonkeyPatch):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    state = frozen_state()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        assert CudaHealthCheck()(state) is state
    assert cuda.synchronized == []


def test_cuda_that_is_not_in_use_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    cuda = Cuda(is_initialized=False)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    CudaHealthCheck()(frozen_state())
    assert cuda.synchronized == []
