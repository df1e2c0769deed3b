"""The command line as a user sees it: real processes against a real supervisor process with simulated jobs."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import msgspec

from supervisor.edges.machine.folders import default_dirs, private_registry
from supervisor.ports.reports import JobReport
from tests.fork_server import fork_server

ROOT = Path(__file__).parents[2]

# `holdfast`, without supervisors outside the test's own directories: the registry of private ones is per user.
HOLDFAST = """
import os, sys
from pathlib import Path
from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.folders import default_dirs
root = Path(os.environ["TEST_SHARED_TEMP"])
default_dirs.SHARED_TEMPS = (root,)
default_dirs.RUNTIME_DIRS = root / "user"
socket_dir.SYSTEM_DIR = root / "system"
from supervisor.cli import main
sys.exit(main())
"""

# What `holdfast` loads before it knows its command, and the packages of others that most commands use. Nothing else of
# ours: a command that lacks an import of its own must fail here, too.
LOADED = ("supervisor.cli", "supervisor.cli.parsing", "supervisor.cli.interrupt", "grpc.aio", "google.protobuf.any_pb2")


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str


class Home:
    """A user of this machine: his own directories, no supervisor yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.runtime = root / "run"
        for folder in (self.state, self.runtime):
            folder.mkdir(mode=0o700)
        keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environment = {
            **keep,
            "HOLDFAST_STATE_DIR": str(self.state),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "TZ": "UTC",
            "TEST_SHARED_TEMP": str(root),
        }
        self._started: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        """Ends processes that a failed test has started and not awaited."""
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def holdfast(self, *arguments: str, **more: str) -> Done:
        environment = {**self.environment, **more}
        if not any(name.startswith("PYTHON") for name in more):
            ran = fork_server(*LOADED).ran(HOLDFAST, *arguments, environment=environment, folder=ROOT, timeout_s=60)
            return Done(ran.returncode, ran.stdout, ran.stderr)
        command = [sys.executable, "-c", HOLDFAST, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False)
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDFAST, *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    def on_terminal(self, columns: int, *arguments: str, **more: str) -> str:
        """Returns what a terminal of that width gets, with line ends as in a file."""
        mine, theirs = pty.openpty()
        environment = {**self.environment, "COLUMNS": str(columns), "TERM": "xterm", **more}
        command = [sys.executable, "-c", HOLDFAST, *arguments]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs) as process:
            os.close(theirs)
            data = b""
            while True:
                try:
                    chunk = os.read(mine, 4096)
                except OSError:  # this is how a terminal ends
                    break
                data += chunk
            process.wait(30)
        os.close(mine)
        return data.decode().replace("\r\n", "\n")

    @property
    def service_dir(self) -> Path:
        return self.runtime / "holdfast"

    @contextmanager
    def supervisor(
        self, *reports: JobReport, place: Path | None = None, private: bool = False, registered: bool = False
    ) -> Generator[RunningSupervisor]:
        """Runs a supervisor process that ends with the block; its jobs are then in the journal."""
        folder = place or self.service_dir
        folder.mkdir(mode=0o700, exist_ok=True)
        given = {
            "socket": str(folder / "control.sock"),
            "state_dir": str(self.state),
            "reports": msgspec.to_builtins(reports),
        }
        described = folder / "jobs.json"
        described.write_text(json.dumps(given))  # a thousand ranks are too many for a command line
        command = [sys.executable, "-m", "tests.edges.operators.fake_job_service", str(described)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running = RunningSupervisor(process)
        try:
            running.expect("ready")
            if private or registered:
                with mock.patch.object(default_dirs, "SHARED_TEMPS", (self.root,)):
                    private_registry.register(
                        folder, process.pid, 1, is_daemon=registered, environment=self.environment
                    )
            yield running
        finally:
            running.end()


class RunningSupervisor:
    """Takes lines: "publish JOB [RANK]", "silence JOB", "end JOB", "record JOB", "forget", "together"."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self.expect("done")

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def end(self) -> None:
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
            raise
        finally:
            if self.process.stdout:
                self.process.stdout.close()


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def widest(lines: Sequence[str]) -> int:
    return max(len(line) for line in lines)
