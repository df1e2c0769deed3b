"""A `holdfast daemon` with its own folders, the questions to it, and all its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.edges.machine.processes.job_claims import CLAIM_DIR_VARIABLE, is_held
from tests.e2e.launch import COOKIE, processes_with, wait_until

READY_S = 30.0
ANSWER_S = 20.0
END_S = 60.0


class OneDaemon:
    """Its folders below `folder`: run (sockets), state (journal, logs), tmp."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self.cookie = uuid.uuid4().hex
        self.sockets, self.state, self.temp, self.claims = (folder / name for name in ("run", "state", "tmp", "claims"))
        for each in (self.sockets, self.state, self.temp, self.claims):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
            COOKIE: self.cookie,
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.temp),
            "XDG_RUNTIME_DIR": str(self.sockets),
            "HOLDFAST_STATE_DIR": str(self.state),
            CLAIM_DIR_VARIABLE: str(self.claims),
            **environment,
        }
        self._arguments = arguments
        self._commands: list[subprocess.Popen[bytes]] = []
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        place = ("--socket-dir", str(self.sockets), "--state-dir", str(self.state))
        with (self.folder / "daemon.txt").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "daemon", *place, *self._arguments],
                env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        wait_until(lambda: self.answers() or process.poll() is not None, timeout_s=READY_S, what="the daemon's answer")
        assert process.poll() is None, (self.folder / "daemon.txt").read_text()
        return process

    def command(self, *arguments: str, timeout_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *arguments],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def answers(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.command("nodes", "--socket-dir", str(self.sockets)).returncode == 0
        return False

    def run(self, job_id: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a `holdfast run` that stays; its output is in JOB.txt."""
        with (self.folder / f"{job_id}.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "run", "--socket-dir", str(self.sockets), "--job-id", job_id,
                 *arguments],
                env=self.environment | environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip
        self._commands.append(process)
        return process

    def follow_logs(self, job_id: str) -> None:
        """Starts a `holdfast logs --follow` that runs as long as the job."""
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "logs", job_id, "--follow", "--socket-dir", str(self.sockets)],
            env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._commands.append(process)

    def status(self, job_id: str) -> Mapping[str, Any]:
        answer = self.command("status", job_id, "--socket-dir", str(self.sockets), "-o", "json")
        assert answer.returncode == 0, answer.stderr
        (job,) = json.loads(answer.stdout)["jobs"]
        return job

    def processes(self) -> list[int]:
        """Returns all its processes, including itself."""
        return processes_with(self.cookie)

    def close(self) -> None:
        """Ends the daemon as an operator does, and its commands."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        for process in self._commands:
            if process.poll() is None:
                process.kill()
            process.wait(END_S)

    def leftovers(self, *, within_s: float) -> list[str]:
        """Returns processes, sockets, claims and files that are left after `within_s`; then kills the processes."""
        deadline_s = time.monotonic() + within_s
        while self.processes() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        found = [f"process {pid}: {command_line(pid)}" for pid in self.processes()]
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.wait(END_S)
        found += [f"socket {path}" for path in self.folder.rglob("*") if path.is_socket()]
        # the next claim removes an unused file
        found += [f"claim {path}" for path in self.claims.glob("*.claim") if is_held(path.stem, self.claims)]
        return found + [f"in the temporary folder: {path}" for path in self.temp.iterdir()]


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "gone"


def children(pid: int) -> Sequence[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def resident_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def proportional_kib(pid: int) -> int:
    """Returns memory; pages shared by several processes count in parts."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def cpu_s(pid: int) -> float:
    """Returns the CPU time of all its threads, without its children."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def files_under(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))
