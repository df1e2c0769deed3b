"""Several `holdfast daemon` on addresses of this machine run jobs on several nodes, each separate from the others.

Each daemon has its own folders, as nodes do. Each node has one `holdfast run` per job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import SCRIPT

HOLDFAST = Path(sys.executable).with_name("holdfast")
LIMIT_S = 60.0


class Node:
    """A daemon, and the commands typed on its node."""

    def __init__(self, folder: Path, number: int, program: Path = HOLDFAST) -> None:
        self.program = program
        self.address = f"127.0.0.{number}"
        self.home = folder / f"node{number}"
        for place in (self.home, self.home / "claims"):
            place.mkdir(mode=0o700)
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        self.environment = kept | {
            "HOLDFAST_CLAIM_DIR": str(self.home / "claims"),
            "HOLDFAST_STATE_DIR": str(self.home / "state"),
            "HOLDFAST_SOCKET_DIR": str(self.home / "run"),
        }
        self.runs: list[subprocess.Popen[bytes]] = []
        self.commands: list[Path] = []
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.home / "daemon").open("ab") as said:
            return subprocess.Popen([str(self.program), "daemon"], env=self.environment, stdout=said, stderr=said)

    @property
    def is_serving(self) -> bool:
        return self.process.poll() is None and f"supervisor {self.process.pid} serves" in self.daemon_said

    @property
    def daemon_said(self) -> str:
        return (self.home / "daemon").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Returns once people can ask."""
        self.process = self._start()
        wait_until(lambda: self.is_serving, timeout_s=LIMIT_S, what="the daemon that comes back")

    def run(self, job_id: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(self.program), "run", "--job-id", job_id, "--nproc-per-node", "2", *arguments]
        with (self.home / f"{job_id}.txt").open("wb") as output:
            process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)
        self.runs.append(process)
        return process

    def said(self, job_id: str) -> str:
        return (self.home / f"{job_id}.txt").read_text()

    def holdfast(self, *arguments: str) -> str:
        return subprocess.run(
            [str(self.program), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        ).stdout

    def ask(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command that may take some time. What it says on stderr is in the last of `commands`."""
        self.commands.append(self.home / f"command{len(self.commands)}.txt")
        with self.commands[-1].open("wb") as said:
            command = [str(self.program), *arguments]
            process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=said)
        self.runs.append(process)
        return process

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        for process in self.runs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)
            process.kill()
            process.wait(LIMIT_S)
        try:
            self.process.wait(LIMIT_S)
        finally:
            self.process.kill()


@contextmanager
def nodes(folder: Path, count: int) -> Generator[list[Node]]:
    (folder / "train.py").write_text(SCRIPT)
    started: list[Node] = []
    try:
        started += [Node(folder, number) for number in range(1, count + 1)]
        for node in started:
            wait_until(lambda node=node: node.is_serving, timeout_s=LIMIT_S, what="a daemon")
        yield started
    finally:
        for node in started:
            node.end()


class Job:
    """One job on some of the nodes; the first of them leads it, unless `etcd`, HOST:PORT, elects the leader."""

    def __init__(
        self, folder: Path, name: str, on: list[Node], nnodes: str, *arguments: str, etcd: str = "", conf: str = ""
    ) -> None:
        with socket.socket() as probe:
            probe.bind((on[0].address, 0))
            self.port = probe.getsockname()[1]
        self.job_id, self.nodes = f"{name}-{self.port}", on
        self.folder = folder / name
        self.folder.mkdir()
        self.script = [str(folder / "train.py"), str(self.folder), *arguments]
        endpoint = etcd or f"{on[0].address}:{self.port}"
        self.meet = ["--nnodes", nnodes, "--rdzv-endpoint", endpoint, "--max-restarts", "2"]
        self.meet += ["--rdzv-backend", "etcd"] if etcd else []
        self.meet += ["--rdzv-conf", conf] if conf else []
        self.processes = [self._start(on[0])]
        if not etcd:
            wait_until(lambda: listens_at(on[0].address, self.port), timeout_s=LIMIT_S, what="a leader")
        self.processes += [self._start(node) for node in on[1:]]

    def _start(self, node: Node) -> subprocess.Popen[bytes]:
        return node.run(self.job_id, *self.meet, "--local-addr", node.address, *self.script)

    def until_running(self, cycle: int, world_size: int) -> None:
        wait_until(
            lambda: len(list(self.folder.glob(f"{cycle}-*"))) == world_size,
            timeout_s=LIMIT_S,
            what=f"cycle {cycle} of {self.job_id} with {world_size} ranks",
        )

    def let_end(self) -> None:
        (self.folder / "end").touch()

    def exit_codes(self) -> list[int]:
        return [process.wait(LIMIT_S) for process in self.processes]


def listens_at(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_two_daemons_run_two_jobs_together_and_each_is_one_job_from_either(tmp_path: Path):
    with nodes(tmp_path, 2) as (a, b):
        script = tmp_path / "train.py"
        script.write_text('import os\nprint("hello from rank", os.environ["RANK"], flush=True)\n' + script.read_text())
        hurt = Job(tmp_path, "hurt", [a, b], "2", "60", "kill")
        calm = Job(tmp_path, "calm", [b, a], "2", "60")
        (tmp_path / "alone").mkdir()
        alone = a.run("alone", str(tmp_path / "train.py"), str(tmp_path / "alone"), "60")
        hurt.until_running(1, 4)
        calm.until_running(0, 4)
        for node in (a, b):
            whole = json.loads(node.holdfast("status", hurt.job_id, "-o", "json"))["jobs"][0]
            assert [(rank["rank"], rank["node"]) for rank in whole["ranks"]] == [
                (0, "127.0.0.1"), (1, "127.0.0.1"), (2, "127.0.0.2"), (3, "127.0.0.2"),
            ]  # fmt: skip
            assert (whole["cycle"], whole["restarts_used"]) == (1, 1)
            wait_until(  # a leader hears the other nodes' events within a second
                lambda node=node: "rank 3" in node.holdfast("events", hurt.job_id, "--kind", "worker_failed"),
                timeout_s=LIMIT_S,
                what="the event of rank 3",
            )
            assert node.holdfast("logs", hurt.job_id, "--cycle", "1") == "".join(
                f"[cycle 1 rank {rank}] hello from rank {rank}\n" for rank in range(4)
            )
            assert "train.py" in node.holdfast("stacks", hurt.job_id, "--rank", "3")
            assert {"127.0.0.1", "127.0.0.2"} & set(node.holdfast("nodes").split())
        assert a.holdfast("logs", hurt.job_id, "--rank", "3", "--cycle", "1") == "hello from rank 3\n"
        assert "was killed by SIGKILL" in b.said(hurt.job_id)
        assert "restarting at once, restarts used 1 of 2" in a.said(hurt.job_id)

        refused = a.run("refused", *calm.meet, "--rdzv-conf", f"token_file={tmp_path}/none", *calm.script)
        assert refused.wait(LIMIT_S) == 78
        assert "cannot read the token file" in a.said("refused")

        b.holdfast("restart", calm.job_id)
        calm.until_running(1, 4)
        a.holdfast("stop", calm.job_id, "--wait")
        assert calm.exit_codes() == [93, 93]

        hurt.let_end()
        assert hurt.exit_codes() == [0, 0]
        (tmp_path / "alone" / "end").touch()
        assert alone.wait(LIMIT_S) == 0
        assert not list(hurt.folder.glob("2-*"))
        assert not list((tmp_path / "alone").glob("1-*"))


@pytest.mark.soak
def test_a_daemon_that_is_lost_is_replaced_by_a_spare_and_jobs_without_it_go_on(tmp_path: Path):
    with nodes(tmp_path, 3) as (a, b, c):
        shared = Job(tmp_path, "shared", [a, b, c], "2:3", "60")
        other = Job(tmp_path, "other", [a, c], "2", "60")
        shared.until_running(0, 4)
        other.until_running(0, 4)
        b.process.kill()
        shared.until_running(1, 4)
        assert "node 127.0.0.2 is lost: the other side has closed the connection" in a.said(shared.job_id)
        assert shared.processes[1].wait(LIMIT_S) == 69
        lost = json.loads(c.holdfast("status", shared.job_id, "-o", "json"))["jobs"][0]["nodes"]
        assert {node["name"]: node["state"] for node in lost}["127.0.0.2"] == "lost"
        shared.let_end()
        other.let_end()
        assert [shared.processes[0].wait(LIMIT_S), shared.processes[2].wait(LIMIT_S)] == [0, 0]
        assert other.exit_codes() == [0, 0]
        assert not list(other.folder.glob("1-*"))


@pytest.mark.soak
def test_a_job_whose_leader_says_nothing_stalls_alone(tmp_path: Path):
    """A stopped process answers nothing and closes nothing. All else of the daemon beside its job continues."""
    with nodes(tmp_path, 3) as (a, b, c):
        hurt = Job(tmp_path, "hurt", [c, a], "2", "60")
        calm = Job(tmp_path, "calm", [a, b], "2", "60")
        (tmp_path / "alone").mkdir()
        alone = a.run("alone", str(tmp_path / "train.py"), str(tmp_path / "alone"), "60")
        hurt.until_running(0, 4)
        calm.until_running(0, 4)
        wait_until(lambda: len(list((tmp_path / "alone").glob("0-*"))) == 2, timeout_s=LIMIT_S, what="the third job")
        c.process.send_signal(signal.SIGSTOP)
        try:
            asked = a.ask("status", hurt.job_id, "-o", "json")  # it waits for the leader's answer
            for cycle in (1, 2, 3):  # longer than the silence until the leader is given up
                b.holdfast("restart", calm.job_id)
                calm.until_running(cycle, 4)
                assert "alone" in a.holdfast("status", "alone")
            lost = f"the leader at {c.address}:{hurt.port} is lost"
            wait_until(lambda: lost in a.holdfast("status", hurt.job_id), timeout_s=LIMIT_S, what="its leader's loss")
            assert hurt.processes[1].poll() is None, "it waits for the leader, which may return"
            assert asked.wait(LIMIT_S) == 0
            a.holdfast("restart", "alone")
            wait_until(lambda: len(list((tmp_path / "alone").glob("1-*"))) == 2, timeout_s=LIMIT_S, what="its restart")
        finally:
            c.process.send_signal(signal.SIGCONT)
        c.holdfast("stop", hurt.job_id)
        calm.let_end()
        (tmp_path / "alone" / "end").touch()
        assert calm.exit_codes() == [0, 0]
        assert alone.wait(LIMIT_S) == 0
        assert len({process.wait(LIMIT_S) for process in hurt.processes}) == 1, "one verdict"
