"""A node's supervisor with its own folders, which can be killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.launch import SCRIPTS, wait_until

END_S = 30.0
DYING = SCRIPTS / "dying_supervisor.py"


class NodeDaemon:
    """Runs `holdfast daemon`. A context manager: at its end, all jobs and the supervisor end."""

    def __init__(self, place: Path, *arguments: str, python: str = sys.executable) -> None:
        place.mkdir()
        self.socket_dir = place / "run"
        self.state_dir = place / "state"
        self.errors = place / "errors"
        self._arguments = arguments
        self.python = python  # of the next start
        self.dies = ""  # the next one by its own hand, as scripts/dying_supervisor.py has it
        self.script: Path | None = None  # stands for the command of the next start
        self.host_name = ""  # of the node, from the next start on; only root may choose one
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_s = 0.0  # how long the last start took until people could ask
        self.start()

    def start(self) -> None:
        """Returns once people can ask."""
        began_s = time.monotonic()
        self.launch()
        wait_until(self.is_serving, timeout_s=END_S, what="the supervisor")
        self.ready_s = time.monotonic() - began_s

    def launch(self) -> None:
        script = DYING if self.dies else self.script
        program = [str(script)] if script is not None else ["-m", "supervisor"]
        command = [
            self.python, *program, "daemon", "--socket-dir", str(self.socket_dir),
            "--state-dir", str(self.state_dir), *self._arguments,
        ]  # fmt: skip
        if self.host_name:
            named = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
            command = ["unshare", "--uts", "sh", "-c", named, self.host_name, *command]
        with self.errors.open("ab") as errors:
            # In a folder without packages: -m would find those first.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=self.errors.parent,
                env={**os.environ, "DIES": self.dies},
            )  # fmt: skip

    def is_serving(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.errors.read_text()
        return f"supervisor {self.process.pid} serves" in self.errors.read_text()

    def wait_for_death(self) -> None:
        assert self.process is not None
        assert self.process.wait(END_S) == -signal.SIGKILL, self.errors.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> NodeDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
