"""Is CUDA looked for without loading it, and does another thread use the caller's device?"""

from __future__ import annotations

import sys
import threading

import pytest

from tests.worker_client.inprocess.fake_cuda import Cuda
from worker_client.inprocess.devices import cuda


def on_a_thread(cuda_of_torch: Cuda, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the device that another thread uses."""
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda_of_torch)
    seen: list[int] = []
    run = cuda.on_current_device(lambda: seen.append(cuda_of_torch.current_device()))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return seen[0]


def test_another_thread_uses_the_caller_s_device(monkeypatch: pytest.MonkeyPatch):
    assert on_a_thread(Cuda(), monkeypatch) == 3


def test_a_process_that_has_not_initialised_cuda_uses_none(monkeypatch: pytest.MonkeyPatch):
    unused = Cuda(is_initialized=False)
    assert on_a_thread(unused, monkeypatch) == 0
    assert cuda.cuda_in_use() is None
    monkeypatch.setitem(sys.modules, "torch.cuda", used := Cuda())
    assert cuda.cuda_in_use() is used


def test_it_is_not_loaded_to_find_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    assert cuda.cuda_in_use() is None
    assert cuda.on_current_device(print) is print
    assert "torch.cuda" not in sys.modules
