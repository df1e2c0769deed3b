"""Several `holdfast run` on addresses of this machine, whose ranks make one wrapped call, and their records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator
from pathlib import Path

from tests.e2e.launch import COOKIE, SCRIPTS, processes_with, wait_until

LIMIT_S = 60.0


class WrappedNodes:
    """The nodes of one job by number, from 1; node 1 leads. Each has its own folders, as nodes do."""

    def __init__(self, folder: Path, nnodes: str, *script: str, max_restarts: int = 3, **environment: str) -> None:
        self.folder = folder
        self.cookie = uuid.uuid4().hex
        job_id = f"t-{self.cookie[:8]}"
        self.trace, self.orders = folder / "trace.jsonl", folder / "orders"
        self.orders.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._script = (str(SCRIPTS / script[0]), *script[1:])
        self._flags = ["--nnodes", nnodes, "--rdzv-id", job_id, "--rdzv-endpoint", f"127.0.0.1:{self.port}"]
        self._flags += ["--nproc-per-node", "2", "--max-restarts", str(max_restarts)]
        self._environment = environment
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, *flags: str) -> subprocess.Popen[bytes]:
        home = self.folder / f"node{number}"
        for place in (home, home / "claims", home / "state", home / "run"):
            place.mkdir(exist_ok=True, mode=0o700)
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        places = {
            "HOLDFAST_CLAIM_DIR": str(home / "claims"),
            "HOLDFAST_STATE_DIR": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "TRACE": str(self.trace), "ORDERS": str(self.orders), COOKIE: self.cookie, "NODE": str(number),
        }  # fmt: skip
        command = [sys.executable, "-m", "supervisor", "run", *self._flags, "--local-addr", f"127.0.0.{number}"]
        environment = {**kept, **places, **self._environment}
        with (home / "output").open("wb") as output:
            process = subprocess.Popen([*command, *flags, *self._script], env=environment, stdout=output, stderr=output)
        self.processes[number] = process
        return process

    def start_all(self, count: int, *flags: str) -> None:
        """Starts the nodes; waits for the first one, which leads."""
        self.start(1, *flags)
        wait_until(self._has_leader, timeout_s=LIMIT_S, what="a leader")
        for number in range(2, count + 1):
            self.start(number, *flags)

    def _has_leader(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def lose(self, number: int) -> None:
        """Kills the whole node at once."""
        doomed = [pid for pid in processes_with(self.cookie) if node_of(pid) == str(number)]
        for pid in (self.processes[number].pid, *doomed):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes.pop(number).wait(LIMIT_S)

    # --- what is ordered and seen

    def order(self, what: str, *ranks: int) -> None:
        for rank in ranks:
            (self.orders / f"{what}-{rank}").touch()

    def end(self) -> None:
        (self.orders / "end").touch()

    def traced(self, what: str) -> list[dict[str, object]]:
        if not self.trace.exists():
            return []
        lines = [json.loads(line) for line in self.trace.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["what"] == what]

    def entered(self, iteration: int, *, cycle: str = "0") -> dict[object, dict[str, object]]:
        """Returns the records of an iteration by initial rank."""
        lines = [line for line in self.traced("fn") if (line["iteration"], line["cycle"]) == (iteration, cycle)]
        return {line["rank"]: line for line in lines}

    def until_entered(self, iteration: int, world_size: int, *, cycle: str = "0") -> dict[object, dict[str, object]]:
        """Waits for all ranks of the iteration, which agree about its world size."""

        def is_over() -> bool:
            entered = ((str(line["cycle"]), int(str(line["iteration"]))) for line in self.traced("fn"))
            return any(each > (cycle, iteration) for each in entered)

        def is_decided() -> bool:
            return len(self.entered(iteration, cycle=cycle)) >= world_size or is_over() or not self._runs()

        self.until(is_decided, f"iteration {iteration} with {world_size} ranks")
        found = self.entered(iteration, cycle=cycle)
        assert len(found) >= world_size, f"{len(found)} of {world_size} in iteration {iteration}\n{self.explained()}"
        assert {line["world_size"] for line in found.values()} == {str(world_size)}, self.explained()
        assert sorted(str(line["as_rank"]) for line in found.values()) == [str(each) for each in range(world_size)]
        return found

    def _runs(self) -> bool:
        return any(process.poll() is None for process in self.processes.values())

    def after_s(self, iteration: int) -> float:
        """Returns the time from the last fault before that iteration to the entry of its last rank."""
        at = max(float(str(line["at"])) for line in self.traced("fault") if line["iteration"] == iteration - 1)
        return max(float(str(line["at"])) for line in self.entered(iteration).values()) - at

    def until(self, condition: object, what: str, timeout_s: float = LIMIT_S) -> None:
        try:
            wait_until(condition, timeout_s=timeout_s, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.explained()}") from None

    def codes(self) -> list[int]:
        """Returns the exit codes in the order of the nodes' numbers, once all have ended."""
        codes: list[int] = []
        for number, process in sorted(self.processes.items()):
            try:
                codes.append(process.wait(LIMIT_S))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"node {number} hangs\n{self.explained()}") from None
        return codes

    def said(self, number: int) -> str:
        return (self.folder / f"node{number}" / "output").read_text(errors="replace")

    def until_whole(self, after: int, world_size: int, *, calls: int) -> tuple[int, dict[object, dict[str, object]]]:
        """Waits for the first later iteration with that many ranks, once `calls` processes in all have come to the
        call.

        A process that comes late takes part from the next restart on: rank 0 fails for its sake.
        """
        self.until(lambda: len(self.traced("call")) >= calls, f"the call of {calls} processes")
        iteration = after + 1
        while not self._has_size(iteration, world_size):
            self.order("fail", 0)
            iteration += 1
        return iteration, self.until_entered(iteration, world_size)

    def _has_size(self, iteration: int, world_size: int) -> bool:
        self.until(lambda: 0 in self.entered(iteration), f"iteration {iteration}")
        return self.entered(iteration)[0]["world_size"] == str(world_size)

    def explained(self) -> str:
        said = "\n".join(f"--- node {number}\n{self.said(number)[-5000:]}" for number in sorted(self.processes))
        return f"{said}\n--- trace\n{self.trace.read_text() if self.trace.exists() else ''}"


def node_of(pid: int) -> str:
    """Returns the node of a process, from its environment."""
    with contextlib.suppress(OSError):
        for each in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
            if each.startswith(b"NODE="):
                return each.removeprefix(b"NODE=").decode()
    return ""


@contextlib.contextmanager
def wrapped_nodes(
    folder: Path, nnodes: str, *script: str, max_restarts: int = 3, **environment: str
) -> Generator[WrappedNodes]:
    """Yields the nodes; nothing of them outlives the block."""
    job = WrappedNodes(folder, nnodes, *script, max_restarts=max_restarts, **environment)
    try:
        yield job
    finally:
        for pid in processes_with(job.cookie):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in job.processes.values():
            process.wait(LIMIT_S)
