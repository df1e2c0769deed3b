"""A job's ranks as processes that run a scenario of rank_scenarios.py under the test's own coordinator."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fork_server import Forked, fork_server
from tests.worker_client.fake_supervisor import TOKEN
from tests.worker_client.inprocess.fake_coordinator import Coordinator

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0  # ranks that load torch are slow on a busy machine
SCENARIOS = "tests.worker_client.inprocess.rank_scenarios"


@dataclass
class Job:
    """`lines` and `codes` by initial rank, once `wait()` has returned."""

    coordinator: Coordinator
    processes: list[subprocess.Popen[str] | Forked]
    lines: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    errors: list[str] = field(default_factory=list[str])

    def wait(self) -> list[int]:
        """Returns the exit codes. A rank that hangs fails the test with its output."""
        for process in self.processes:
            try:
                out, err = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                for each in self.processes:
                    each.kill()
                told = [each.communicate() for each in self.processes]
                raise AssertionError(f"a rank hangs: {told}; {self.coordinator.phase}") from None
            self.lines.append([json.loads(line) for line in out.splitlines() if line.startswith("{")])
            self.errors.append(err)
        return [process.returncode for process in self.processes]

    def told(self, rank: int, *names: str) -> list[str]:
        """Returns the rank's notes in order, only `names` if there are any."""
        return [line["what"] for line in self.lines[rank] if not names or line["what"] in names]

    def all(self, rank: int, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines[rank] if line["what"] == what]

    def one(self, rank: int, what: str) -> dict[str, Any]:
        (line,) = self.all(rank, what)
        return line

    def read_line(self, rank: int) -> dict[str, Any]:
        """Returns the next line of a running rank; it is not in `lines` then."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        return json.loads(stdout.readline())


@contextlib.contextmanager
def started(
    folder: Path,
    scenario: str,
    world_size: int,
    *,
    shares_page: bool = True,
    environment: dict[str, str] | None = None,
    module: str = SCENARIOS,
    loads_torch: bool = False,
) -> Generator[Job]:
    """Runs the ranks during the block; nothing of them outlives it.

    `loads_torch`: the scenario does so; it runs in forks of a process that has it.
    """
    token = folder / "token"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    coordinator = Coordinator(folder / "worker.sock", shares_page=shares_page, world_size=world_size)
    processes: list[subprocess.Popen[str] | Forked] = []
    try:
        for rank in range(world_size):
            env = os.environ | {
                "HOLDFAST_SOCKET": str(coordinator.path), "HOLDFAST_JOB_ID": "job", "HOLDFAST_TOKEN_FILE": str(token),
                "HOLDFAST_CYCLE": "0", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999",
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]), **(environment or {}),
            }  # fmt: skip
            if loads_torch:
                run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
                forked = fork_server("torch.distributed").start(run, scenario, environment=env, folder=folder)
                processes.append(forked)
                continue
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, scenario], text=True, env=env,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
                )
            )  # fmt: skip
        yield Job(coordinator, processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        coordinator.stop()


def ran(folder: Path, scenario: str, world_size: int, **more: Any) -> Job:  # noqa: ANN401
    """Returns the ended job, all ranks with exit code 0."""
    with started(folder, scenario, world_size, **more) as job:
        codes = job.wait()
        assert codes == [0] * world_size, (codes, job.lines, job.errors)
        return job
