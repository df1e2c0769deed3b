"""How is a finalize run, bounded and reported?"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

import pytest

from tests.worker_client.inprocess.fake_cuda import Cuda
from tests.worker_client.inprocess.states import frozen_state
from worker_client.inprocess.exception import TimeoutError
from worker_client.inprocess.finalize import Finalize, ThreadedFinalize


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)


def test_finalize_runs_on_a_thread_with_its_arguments_and_needs_no_gpu(no_cuda: None):
    seen: list[object] = []

    def finish(*args: object, **kwargs: object) -> None:
        seen.extend([args, kwargs, threading.current_thread() is threading.main_thread()])

    state = frozen_state()
    finalize = ThreadedFinalize(timedelta(seconds=30), finish, (1, 2), {"three": 3})
    assert isinstance(finalize, Finalize)
    assert finalize(state) is state
    assert seen == [(1, 2), {"three": 3}, False]


def test_what_finalize_raises_is_raised_in_the_caller(no_cuda: None):
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        ThreadedFinalize(timedelta(seconds=30), fail)(frozen_state())


def test_a_finalize_that_takes_too_long_is_told_by_name(no_cuda: None):
    may_end = threading.Event()

    def linger() -> None:
        may_end.wait()

    try:
        with pytest.raises(TimeoutError, match="linger"):
            ThreadedFinalize(timedelta(milliseconds=50), linger)(frozen_state())
    finally:
        may_end.set()


def test_finalize_uses_the_callers_device(monkeypatch: pytest.MonkeyPatch):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    seen: list[int] = []
    ThreadedFinalize(timedelta(seconds=30), lambda: seen.append(cuda.current_device()))(frozen_state())
    assert seen == [3]
