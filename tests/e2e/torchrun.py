"""Starts the real torchrun for comparison; knows which output lines come from the launchers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.launch import COOKIE, Launch, processes_with

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
_TORCHRUN_SAYS = re.compile(r"^[IWE]\d{4} [\d:.]+ \d+ .*torch/distributed/", re.DOTALL)
_OMP_SAYS = "Setting OMP_NUM_THREADS environment variable"
_HOLDFAST_SAYS = "holdfast: "


@dataclass(frozen=True)
class Outcome:
    """The result of a launcher: exit code and output bytes."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def stdout_lines(self) -> list[str]:
        return sorted(self.stdout.decode().splitlines())

    @property
    def stderr_lines(self) -> list[str]:
        """Returns the lines of the workers, without those of the launcher."""
        lines = self.stderr.decode().split("\n")
        return sorted(line for line in lines if line and not _is_launchers(line))


def _is_launchers(line: str) -> bool:
    if _TORCHRUN_SAYS.match(line) or line.startswith((_HOLDFAST_SAYS, _OMP_SAYS)):
        return True
    return not line.strip("*")


def outcome(launch: Launch, timeout_s: float = 100.0) -> Outcome:
    """Waits for the end of a `holdfast run` and returns its outcome."""
    return Outcome(launch.wait(timeout_s), launch.output.read_bytes(), launch.errors.read_bytes())


def torchrun(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> Outcome:
    """Runs torchrun to its end. Kills the orphans that a killed torchrun leaves."""
    cookie = uuid.uuid4().hex
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "PET_"))}
    env |= {COOKIE: cookie, "TRACE": str(folder / "torchrun.jsonl"), **(environment or {})}
    try:
        ended = subprocess.run(
            [*TORCHRUN, *arguments], env=env, cwd=folder, stdin=stdin, capture_output=True, timeout=110, check=False
        )
        return Outcome(ended.returncode, ended.stdout, ended.stderr)
    finally:
        for pid in processes_with(cookie):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
