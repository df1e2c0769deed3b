"""The supervisor refuses the output of a job that it runs: is that told, and is the output shown once it does not?

And does all of it reach a reader that is slow, whatever others have set for the descriptor? What does a signal do while
a job is submitted, and what becomes of a job that the next supervisor does not know?
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from supervisor.cli import run_via_daemon
from supervisor.cli.reconnecting_client import SteadyClient
from supervisor.cli.run_via_daemon import show_output
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import ExhaustedError, HoldfastError, NoSupervisorError, NotFoundError

LIMIT_S = 10.0
FULL = ExhaustedError("cannot show output of job j: 32 readers follow logs already; end one")


class Client:
    """Sends the output until an error, which each call takes from the list; then sends all."""

    def __init__(
        self,
        *errors: HoldfastError,
        sends_before_it: int = 0,
        on_call: Callable[[], object] = int,
        output: Sequence[bytes] = (b"one\n", b"two\n"),
    ) -> None:
        self.errors = list(errors)
        self.sends_before_it = sends_before_it
        self.on_call = on_call
        self.calls = 0
        self.output = output

    def logs(
        self, job_id: str, choice: LogChoice, *, follow: bool, on_note: Callable[[str], None], this_node: bool
    ) -> Iterator[LogPiece]:
        self.calls += 1
        self.on_call()
        for number, text in enumerate(self.output):
            if self.errors and number == self.sends_before_it:
                raise self.errors.pop(0)
            yield LogPiece(0, 0, False, text)

    def wait_until_ready(self, timeout_s: float) -> bool:
        return False


def shown_by(client: Client, ended: threading.Event, capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    show_output(steady_of(client), ended, threading.Event())
    shown = capfd.readouterr()
    return shown.out, shown.err


def steady_of(client: Client) -> SteadyClient:
    return SteadyClient(client, "j", say=unsaid, is_left=lambda _: False)  # pyright: ignore[reportArgumentType]


def unsaid(text: str) -> None:
    """The thread that follows the events says it."""


@pytest.mark.parametrize("sends_before_it", [0, 1])
def test_a_refusal_is_told_once_and_each_line_is_shown_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], sends_before_it: int
) -> None:
    monkeypatch.setattr(run_via_daemon, "SHOW_AGAIN_S", 0.0)
    out, told = shown_by(Client(FULL, FULL, sends_before_it=sends_before_it), threading.Event(), capfd)
    assert out == "one\ntwo\n"
    assert told.count("holdfast: cannot show output of job j: 32 readers follow logs already; end one; ") == 1
    assert "holdfast logs j shows it" in told


def test_the_job_s_end_is_the_last_time_that_it_is_tried(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_via_daemon, "SHOW_AGAIN_S", 3600.0)
    ended = threading.Event()
    client = Client(*[FULL] * 9, on_call=ended.set)
    assert shown_by(client, ended, capfd)[0] == ""
    assert client.calls == 2


@pytest.mark.parametrize("error", [NoSupervisorError("it has gone"), NotFoundError("no such job")])
def test_nothing_is_told_once_the_job_is_gone(capfd: pytest.CaptureFixture[str], error: HoldfastError) -> None:
    client = Client(error, sends_before_it=1)
    client.errors *= 9
    assert shown_by(client, threading.Event(), capfd) == ("one\n", "")
    assert client.calls == 1


def test_a_reader_that_starts_late_gets_each_byte_through_a_pipe_that_does_not_block(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A pipe or terminal that is shared with another process blocks as that one has set it."""
    output = [bytes([letter]) * 100_000 + b"\n" for letter in b"abc"]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stdout = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    events = threading.Event(), threading.Event()
    showing = threading.Thread(target=show_output, args=(steady_of(Client(output=output)), *events))
    showing.start()
    received = bytearray()
    try:
        # The first output has filled the pipe.
        while len(received) < sum(map(len, output)) and select.select([reader], [], [], LIMIT_S)[0]:
            received += os.read(reader, 1 << 20)
        showing.join(LIMIT_S)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(reader)
    assert received == b"".join(output)
    assert capfd.readouterr().err == ""


FAKE_DAEMON = """
import os, signal, sys, threading, time
from contextlib import contextmanager
from pathlib import Path
from supervisor.cli import main, run, run_via_daemon
from supervisor.core.facts import JobState
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.control_client import DeadlineExceededError
from supervisor.edges.operators.log_follower import LogPiece
from supervisor.errors import NotFoundError
from supervisor.ports.reports import JobReport

def silent(*_, within_s=0.0, **__):
    time.sleep(within_s)
    raise DeadlineExceededError("cannot ask the supervisor at /s: no answer in time; try again")

def missing(*_, **__):
    raise NotFoundError("cannot show job j: there is no such job here")

def report(exit_code):
    state = JobState.RUNNING if exit_code is None else JobState.STOPPED
    return JobReport("j", state, Clock().unix_ns(), exit_code=exit_code)

class Client:
    socket_path = Path("/s")
    def __init__(self, *_, **__): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def wait_until_ready(self, timeout_s): return True
    def submit(self, spec, *_, **__): return spec.job_id
    def job(self, *_, **__): missing()
    def watch(self, *_, **__): yield report(0)
    def logs(self, *_, **__): yield from ()

@contextmanager
def found(_):
    yield Path("/s"), Path("/s")

{daemon}
run_via_daemon.ControlClient = Daemon
run._nodes_supervisor = found
sys.exit(main(["run", "--job-id", "j", "--no-python", "true"]))
"""


def command_under(daemon: str) -> list[str]:
    return [sys.executable, "-c", FAKE_DAEMON.replace("{daemon}", daemon)]


SIGNALLED = """
class Daemon(Client):
    def submit(self, *_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        silent()
    job = silent
"""


def test_a_signal_that_comes_while_a_daemon_is_silent_does_not_replace_the_exit_code() -> None:
    """It would have a scheduler start the job elsewhere, which this daemon may have started."""
    ended = subprocess.run(command_under(SIGNALLED), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 93
    assert "holdfast: cannot tell whether job j has started: the supervisor at /s does not answer; " in ended.stderr


GIVEN_UP = """
class Daemon(Client):
    stopped = threading.Event()
    def submit(self, *_, given_up=threading.Event()):
        print("submitting", flush=True)
        given_up.wait(20)
        silent()
    def job(self, *_, **others):
        return {answer}
    def watch(self, *_, **__):
        yield report(None)
        self.stopped.wait(20)
        yield report(7)
    def stop(self, *_, signal, **__):
        print("stop", signal, flush=True)
        self.stopped.set()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("answer", "stops", "code"), [("missing()", 0, 0), ("report(None)", 1, 7), ("silent(**others)", 0, 93)]
)
def test_a_signal_gives_up_a_submission_that_waits(answer: str, stops: int, code: int, number: int) -> None:
    """Without a job, the signal ends the command; 93 if it is not known whether there is one."""
    command = command_under(GIVEN_UP.replace("{answer}", answer))
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "submitting\n"
    began_s = time.monotonic()
    running.send_signal(number)
    out, errors = running.communicate(timeout=60)
    assert time.monotonic() - began_s < 6.0, "a silent daemon has 2 s"
    ended = running.returncode if running.returncode >= 0 else 128 - running.returncode
    assert ended == (code or 128 + number), errors
    assert out == f"stop {number}\n" * stops


FORGETFUL = """
class Daemon(Client):
    watches = 0
    def submit(self, spec, *_, **__):
        print("submitted", flush=True)
        return spec.job_id
    def watch(self, *_, **__):
        Daemon.watches += 1
        if Daemon.watches == 1:
            missing()
        yield report(0)
"""


def test_a_job_that_the_next_supervisor_does_not_know_is_submitted_to_it() -> None:
    """A supervisor was lost within milliseconds, and the next one answers the call that waited in its socket."""
    ended = subprocess.run(command_under(FORGETFUL), capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "submitted\n" * 2), ended.stderr


SIGNALLED_AGAIN = """
class Daemon(Client):
    submissions = 0
    def submit(self, spec, *_, given_up=threading.Event()):
        Daemon.submissions += 1
        if Daemon.submissions == 1:
            return spec.job_id
        print("submitting again", flush=True)
        given_up.wait(20)
        silent()
    def watch(self, *_, **__): missing()
    def stop(self, *_, **__):
        print("stop", flush=True)
"""


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_signal_gives_up_a_repeated_submission(*, is_ignored: bool) -> None:
    ignored = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" * is_ignored
    command = command_under(ignored + SIGNALLED_AGAIN)
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "submitting again\n"
    running.send_signal(signal.SIGTERM)
    out, errors = running.communicate(timeout=60)
    ended = running.returncode if running.returncode >= 0 else 128 - running.returncode
    assert (ended, out) == (128 + signal.SIGTERM, ""), errors


FLOOD = """
run_via_daemon.LAST_OUTPUT_TIMEOUT_S = {limit_s}
class Daemon(Client):
    def logs(self, *_, **__):
        yield LogPiece(0, 0, False, b"x" * 400_000)
"""
LOST = "holdfast: not all that the ranks printed is shown; holdfast logs j shows it\n"


def test_output_that_nobody_takes_after_the_end_of_the_job_is_told(tmp_path: Path) -> None:
    with (tmp_path / "err").open("w+") as errors:
        running = subprocess.Popen(
            command_under(FLOOD.replace("{limit_s}", "0.1")), stdout=subprocess.PIPE, stderr=errors
        )
        assert running.wait(60) == 0
        running.communicate()
        errors.seek(0)
        assert errors.read().count(LOST) == 1


def test_a_slow_reader_gets_all_of_it(tmp_path: Path) -> None:
    command = command_under(FLOOD.replace("{limit_s}", "1.0"))
    with (
        (tmp_path / "err").open("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, bufsize=0) as running,
    ):
        assert running.stdout is not None
        received = 0
        while part := running.stdout.read(8192):
            received += len(part)
            time.sleep(0.05)  # 2.5 s in all
        assert (received, running.wait(60)) == (400_000, 0)
        errors.seek(0)
        assert LOST not in errors.read()
