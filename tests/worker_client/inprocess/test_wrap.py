"""What is a wrapped function, and when may it be called?"""

from __future__ import annotations

import threading

import pytest

from worker_client.inprocess import Wrapper


def function() -> int:
    return 3


def test_disabled_is_the_function_itself():
    assert Wrapper(enabled=False)(function) is function
    wrapped = Wrapper()(function)
    assert wrapped is not function
    assert wrapped.__name__ == "function"


def test_the_function_belongs_on_the_main_thread():
    raised: list[BaseException] = []

    def call() -> None:
        try:
            Wrapper()(function)()
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def test_torch_distributed_must_not_be_initialised(monkeypatch: pytest.MonkeyPatch):
    class Distributed:
        is_available = staticmethod(lambda: True)
        is_initialized = staticmethod(lambda: True)

    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", Distributed)  # pyright: ignore
    with pytest.raises(ValueError, match=r"torch.distributed is initialised already"):
        Wrapper()(function)()
    monkeypatch.setattr(Distributed, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"this torch has no torch.distributed"):
        Wrapper()
