"""A wait for a lock ends with the lock, its timeout, or its caller; a lock that comes too late is released."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from worker_client.inprocess.private_supervisor.lock_wait import is_readable, locked_within

LONG_S = 60.0


class Lock:
    """A lock that another process could hold; here, another opening of the file."""

    def __init__(self, path: Path) -> None:
        self.theirs, self.ours, self.third = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(3))

    def is_free(self) -> bool:
        try:
            fcntl.flock(self.third, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self.third, fcntl.LOCK_UN)
        return True


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Lock]:
    made = Lock(tmp_path / "lock")
    yield made
    for descriptor in (made.theirs, made.ours, made.third):
        os.close(descriptor)


@pytest.fixture
def cancel() -> Iterator[int]:
    descriptor = os.eventfd(0)
    yield descriptor
    os.close(descriptor)


def waiting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-lock-wait"]


def until_nobody_waits() -> None:
    wait_until(lambda: not waiting(), timeout_s=LONG_S, what="the end of the thread")


def test_a_free_one_is_locked_at_once_and_a_held_one_once_it_is_released(lock: Lock):
    assert locked_within(lock.theirs, fcntl.LOCK_EX, wait_s=0)
    assert not locked_within(lock.ours, fcntl.LOCK_EX, wait_s=0)
    release = threading.Thread(
        target=lambda: (
            wait_until(waiting, timeout_s=LONG_S, what="the wait"), fcntl.flock(lock.theirs, fcntl.LOCK_UN)
        )
    )  # fmt: skip
    release.start()
    assert locked_within(lock.ours, fcntl.LOCK_EX, wait_s=LONG_S)
    release.join()
    until_nobody_waits()
    assert not lock.is_free()  # the thread's copy is closed; the lock stays ours


def test_given_up_after_its_time_it_is_released_when_it_comes(lock: Lock):
    fcntl.flock(lock.theirs, fcntl.LOCK_EX)
    assert not locked_within(lock.ours, fcntl.LOCK_EX, wait_s=0.01)
    assert waiting()
    fcntl.flock(lock.theirs, fcntl.LOCK_UN)
    until_nobody_waits()
    assert lock.is_free()


def test_given_up_once_nobody_needs_it(lock: Lock, cancel: int):
    fcntl.flock(lock.theirs, fcntl.LOCK_EX)
    assert not is_readable(cancel)
    os.eventfd_write(cancel, 1)
    assert is_readable(cancel)
    assert not is_readable(-1)
    assert not locked_within(lock.ours, fcntl.LOCK_EX, wait_s=LONG_S, cancel=cancel)
    fcntl.flock(lock.theirs, fcntl.LOCK_UN)
    until_nobody_waits()


def test_what_is_no_lock_is_never_waited_for(lock: Lock):
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        locked_within(reader, fcntl.LOCK_EX, wait_s=LONG_S)
