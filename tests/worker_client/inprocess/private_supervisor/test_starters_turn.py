"""Does one rank at a time start the supervisor, and does a rank that stands still hold the others up? Real locks."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from pathlib import Path
from time import monotonic

import pytest

from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor import starters_turn as module
from worker_client.inprocess.private_supervisor.lock_wait import locked_within
from worker_client.inprocess.private_supervisor.starters_turn import CancelledWaitError, starters_turn

WAIT_S = 30.0


def is_free(folder: Path) -> bool:
    """Returns whether nobody holds the turn."""
    own = os.open(folder, os.O_RDONLY)
    try:
        return locked_within(own, fcntl.LOCK_EX, wait_s=0.0)
    finally:
        os.close(own)


def test_the_turn_is_one_rank_s_until_its_block_ends(tmp_path: Path):
    folder = tmp_path / "job"
    with starters_turn(folder, wait_s=WAIT_S):
        assert not is_free(folder)
    assert is_free(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_next_one_comes_as_soon_as_the_first_has_gone(tmp_path: Path):
    taken = threading.Event()

    def take() -> None:
        with starters_turn(tmp_path / "job", wait_s=WAIT_S):
            taken.set()

    with starters_turn(tmp_path / "job", wait_s=WAIT_S):
        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(0.2)
    assert taken.wait(WAIT_S)
    thread.join(WAIT_S)


def test_the_turn_ends_with_whichever_process_unlocks_the_descriptor(tmp_path: Path):
    """So does the supervisor, which inherits it, once ranks can connect."""
    with starters_turn(tmp_path / "job", wait_s=WAIT_S) as turn:
        pid = os.fork()
        if pid == 0:
            fcntl.flock(turn, fcntl.LOCK_UN)
            os._exit(0)
        os.waitpid(pid, 0)
        assert is_free(tmp_path / "job")


def test_a_fork_of_the_rank_does_not_keep_the_turn(tmp_path: Path):
    reader, writer = os.pipe()
    with starters_turn(tmp_path / "job", wait_s=WAIT_S):
        pid = os.fork()
        if pid == 0:
            os.read(reader, 1)
            os._exit(0)
    try:
        assert is_free(tmp_path / "job")
    finally:
        os.write(writer, b".")
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_after_the_wait_the_turn_is_taken_without_the_lock(tmp_path: Path):
    """A rank that was stopped during its turn only makes the others wait."""
    with starters_turn(tmp_path / "job", wait_s=WAIT_S):
        began_s = monotonic()
        with starters_turn(tmp_path / "job", wait_s=0.2):
            assert 0.15 < monotonic() - began_s < WAIT_S / 2


def test_a_wait_that_is_no_longer_needed_ends(tmp_path: Path):
    reader, writer = os.pipe()
    os.write(writer, b".")
    with starters_turn(tmp_path / "job", wait_s=WAIT_S), pytest.raises(CancelledWaitError):  # noqa: SIM117
        with starters_turn(tmp_path / "job", wait_s=WAIT_S, cancel=reader):
            raise AssertionError("the turn is another's")
    os.close(reader)
    os.close(writer)


def test_a_folder_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "job"

    def removed_at_once(_folder: Path) -> None:
        """Does nothing, as if somebody removed the folder as soon as it is made."""

    monkeypatch.setattr(module, "private_folder", removed_at_once)
    with (
        pytest.raises(InternalError, match="it is removed each time; find out what removes it"),
        starters_turn(folder, wait_s=WAIT_S),
    ):
        raise AssertionError("there is no turn")
    folder.write_text("a file")
    with (
        pytest.raises(InternalError, match=f"cannot open {folder} for a private supervisor: Not a directory"),
        starters_turn(folder, wait_s=WAIT_S),
    ):
        raise AssertionError("there is no turn")
