"""A program started in a script's background, or under nohup, ignores signals; what it starts does not always."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor.edges.machine.own_process import ignored_signals

NAMES = ("SIGHUP", "SIGINT", "sigterm", "SIGINT")
TELLS = "import signal; print(*(int(signal.getsignal(each) is signal.SIG_IGN) for each in (1, 2, 15)))"


@pytest.fixture(autouse=True)
def ignoring() -> Iterator[None]:
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handling in before.items():
        signal.signal(number, handling)


def test_an_ignored_hangup_is_not_forwarded_and_an_ignored_interrupt_is():
    assert ignored_signals.forwarded(NAMES) == ("SIGINT", "SIGTERM")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert ignored_signals.forwarded(NAMES) == ("SIGHUP", "SIGINT", "SIGTERM")


def test_children_have_the_default_of_what_was_ignored_and_nothing_else_changes():
    handler = signal.getsignal(signal.SIGTERM)
    ignored_signals.reset_in_children(ignored_signals.forwarded(NAMES))
    assert subprocess.check_output([sys.executable, "-c", TELLS], text=True).split() == ["1", "0", "0"]
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.raise_signal(signal.SIGINT)  # This process ignores it as before.
