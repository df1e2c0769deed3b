"""Several `holdfast run` on addresses of this machine are one job: one group, one verdict, whichever of them fails.

Each has its own folders, as nodes do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from supervisor.core.stop_verdict import SAME_SIGTERM_S
from tests.e2e.launch import wait_until

HOLDFAST = Path(sys.executable).with_name("holdfast")
LIMIT_S = 60.0
NOT_RUN = 2  # the exit code of a command that can't be run
SCRIPT = """
import os, signal, sys, time
folder, seconds = sys.argv[1], float(sys.argv[2])
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
seen = f"{rank} of {os.environ['WORLD_SIZE']} in {cycle} store {os.environ['MASTER_PORT']}"
def save(*_):
    open(f"{folder}/saving-{rank}", "w").close()
    time.sleep(5.0)
    open(f"{folder}/saved-{rank}", "w").close()
    sys.exit(3)
if "save" in sys.argv:
    signal.signal(signal.SIGTERM, save)
open(f"{folder}/{cycle}-{rank}", "w").write(seen)
if (rank, cycle) == ("3", "0") and "kill" in sys.argv:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
deadline = time.monotonic() + seconds
while time.monotonic() < deadline and not os.path.exists(f"{folder}/end"):
    time.sleep(0.02)
"""


class Nodes:
    def __init__(self, folder: Path, nnodes: str) -> None:
        self.folder = folder
        self.nnodes = nnodes
        (folder / "train.py").write_text(SCRIPT)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self.job_id = f"job-{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, number: int, *arguments: str, flags: tuple[str, ...] = (), **environ: str
    ) -> subprocess.Popen[bytes]:
        home = self.folder / f"node{number}"
        for place in (home, home / "claims", home / "state", home / "run"):
            place.mkdir(exist_ok=True, mode=0o700)
        meet = ["--nnodes", self.nnodes, "--rdzv-id", self.job_id, "--rdzv-endpoint", self.endpoint]
        meet += ["--local-addr", f"127.0.0.{number}", "--nproc-per-node", "2", "--max-restarts", "2"]
        command = [str(HOLDFAST), "run", *meet, *flags, str(self.folder / "train.py"), str(self.folder), *arguments]
        environment = {**self.environment(number), **environ}
        with (home / "output").open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        self.processes.append(process)
        return process

    def environment(self, number: int) -> dict[str, str]:
        home = self.folder / f"node{number}"
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        places = {
            "HOLDFAST_CLAIM_DIR": str(home / "claims"),
            "HOLDFAST_STATE_DIR": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"),
        }
        return {**kept, **places}

    def output(self, number: int) -> str:
        return (self.folder / f"node{number}" / "output").read_text()

    def until_running(self, cycle: int, world_size: int) -> set[str]:
        """Returns the stores that the ranks were given: one, if all is well."""

        def words() -> list[list[str]]:
            return [path.read_text().split() for path in self.folder.glob(f"{cycle}-*")]

        wait_until(
            lambda: sorted(found[0] for found in words() if found) == [str(rank) for rank in range(world_size)],
            timeout_s=LIMIT_S,
            what=f"cycle {cycle} with {world_size} ranks",
        )
        assert {found[2] for found in words()} == {str(world_size)}
        return {found[-1] for found in words()}

    def let_end(self) -> None:
        (self.folder / "end").touch()


@contextmanager
def nodes(folder: Path, nnodes: str) -> Generator[Nodes]:
    started = Nodes(folder, nnodes)
    try:
        yield started
    finally:
        for process in started.processes:
            process.kill()  # its spawner ends what is left
            process.wait(LIMIT_S)


def test_a_rank_is_killed_and_both_nodes_restart_in_one_cycle_and_end_well(tmp_path: Path):
    with nodes(tmp_path, "2") as job:
        processes = [job.start(number, "60", "kill") for number in (1, 2)]
        assert len(job.until_running(0, 4)) == 1
        assert len(job.until_running(1, 4)) == 1
        job.let_end()
        assert [process.wait(LIMIT_S) for process in processes] == [0, 0]
        said = job.output(1) + job.output(2)
        assert "was killed by SIGKILL" in said
        assert "restarting at once, restarts used 1 of 2" in said
        assert not list(tmp_path.glob("2-*"))


def test_a_spare_takes_the_place_of_a_lost_node_and_a_lost_leader_ends_the_job(tmp_path: Path):
    with nodes(tmp_path, "2:3") as job:
        leader = job.start(1, "60")
        wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")
        second = job.start(2, "60")
        job.until_running(0, 4)
        spare = job.start(3, "60")
        second.kill()
        job.until_running(1, 4)
        assert "node 127.0.0.2 is lost: " in job.output(1)
        leader.send_signal(signal.SIGKILL)
        assert spare.wait(LIMIT_S) == 1
        assert f"the leader at 127.0.0.1:{job.port} is lost: connection refused" in job.output(3)


def test_a_late_node_without_the_script_says_so_and_ends_alone(tmp_path: Path):
    with nodes(tmp_path, "2:3") as job:
        first = job.start(1, "60")
        wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")
        second = job.start(2, "60")
        job.until_running(0, 4)
        (tmp_path / "train.py").unlink()
        assert job.start(3, "60").wait(LIMIT_S) == NOT_RUN
        assert "train.py: there is no such file" in job.output(3)
        job.let_end()
        assert [first.wait(LIMIT_S), second.wait(LIMIT_S)] == [0, 0]


def test_a_stop_on_any_node_stops_the_job_on_all_with_one_verdict(tmp_path: Path):
    with nodes(tmp_path, "2") as job:
        first, second = job.start(1, "60"), job.start(2, "60")
        job.until_running(0, 4)
        second.send_signal(signal.SIGTERM)
        assert [first.wait(LIMIT_S), second.wait(LIMIT_S)] == [143, 143]


def test_nodes_that_are_signalled_one_after_another_leave_their_ranks_the_time_to_save(tmp_path: Path):
    with nodes(tmp_path, "2") as job:
        first, second = job.start(1, "60", "save"), job.start(2, "60", "save")
        job.until_running(0, 4)
        first.send_signal(signal.SIGTERM)
        asked_s = time.monotonic()
        wait_until(lambda: len(list(tmp_path.glob("saving-*"))) == 4, timeout_s=LIMIT_S, what="ranks that save")
        wait_until(lambda: time.monotonic() > asked_s + SAME_SIGTERM_S + 1.0, timeout_s=LIMIT_S, what="another signal")
        second.send_signal(signal.SIGTERM)
        assert [first.wait(LIMIT_S), second.wait(LIMIT_S)] == [143, 143]
        assert len(list(tmp_path.glob("saved-*"))) == 4
        assert "got SIGTERM on node 127.0.0.2: ranks 2 to 3 have 1800 s to end" in job.output(2)


def test_nodes_are_placed_by_rank_and_domain_and_those_that_disagree_are_refused_alone(tmp_path: Path):
    with nodes(tmp_path, "2:3") as job:
        for number, rank, domain in ((1, 7, "x"), (2, 5, "y"), (3, 3, "x")):
            conf = f"nvlink_domain={domain},last_call_timeout=20"
            job.start(number, "60", flags=("--ft-segment", "2", "--rdzv-conf", conf), GROUP_RANK=str(rank))
            wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")
        job.until_running(0, 4)
        assert "cycle 0 runs on 127.0.0.3, 127.0.0.1; spare: 127.0.0.2" in job.output(1)
        alike = ("--ft-segment", "2", "--rdzv-conf", "nvlink_domain=x,last_call_timeout=20")
        twin = job.start(4, "60", flags=alike, SLURM_PROCID="3")
        other = job.start(5, "60", flags=(*alike, "--max-restarts", "9"))
        assert {twin.wait(LIMIT_S), other.wait(LIMIT_S)} == {1}
        assert "node 127.0.0.4 has SLURM_PROCID 3, and so has node 127.0.0.3 of the job" in job.output(4)
        assert "has --max-restarts 9, and the other nodes of the job have 2; start it with the same" in job.output(5)
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes[:3]] == [0, 0, 0]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
