"""Can a rank that waits for another host's store be interrupted, and does it connect once the store is served?"""
# pyright: basic, reportPrivateImportUsage=false

from __future__ import annotations

import ctypes
import socket
import sys
import threading
from datetime import timedelta
from time import monotonic

import pytest
import torch.distributed as dist

from worker_client.inprocess.releasing.awaited_store_server import InterruptibleWaits, wait_until_served

HERE = "127.0.0.1"
PATIENCE_S = 60.0
RENDEZVOUS = sys.modules["torch.distributed.rendezvous"]


def unserved_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return probe.getsockname()[1]


class Interrupted(BaseException):
    pass


def test_a_wait_for_a_store_that_nobody_serves_can_be_interrupted():
    waits, outcome, is_in = InterruptibleWaits(), [], threading.Event()
    waits.begin()

    def meet() -> None:
        is_in.set()
        try:
            dist.rendezvous(f"tcp://{HERE}:{unserved_port()}", 1, 2, timeout=timedelta(seconds=PATIENCE_S)).__next__()
        except Interrupted:
            outcome.append("interrupted")

    try:
        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        assert is_in.wait(PATIENCE_S)
        thread.join(0.3)
        assert thread.is_alive()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))
        thread.join(PATIENCE_S / 2)
    finally:
        waits.end()
    assert outcome == ["interrupted"]


def test_it_connects_once_the_store_is_served_and_afterwards_torch_is_as_it_was():
    before = RENDEZVOUS._create_c10d_store
    waits, port, found = InterruptibleWaits(), unserved_port(), []
    waits.begin()
    waits.begin()
    timeout = timedelta(seconds=PATIENCE_S)
    try:
        url = f"tcp://{HERE}:{port}"
        thread = threading.Thread(target=lambda: found.append(next(iter(dist.rendezvous(url, 1, 2, timeout=timeout)))))
        thread.start()
        thread.join(0.1)
        served, *_ = next(iter(dist.rendezvous(url, 0, 2, timeout=timeout)))
        thread.join(PATIENCE_S)
        store, rank, _ = found[0]
        served.set("key", "value")
        assert (store.get("key"), rank) == (b"value", 1)
    finally:
        waits.end()
    waits.end()
    assert RENDEZVOUS._create_c10d_store is before


def test_it_gives_up_after_the_time_that_torch_was_given():
    began_s = monotonic()
    with pytest.raises(TimeoutError, match=r"cannot connect to the store at 127\.0\.0\.1:.* within 0\.3 s: .*rank 0"):
        wait_until_served(HERE, unserved_port(), 0.3, threading.Event())
    assert monotonic() - began_s < PATIENCE_S / 2


def test_a_torch_that_makes_its_stores_differently_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(RENDEZVOUS, "_create_c10d_store")
    waits = InterruptibleWaits()
    waits.begin()
    assert not hasattr(RENDEZVOUS, "_create_c10d_store")
    waits.end()
