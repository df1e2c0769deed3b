"""Ranks without a supervisor from outside: started as plain python or by torchrun, under their private supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.launch import COOKIE, SCRIPTS, processes_with, wait_until

SCRIPT = str(SCRIPTS / "wrapped_alone.py")
WAIT_S = 60.0


@dataclass
class Alone:
    """The ranks of one job, and their notes. `processes`: by rank, or only torchrun."""

    folder: Path
    world_size: int
    environment: dict[str, str] = field(default_factory=dict[str, str])
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __post_init__(self) -> None:
        self.cookie = uuid.uuid4().hex
        self.trace, self.orders, self.output = (self.folder / name for name in ("trace.jsonl", "orders", "output"))
        self.orders.mkdir()
        kept = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("HOLDFAST", "PET_", "FT_", "SLURM", "TORCHELASTIC"))
        }  # fmt: skip
        self.environment = kept | self.environment | {
            COOKIE: self.cookie, "TRACE": str(self.trace), "ORDERS": str(self.orders),
            "HOLDFAST_STATE_DIR": str(self.folder / "state"), "XDG_RUNTIME_DIR": str(self.folder),
        }  # fmt: skip

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command], env=self.environment | environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start_ranks(self, calls: int = 1, *, command: tuple[str, ...] = ()) -> None:
        """Starts the ranks. `command`: another script, with its arguments."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(self.world_size):
            self.start(
                *(command or (SCRIPT, str(calls))), RANK=str(rank), LOCAL_RANK=str(rank),
                WORLD_SIZE=str(self.world_size), LOCAL_WORLD_SIZE=str(self.world_size),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID=self.cookie,
            )  # fmt: skip

    # --- what is ordered

    def order(self, what: str, *ranks: int) -> None:
        for rank in ranks:
            (self.orders / f"{what}-{rank}").touch()

    def end(self) -> None:
        (self.orders / "end").touch()

    def kill_supervisor(self) -> int:
        (pid,) = self.supervisors()
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: pid not in self.supervisors(), "the end of the supervisor")
        return pid

    # --- what is seen

    def supervisors(self) -> list[int]:
        found: list[int] = []
        for pid in processes_with(self.cookie):
            with contextlib.suppress(OSError):
                program, *arguments = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
                if b"adopt" in arguments and program != b"/bin/sh":  # this starts it
                    found.append(pid)
        return found

    def traced(self, what: str | None = None) -> list[dict[str, object]]:
        if not self.trace.exists():
            return []
        lines = [json.loads(line) for line in self.trace.read_text().splitlines()]
        return [line for line in lines if what is None or line["what"] == what]

    def entered(self, iteration: int) -> set[object]:
        """Returns the initial ranks."""
        return {line["rank"] for line in self.traced("fn") if line["iteration"] == iteration}

    def worlds(self, iteration: int) -> set[object]:
        return {line["world_size"] for line in self.traced("fn") if line["iteration"] == iteration}

    def latest(self) -> int:
        return max((int(str(line["iteration"])) for line in self.traced("fn")), default=-1)

    def explained(self) -> str:
        return self.output.read_text(errors="replace")[-6000:] if self.output.exists() else ""

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
        try:
            wait_until(condition, timeout_s=timeout_s, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.explained()}") from None

    def until_answered(self, *ranks: int) -> None:
        """Waits until the function runs on these ranks."""
        before = len(self.traced("answer"))
        self.order("answer", *ranks)
        self.until(lambda: len(self.traced("answer")) >= before + len(ranks), f"an answer of the ranks {ranks}")

    def codes(self) -> list[int]:
        """Returns the exit codes once all have ended."""
        for process in self.processes:
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"a rank hangs: {self.explained()}") from None
        return [process.returncode for process in self.processes]

    def until_nothing_is_left(self) -> None:
        self.until(lambda: not processes_with(self.cookie), "the end of all processes")


@contextlib.contextmanager
def alone(folder: Path, world_size: int, **environment: str) -> Generator[Alone]:
    """Yields the ranks; nothing of them outlives the block."""
    job = Alone(folder, world_size, environment)
    try:
        yield job
    finally:
        for pid in processes_with(job.cookie):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in job.processes:
            process.wait()
