"""Starts a real `holdfast run` with its own folders, and finds every process that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COOKIE = "HOLDFAST_TEST_COOKIE"
SCRIPTS = Path(__file__).parent / "scripts"


def processes_with(cookie: str, variable: str = COOKIE) -> list[int]:
    """Returns pids of live processes (without zombies) whose environment has the cookie."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            if f"{variable}={cookie}".encode() in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def wait_until(condition: object, *, timeout_s: float, what: str) -> None:
    """Waits for `condition()` to be true; checks every few milliseconds."""
    assert callable(condition)
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen within {timeout_s} s"
        time.sleep(0.005)


@dataclass
class Launch:
    """One `holdfast run` and its traces."""

    arguments: Sequence[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    stdin: int = subprocess.DEVNULL
    python: str = sys.executable  # of holdfast itself

    def __post_init__(self) -> None:
        self._events: list[dict[str, object]] | None = None
        self.cookie = uuid.uuid4().hex
        self.state_dir = self.folder / "state"
        self.trace = self.folder / "trace.jsonl"
        runtime = self.folder / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        self.job_id = f"t-{self.cookie[:8]}"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "PET_"))}
        self.env |= {
            COOKIE: self.cookie,
            "HOLDFAST_STATE_DIR": str(self.state_dir),
            "XDG_RUNTIME_DIR": str(runtime),
            "TRACE": str(self.trace),
            **self.environment,
        }
        self.output = self.folder / "out.txt"
        self.errors = self.folder / "err.txt"
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [self.python, "-m", "supervisor", "run", "--job-id", self.job_id, *self.arguments],
                stdin=self.stdin, stdout=output, stderr=errors, env=self.env, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def wait(self, timeout_s: float = 60.0) -> int:
        """Returns the exit code as a shell reports it."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {timeout_s} s\n{self.explained()}") from None
        return code if code >= 0 else 128 - code

    def wait_for_output(self, text: str, *, count: int, timeout_s: float = 60.0) -> None:
        """Waits until `text` was printed `count` times. If the job has ended or hangs, the error explains it."""
        try:
            wait_until(
                lambda: self.stdout_text().count(text) >= count or self.process.poll() is not None,
                timeout_s=timeout_s,
                what=f"{count} x {text!r} on stdout",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.explained()}") from None
        if self.stdout_text().count(text) < count:
            raise AssertionError(f"the job ended before {count} x {text!r} was printed\n{self.explained()}")

    def explained(self) -> str:
        """Describes a job that does not behave: its events, the ranks' stacks, its output."""
        told: list[str] = []
        for command in ("events", "stacks") if self.process.poll() is None else ("events",):
            try:
                answer = self.holdfast(command, self.job_id, check=False)
                told.append(answer.stdout + answer.stderr)
            except subprocess.TimeoutExpired as error:
                told.append(str(error))
        return "\n".join([*told, f"stdout:\n{self.stdout_text()}", f"stderr:\n{self.stderr_text()}"])

    def wait_for_trace(self, what: str, *, count: int = 1, timeout_s: float = 30.0) -> list[dict[str, object]]:
        """Returns the workers' lines with event `what`, once there are `count`."""
        wait_until(
            lambda: len(self.traced(what)) >= count or self.process.poll() is not None,
            timeout_s=timeout_s,
            what=f"{count} x {what}",
        )
        found = self.traced(what)
        assert len(found) >= count, f"{what}: {found}; {self.stderr_text()}"
        return found

    def traced(self, what: str | None = None) -> list[dict[str, object]]:
        if not self.trace.exists():
            return []
        lines = [json.loads(line) for line in self.trace.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if what is None or line["what"] == what]

    def holdfast(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs another holdfast command of the same user."""
        done = subprocess.run(
            [sys.executable, "-m", "supervisor", *arguments],
            env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
        return done

    def events(self) -> list[dict[str, object]]:
        """Returns the events of an ended job, asked once: the command costs a second on a busy machine."""
        if self._events is None or self.process.poll() is None:
            asked = self.holdfast("events", self.job_id, "-o", "jsonl", check=False)
            over = self.process.poll() is not None
            if asked.returncode and not over and "there is no such job" in asked.stderr:
                return []  # the command has not submitted it yet
            assert asked.returncode == 0, f"events ended with {asked.returncode}: {asked.stderr}"
            told = asked.stdout
            events = [json.loads(line) for line in told.splitlines()]
            if not over:
                return events
            self._events = events
        return self._events

    def kinds(self) -> list[object]:
        return [event["kind"] for event in self.events()]

    def stdout_text(self) -> str:
        return self.output.read_text(errors="replace")

    def stderr_text(self) -> str:
        return self.errors.read_text(errors="replace")

    def leftovers(self) -> list[int]:
        return [pid for pid in processes_with(self.cookie) if pid != self.process.pid]

    def end(self) -> None:
        """Kills all that is left of this launch."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in processes_with(self.cookie):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def launched(
    folder: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    python: str = sys.executable,
) -> Generator[Launch]:
    launch = Launch(arguments, folder, environment or {}, stdin, python)
    try:
        yield launch
    finally:
        launch.end()


def assert_nothing_left(launch: Launch, *, within_s: float = 5.0) -> None:
    wait_until(lambda: not launch.leftovers(), timeout_s=within_s, what="the end of every process of the job")
