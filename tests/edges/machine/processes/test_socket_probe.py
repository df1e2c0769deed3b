"""Real sockets: served, abandoned, full, absent."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.edges.machine.processes import socket_probe


def test_a_listener_is_known_by_its_process(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        peer = socket_probe.connect(path, timeout_s=1.0)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    with pytest.raises(ConnectionRefusedError):
        socket_probe.connect(path, timeout_s=1.0)


def test_each_reason_for_silence_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        socket_probe.connect(tmp_path / "none", timeout_s=1.0)
    for bad in (tmp_path / ("x" * 200), f"{tmp_path}/a\0b"):
        with pytest.raises(OSError, match=r".+"):
            socket_probe.connect(bad, timeout_s=1.0)


def _nothing(number: int, frame: object) -> None:
    del number, frame


@contextmanager
def signals_every(interval_s: float) -> Generator[None]:
    before = signal.signal(signal.SIGALRM, _nothing)
    signal.setitimer(signal.ITIMER_REAL, interval_s, interval_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "full.sock"
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as first:
        full.bind(str(path))
        full.listen(0)
        first.connect(str(path))
        before_s = time.monotonic()
        with pytest.raises(BlockingIOError):
            socket_probe.connect(path, timeout_s=0.1)
        assert time.monotonic() - before_s >= 0.09
        with signals_every(0.02), pytest.raises(BlockingIOError):
            socket_probe.connect(path, timeout_s=0.1)
        taken: list[socket.socket] = []
        server = threading.Thread(target=lambda: taken.append(full.accept()[0]))
        server.start()
        assert socket_probe.connect(path, timeout_s=30.0).pid == os.getpid()
        server.join()
        taken[0].close()
