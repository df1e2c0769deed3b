"""Calls into foreign libraries: bounded, with their errors kept."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from worker_client.bounded_threads import BoundedThread, join_all


def test_an_error_is_kept_and_told(caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        raise ValueError("no such group")

    thread = BoundedThread("abort", fail)
    thread.start()
    assert join_all([thread], 10)
    assert "cannot abort: no such group" in caplog.text


def test_without_a_thread_the_restart_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    thread = BoundedThread("abort", lambda: None)
    thread.start()
    assert join_all([thread], 10)
    assert "cannot abort: can't start new thread" in caplog.text


SUSPENDED = """
import sys
from worker_client.bounded_threads import BoundedThread, join_all

thread = BoundedThread("hear", sys.stdin.readline)
thread.start()
print("waits", flush=True)
print({call})
"""


@pytest.mark.parametrize("call", ["thread.join(3)", "join_all([thread, thread], 3)"])
def test_of_a_time_in_which_the_process_is_suspended_little_counts(call: str):
    """As by docker pause or scontrol suspend: the call was suspended, too."""
    command = [sys.executable, "-c", SUSPENDED.format(call=call)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGSTOP)
        time.sleep(3.5)
        waiting.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        has_ended, _ = waiting.communicate("now\n", timeout=20)
    assert has_ended == "True\n"


def test_threads_that_hang_share_their_time():
    may_end = threading.Event()
    threads = [BoundedThread(f"hang {number}", may_end.wait) for number in range(3)]
    for thread in threads:
        thread.start()
    since_s = time.monotonic()
    assert not join_all(threads, 1.2)
    assert 1.2 <= time.monotonic() - since_s < 2.3
    may_end.set()
