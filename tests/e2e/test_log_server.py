"""Several nodes, one writer of their logs (--ft-enable-log-server): real ranks, real servers, and their deaths."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from tests.etcd_server import etcd

HOLDFAST = Path(sys.executable).with_name("holdfast")
LIMIT_S = 60.0
SCRIPT = """
import os, sys, time
cycle, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
lines, folder = int(sys.argv[1]), sys.argv[2]
for number in range(lines):
    print("rank", rank, "cycle", cycle, "line", number, flush=number % 50 == 0)
    if number == lines // 2:
        sys.stdout.flush()
        open(f"{folder}/half-{cycle}-{rank}", "w").close()
        while "wait" in sys.argv and not os.path.exists(f"{folder}/go"):
            time.sleep(0.01)
if "fail" in sys.argv and cycle == 0:
    sys.stdout.flush()
    open(f"{folder}/up-{rank}", "w").close()
    while rank == "3" and len([each for each in os.listdir(folder) if each.startswith("up-")]) < 4:
        time.sleep(0.01)
    if rank == "3":
        raise RuntimeError("lost")
    time.sleep(60)
"""


class Cluster:
    """`holdfast run` on addresses of this machine, each with its own folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "shared" / "logs"
        self.logs.parent.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log_port = free_ports(3)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.meet: tuple[str, ...] = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}")

    def start(self, number: int, *script: str, flags: tuple[str, ...] = (), has_cycle_logs: bool = True) -> None:
        home = self.folder / f"node{number}"
        for place in (home, home / "claims", home / "state", home / "run"):
            place.mkdir(mode=0o700)
        command = [
            str(HOLDFAST), "run", *self.meet, "--rdzv-id", f"job-{self.port}",
            "--local-addr", f"127.0.0.{number}", "--nproc-per-node", "2",
            "--max-restarts", "2", "--ft-enable-log-server", "true", "--ft-log-server-port", str(self.log_port),
            *(("--ft-per-cycle-applog-prefix", str(self.logs / "train.log")) if has_cycle_logs else ()), *flags,
            str(self.folder / "train.py"), *script,
        ]  # fmt: skip
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        environment = kept | {
            "HOLDFAST_CLAIM_DIR": str(home / "claims"), "HOLDFAST_STATE_DIR": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"), "GROUP_RANK": str(number - 1),
        }  # fmt: skip
        with (home / "output").open("wb") as output:
            self.processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))

    def wait(self) -> list[int]:
        return [process.wait(LIMIT_S) for process in self.processes]

    def until_half(self, cycle: int) -> None:
        half = [self.folder / f"half-{cycle}-{rank}" for rank in range(4)]
        wait_until(lambda: all(each.exists() for each in half), timeout_s=LIMIT_S, what=f"half of cycle {cycle}")

    def output(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("node*/output")))

    def own_words(self, number: int) -> str:
        """Returns what a node's supervisor said about the job, as it should be in the file of all nodes."""
        (path,) = (self.folder / f"node{number}" / "state").rglob("supervisor.log")
        return re.sub(" kind=[a-z_]+", "", path.read_text())

    def lines(self, cycle: int) -> list[str]:
        return (self.logs / f"train_cycle{cycle}.log").read_text().splitlines()

    def tiers(self, kind: str) -> list[int]:
        """Returns the pids of this job's log server processes, by what they write or listen at."""
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if self._is(path.parent, kind)]

    def _is(self, process: Path, kind: str) -> bool:
        try:
            words = (process / "cmdline").read_bytes()
            parent = int(re.findall(r"\nPPid:\s+(\d+)", (process / "status").read_text())[0])
            name = (process / "comm").read_text().strip()
        except (OSError, IndexError):
            return False
        return b"log-tier" in words and name == f"hf-log-{kind}" and parent in [each.pid for each in self.processes]


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def free_ports(count: int) -> int:
    """The first of so many ports in a row at which nobody listens."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("0.0.0.0", 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                for number in range(1, count):
                    stack.enter_context(socket.socket()).bind(("0.0.0.0", port + number))
                return port


def expected(cycle: int, lines: int) -> set[str]:
    return {f"{rank}: rank {rank} cycle {cycle} line {number}" for rank in range(4) for number in range(lines)}


def said_by(node: str, told: str) -> str:
    """Returns what one node said, with continuation lines, without its name."""
    records = re.findall(r"^\S.*\n(?: .*\n)*", told, re.MULTILINE)
    own = [each.replace(f"Z {node} ", "Z ", 1) for each in records if each.split()[1] == node]
    return "".join(own)


def writers(path: Path) -> list[str]:
    """Returns the names of the processes that have a file open."""
    names: set[str] = set()
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(fd) == str(path):
                names.add((fd.parent.parent / "comm").read_text().strip())
    return sorted(names)


def test_two_nodes_have_one_writer_of_each_cycles_log_and_leaves_by_the_schedulers_order(cluster: Cluster) -> None:
    """As many leaves as the most nodes need: 1537 of them need two."""
    cluster.meet = ("--nnodes", "2:1537", *cluster.meet[2:])
    for number in (1, 2):
        cluster.start(number, "300", str(cluster.folder), "fail")
    assert cluster.wait() == [0, 0], cluster.output()
    assert expected(0, 300) <= set(cluster.lines(0))
    assert len([line for line in cluster.lines(0) if " cycle 0 line " in line]) == 4 * 300
    assert sorted(cluster.lines(1)) == sorted(expected(1, 300))
    assert "3: RuntimeError: lost" in cluster.lines(0)
    own = ["train_grpc_leaf_0.log", "train_grpc_leaf_1.log", "train_grpc_root.log"]
    assert sorted(path.name for path in cluster.logs.iterdir()) == ["train_cycle0.log", "train_cycle1.log", *own]
    for leaf, name in enumerate(own[:2]):
        said = (cluster.logs / name).read_text()
        assert re.findall(r"node (\S+) is connected", said) == [f"127.0.0.{leaf + 1}"]


def test_leaf_root_and_senders_are_killed_and_no_line_is_lost_or_doubled(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.start(number, "400", str(cluster.folder), "wait")
    cluster.until_half(0)
    for kind in ("leaf", "root", "sender"):
        wait_until(lambda kind=kind: cluster.tiers(kind), timeout_s=LIMIT_S, what=f"a {kind}")
        for pid in cluster.tiers(kind):
            os.kill(pid, signal.SIGKILL)
    (cluster.folder / "go").touch()
    assert cluster.wait() == [0, 0], cluster.output()
    assert sorted(cluster.lines(0)) == sorted(expected(0, 400))
    assert "is replaced: it was ended by SIGKILL" in cluster.output()


def test_without_its_log_server_a_job_runs_and_ends_and_counts_what_is_in_no_file(cluster: Cluster) -> None:
    with socket.socket() as occupied:
        occupied.bind(("0.0.0.0", cluster.log_port))
        for number in (1, 2):
            flags = ("--ft-log-server-graceful-shutdown-timeout", "0")
            cluster.start(number, "50", str(cluster.folder), flags=flags)
        assert cluster.wait() == [0, 0], cluster.output()
    assert not (cluster.logs / "train_cycle0.log").exists()
    told = [cluster.own_words(number) for number in (1, 2)]
    by_leader = "".join(told)  # Whichever of them was first at the address where they meet.
    assert by_leader.count("leaf 0 of the log server is replaced: ") == 1, by_leader
    assert "cannot listen at" in by_leader
    for each in told:
        assert f"100 lines were not in {cluster.logs}/train_cycle0.log yet when the job ended: " in each, each
        assert "the sender of this node could not pass on everything in time" in each


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["leaf", "root"])
def test_while_its_log_server_stands_still_a_job_ends_in_time(cluster: Cluster, kind: str) -> None:
    for number in (1, 2):
        flags = ("--ft-log-server-graceful-shutdown-timeout", "1")
        cluster.start(number, "50", str(cluster.folder), "wait", flags=flags)
    cluster.until_half(0)
    wait_until(lambda: cluster.tiers(kind), timeout_s=LIMIT_S, what=f"a {kind}")
    (pid,) = cluster.tiers(kind)
    os.kill(pid, signal.SIGSTOP)
    (cluster.folder / "go").touch()
    began_s = time.monotonic()
    assert cluster.wait() == [0, 0], cluster.output()
    assert time.monotonic() - began_s < 30.0
    for number in (1, 2):
        told = cluster.own_words(number)
        assert re.search(rf"\d+ lines were not in {cluster.logs}/train_cycle0.log yet when the job ended: ", told), told
    assert "lines of the job may be missing in its logs" in cluster.own_words(1) + cluster.own_words(2)


def test_the_words_of_both_supervisors_have_one_writer_too(cluster: Cluster) -> None:
    words = cluster.logs / "words.log"
    for number in (1, 2):
        cluster.start(
            number, "20", str(cluster.folder), "wait", flags=("--ft-nvrx-logfile", str(words)), has_cycle_logs=False
        )
    cluster.until_half(0)
    wait_until(lambda: writers(words) == ["hf-log-root"], timeout_s=LIMIT_S, what="the root to write the words")
    wait_until(lambda: len(cluster.tiers("sender")) == 2, timeout_s=LIMIT_S, what="a sender on each node")
    for kind in ("leaf", "root", "sender"):
        for pid in cluster.tiers(kind):
            os.kill(pid, signal.SIGKILL)
    (cluster.folder / "go").touch()
    assert cluster.wait() == [0, 0], cluster.output()
    told = words.read_text()
    assert told.count("is replaced: it was ended by SIGKILL") == 4, told
    for number in (1, 2):
        assert said_by(f"127.0.0.{number}", told) == cluster.own_words(number)


@pytest.mark.soak
def test_where_another_node_leads_its_servers_go_on(cluster: Cluster, tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as server:
        cluster.meet = ("--nnodes", "2:3", "--rdzv-endpoint", server.endpoint, "--rdzv-backend", "etcd")
        cluster.start(1, "200", str(cluster.folder), "wait")
        wait_until(lambda: server.ctl("get", "--prefix", "/holdfast/").strip(), timeout_s=LIMIT_S, what="a leader")
        for number in (2, 3):
            cluster.start(number, "200", str(cluster.folder), "wait")
        cluster.until_half(0)
        cluster.processes[0].kill()
        cluster.until_half(1)
        (cluster.folder / "go").touch()
        assert cluster.wait()[1:] == [0, 0], cluster.output()
    assert sorted(cluster.lines(1)) == sorted(expected(1, 200))
    before = cluster.lines(0)
    assert len(before) == len(set(before))
    assert {f"{rank}: rank {rank} cycle 0 line {number}" for rank in (2, 3) for number in range(101)} <= set(before)
