"""Signals reach the callback by number; wrong names are reported at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import anyio
import pytest

from supervisor.edges.machine.own_process import signals
from supervisor.errors import ConfigurationError
from tests.edges.workers.worker_side import until


@pytest.fixture
def ignored_hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("ignored_hangup")
async def test_each_signal_is_told_and_the_old_handling_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    got: list[int] = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.receive, ("SIGTERM", "sighup", "SIGTERM"), got.append)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: got == [signal.SIGHUP])
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: got == [signal.SIGHUP, signal.SIGTERM])
        tasks.cancel_scope.cancel()
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("is_ignored", [False, True])
async def test_the_signals_are_ignored_then_if_that_is_asked_for(is_ignored: bool):
    before = signal.getsignal(signal.SIGTERM)
    async with anyio.create_task_group() as tasks:
        receive = partial(signals.receive, ("SIGTERM",), print, is_ignored_then=lambda: is_ignored)
        await tasks.start(receive)
        tasks.cancel_scope.cancel()
    after = signal.signal(signal.SIGTERM, before)
    assert after == (signal.SIG_IGN if is_ignored else before)


async def test_no_names_is_no_signals():
    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.receive, (), print)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("names", "why"), [(("SIGNONE",), "SIGNONE"), (("SIGKILL",), "SIGKILL"), (("",), "no")])
async def test_what_can_not_be_handled_is_refused(names: tuple[str, ...], why: str):
    with pytest.raises(ConfigurationError, match=why):
        await signals.receive(names, print)
