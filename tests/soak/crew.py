"""Does this job keep counting? Its ranks' output, its processes, and what they must never do."""

from __future__ import annotations

import contextlib
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.e2e.launch import processes_with
from tests.soak.one_daemon import OneDaemon, children, command_line

SCRIPT = Path(__file__).parent / "scripts" / "counting.py"
MAX_RESTARTS = 100_000
JOB_ID = "HOLDFAST_JOB_ID"  # in the environment of all processes of a job


class Checkpoint(msgspec.Struct, frozen=True):
    """The last line of a rank."""

    step: int
    cycle: int
    iteration: int
    pid: int
    at_s: float


@dataclass
class Job:
    """One job, restarted with the same id when it has ended with a reason."""

    daemon: OneDaemon
    name: str
    how: str = "plain"
    ranks: int = 2
    log_dir: Path | None = None
    runs: int = 0
    steps_seen: dict[int, Checkpoint] = field(default_factory=dict[int, Checkpoint])
    gap_max_s: float = 0.0
    wrong: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.folder = self.daemon.folder / self.name
        self.folder.mkdir()
        self.job_id = f"{self.name}-{self.daemon.cookie[:6]}"  # a live job's id is unique, under any daemon
        self.client = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.runs += 1
        self.started_s = time.monotonic()
        logs = () if self.log_dir is None else ("--log-dir", str(self.log_dir / "logs"), "-t", "3")
        return self.daemon.run(
            self.job_id, "--nproc-per-node", str(self.ranks), "--max-restarts", str(MAX_RESTARTS), *logs,
            "--workers-stop-timeout", "2", "--term-timeout", "5",
            "--ft-rank-heartbeat-timeout", "30" if self.how == "wrapped" else "3",
            "--ft-initial-rank-heartbeat-timeout", "10", "--ft-checkpoint-iteration-file",
            str(self.folder / "iteration"), "--ft-max-no-progress-cycles", "0",
            str(SCRIPT), str(self.folder), self.how, PYTHONPATH=str(Path(__file__).parents[2]),
        )  # fmt: skip

    def start_again(self) -> None:
        self.client = self._start()

    def look(self) -> None:
        """Reads the ranks' output; a counter that goes backwards is an error."""
        now_s = time.monotonic()
        for rank in range(self.ranks):
            found = self._read(rank)
            seen = self.steps_seen.get(rank)
            if found is None or found == seen:
                continue
            if seen is not None and found.step < seen.step:
                self.wrong.append(f"{self.name}: rank {rank} went from step {seen.step} back to {found.step}")
            self.steps_seen[rank] = found
        if len(self.steps_seen) == self.ranks:
            self.gap_max_s = max(self.gap_max_s, now_s - min(each.at_s for each in self.steps_seen.values()))

    def _read(self, rank: int) -> Checkpoint | None:
        with contextlib.suppress(OSError, ValueError):
            step, cycle, iteration, pid, at_s = (self.folder / f"{rank}.checkpoint").read_text().split()
            return Checkpoint(int(step), int(cycle), int(iteration), int(pid), float(at_s))
        return None

    def printed(self) -> str:
        """Returns the end of its output."""
        return (self.daemon.folder / f"{self.job_id}.txt").read_text(errors="replace")[-3000:]

    def left(self, *, within_s: float) -> list[str]:
        """Returns its processes that are left `within_s` after its end."""
        deadline_s = time.monotonic() + within_s
        while (pids := processes_with(self.job_id, JOB_ID)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return [f"process {pid}: {command_line(pid)}" for pid in pids]

    def overlaps(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [f"{self.name}: {line}" for line in (self.folder / "overlaps").read_text().splitlines()]
        return []

    def silent_s(self) -> float:
        """Returns for how long the slowest rank has not counted."""
        since = [
            self.steps_seen[rank].at_s if rank in self.steps_seen else self.started_s for rank in range(self.ranks)
        ]
        return time.monotonic() - min(since)

    def steps(self) -> tuple[int, ...]:
        return tuple(self.steps_seen[rank].step if rank in self.steps_seen else 0 for rank in range(self.ranks))

    def is_the_same_group(self, before: dict[int, Checkpoint]) -> bool:
        return all(
            (each.cycle, each.pid, each.iteration)
            == (self.steps_seen[rank].cycle, self.steps_seen[rank].pid, self.steps_seen[rank].iteration)
            for rank, each in before.items()
        )

    def pid(self, rank: int) -> int:
        return self.steps_seen[rank].pid

    def spawner(self) -> int:
        """Returns the parent of rank 0; 0 if that is gone."""
        return _parent(self.pid(0)) if 0 in self.steps_seen else 0

    def store_host(self) -> int:
        ranks = {each.pid for each in self.steps_seen.values()}
        others = [pid for pid in children(self.spawner()) if pid not in ranks] if self.spawner() else []
        return others[0] if others else 0


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
