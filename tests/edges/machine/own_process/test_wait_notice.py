"""Does the line come late, give way to other output, and leave nothing behind, only on a terminal?"""

from __future__ import annotations

import os
import pty
import select
import sys
from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

import pytest

from supervisor.edges.machine.own_process import standard_streams
from supervisor.edges.machine.own_process.standard_streams import ERASE
from supervisor.edges.machine.own_process.wait_notice import WaitNotice

WAIT_S = 20.0


@contextmanager
def terminal() -> Generator[int]:
    """Makes stderr a terminal; yields where to read its output. No fixture: pytest restores stderr in between."""
    mine, theirs = pty.openpty()
    with (
        os.fdopen(theirs, "w") as stream,
        mock.patch.object(sys, "stderr", stream),
        mock.patch.dict(os.environ, TERM="xterm"),
    ):
        yield mine
    os.close(mine)


def _read_until(screen: int, text: str) -> str:
    said = ""
    while text not in said:
        assert select.select([screen], [], [], WAIT_S)[0], said
        said += os.read(screen, 4096).decode()
    return said


def test_it_comes_late_and_goes_before_another_line() -> None:
    with terminal() as screen:
        line = WaitNotice()
        line.show("loading torch")
        assert _read_until(screen, "loading").startswith(f"{ERASE}holdfast: loading torch … ")
        standard_streams.say("holdfast: a message")
        assert f"{ERASE}holdfast: a message" in _read_until(screen, "message")
        _read_until(screen, "loading torch … ")  # it returns at its next tick
        line.close()
        assert _read_until(screen, ERASE).endswith(ERASE)
        assert not standard_streams.has_line()
        line.show("too late")
        standard_streams.say("the end")
        assert "too late" not in _read_until(screen, "the end")


def test_what_is_over_at_once_is_never_shown() -> None:
    with terminal() as screen:
        line = WaitNotice()
        line.show("loading torch")
        line.close()
        standard_streams.say("the end")
        assert _read_until(screen, "the end").startswith("the end")


def test_without_a_terminal_nothing_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    line = WaitNotice()
    line.show("loading torch")
    line.close()
    assert capfd.readouterr().err == ""
