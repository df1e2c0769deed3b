"""Does an exception reach its thread, even one that a destructor would have lost?

Code that installs hooks or raises exceptions in the main thread runs in a separate interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_client.inprocess.interrupting.async_raise import async_raise, delayed_async_raise

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 60.0


class Unwelcome(BaseException): ...


class Victim:
    """A thread that executes bytecode until an exception comes."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self._has_begun, self._must_end = threading.Event(), False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._has_begun.wait(TIMEOUT_S)

    @property
    def tid(self) -> int:
        return self._thread.ident or 0

    def _run(self) -> None:
        try:
            self._stay()
        except Unwelcome as error:
            self.raised = error

    def _stay(self) -> None:
        self._has_begun.set()
        while not self._must_end:
            pass

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        self._must_end = True
        self._thread.join()


@pytest.mark.parametrize("raise_in", [async_raise, delayed_async_raise])
def test_it_is_raised_in_that_thread(raise_in: Callable[[int, type[BaseException]], None]):
    victim = Victim()
    raise_in(victim.tid, Unwelcome)
    victim.join()
    assert isinstance(victim.raised, Unwelcome)


def test_an_event_is_waited_for_first():
    victim, event = Victim(), threading.Event()
    raiser = threading.Thread(target=async_raise, args=(victim.tid, Unwelcome, event))
    raiser.start()
    assert victim.raised is None
    event.set()
    victim.join()
    raiser.join()
    assert isinstance(victim.raised, Unwelcome)


def test_no_class_and_no_thread():
    with pytest.raises(TypeError, match="is not a class of exceptions"):
        async_raise(threading.get_ident(), ValueError("an instance"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="is not a class of exceptions"):
        async_raise(threading.get_ident(), int)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="cannot raise Unwelcome in thread 1: there is no such thread"):
        async_raise(1, Unwelcome)


PREAMBLE = """
import sys, threading
from worker_client.inprocess.monitor_thread import async_raise, delayed_async_raise, reraise_if_unraisable
class Unwelcome(BaseException): ...
class Dying:
    def __init__(self, kind): self.kind = kind
    def __del__(self): raise self.kind
before = sys.unraisablehook
"""


def ran(script: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("is_decorator", [False, True])
def test_one_that_a_destructor_lost_is_raised_again_in_the_block(is_decorator: bool):
    used = "wrapped()" if is_decorator else "with reraise_if_unraisable(Unwelcome): stay()"
    script = f"""
def stay():
    dying = Dying(Unwelcome)
    del dying
    print("after the destructor")
    while True: pass
wrapped = reraise_if_unraisable(Unwelcome)(stay)
for _ in range(3):
    try:
        {used}
    except Unwelcome:
        print("raised")
    assert sys.unraisablehook is before
"""
    done = ran(script)
    assert done.stdout.split("\n")[:-1] == ["after the destructor", "raised"] * 3
    assert done.stderr == ""


def test_it_comes_at_the_end_of_the_block_at_the_latest():
    script = """
import worker_client.inprocess.interrupting.async_raise as module
module.LOOK_INTERVAL_S = 3600.0
try:
    with reraise_if_unraisable(Unwelcome):
        Dying(Unwelcome)
        print("goes on")
except Unwelcome:
    print("raised")
assert threading.active_count() == 1
"""
    assert ran(script).stdout == "goes on\nraised\n"


def test_other_exceptions_and_other_times_are_the_previous_hooks():
    script = """
seen = []
sys.unraisablehook = hook = lambda unraisable: seen.append(unraisable.exc_type)
with reraise_if_unraisable(Unwelcome):
    Dying(ValueError)
try:
    with reraise_if_unraisable(Unwelcome):
        raise KeyError
except KeyError:
    pass
assert sys.unraisablehook is hook
Dying(Unwelcome)
print([each.__name__ for each in seen])
"""
    assert ran(script).stdout == "['ValueError', 'Unwelcome']\n"
