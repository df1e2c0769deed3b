"""The supervisor refuses the output of a job that it runs: is that told, and is the output shown once it does not?

And does all of it reach a reader that is slow, whatever others have set for the descriptor?
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

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
    show_output(steady_of(client), ended)
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
    showing = threading.Thread(target=show_output, args=(steady_of(Client(output=output)), threading.Event()))
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


SILENT_DAEMON = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from supervisor.cli import main, run, run_via_daemon, submission
from supervisor.edges.operators.control_client import DeadlineExceededError

class Client:
    socket_path = Path("/s")
    def __init__(self, *_, **__): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def submit(self, *_):
        os.kill(os.getpid(), signal.SIGTERM)
        self.job("j")
    def job(self, *_, **__):
        raise DeadlineExceededError("cannot ask the supervisor at /s: no answer within 10 s; try again")

@contextmanager
def found(_):
    yield Path("/s"), Path("/s")

run_via_daemon.ControlClient = Client
run._nodes_supervisor = found
sys.exit(main(["run", "--job-id", "j", "--no-python", "true"]))
"""


def test_a_signal_that_comes_while_a_daemon_is_silent_does_not_replace_the_exit_code() -> None:
    """It would have a scheduler start the job elsewhere, which this daemon may have started."""
    ended = subprocess.run([sys.executable, "-c", SILENT_DAEMON], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 93
    assert "holdfast: cannot tell whether job j has started: the supervisor at /s does not answer; " in ended.stderr
