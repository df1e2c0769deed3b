"""Two plain commands on one machine are two nodes of a job, as with torchrun: no folder and no address is named."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
LIMIT_S = 60.0
SCRIPT = """
import os, signal, sys, time
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"{sys.argv[1]}/{cycle}-{rank}", "w").write(os.environ["GROUP_RANK"])
if (rank, cycle) == ("3", "0"):
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
deadline = time.monotonic() + 60
while time.monotonic() < deadline and not os.path.exists(f"{sys.argv[1]}/end"):
    time.sleep(0.02)
"""


class Machine:
    """One user's machine: all commands share its folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.job_id = f"X{self.port}"
        for name in ("claims", "run"):
            (folder / name).mkdir(mode=0o700)
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        self.environ = {
            **kept, "HOLDFAST_CLAIM_DIR": str(folder / "claims"), "HOLDFAST_STATE_DIR": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
        }  # fmt: skip
        self.runs: list[subprocess.Popen[str]] = []

    def run(self, *flags: str) -> subprocess.Popen[str]:
        command = [HOLDFAST, "run", *flags, "--nproc-per-node", "2", "--max-restarts", "2"]
        command += [str(self.folder / "train.py"), str(self.folder)]
        pipe = subprocess.PIPE
        self.runs.append(subprocess.Popen(command, env=self.environ, stdout=pipe, stderr=subprocess.STDOUT, text=True))
        return self.runs[-1]

    def ask(self, *words: str) -> str:
        return subprocess.run([HOLDFAST, *words], env=self.environ, capture_output=True, text=True, check=False).stdout

    def until_running(self, cycle: int) -> None:
        wait_until(lambda: len(list(self.folder.glob(f"{cycle}-*"))) == 4, timeout_s=LIMIT_S, what=f"cycle {cycle}")


@pytest.fixture
def machine(tmp_path: Path) -> Generator[Machine]:
    found = Machine(tmp_path)
    try:
        yield found
    finally:
        for run in found.runs:
            run.kill()  # its spawner ends what is left
            run.communicate()


def test_two_commands_by_c10d_are_one_job_that_survives_a_kill(machine: Machine) -> None:
    meet = (
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"localhost:{machine.port}",
        "--rdzv-id",
        machine.job_id,
    )
    runs = [machine.run(*meet) for _ in range(2)]
    machine.until_running(1)
    shown = json.loads(machine.ask("status", machine.job_id, "-o", "json"))["jobs"]
    host = socket.gethostname()
    assert [sorted(node["name"] for node in job["nodes"]) for job in shown] == [[host, f"{host}-1"]]
    other = machine.run(*meet[:5], f"localhost:{machine.port + 1}", *meet[6:])
    said, _ = other.communicate(timeout=LIMIT_S)
    assert (other.returncode, "whose nodes meet at localhost:" in said) == (75, True), said
    (machine.folder / "end").touch()
    said = "".join(run.communicate(timeout=LIMIT_S)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0], said
    assert f"this machine runs a node of job {machine.job_id} already: this one is {host}-1" in said
    listed = json.loads(machine.ask("jobs", "-o", "json"))["jobs"]
    assert [
        (job["job_id"], job["state"], job["restarts_used"]) for job in listed if job["job_id"] == machine.job_id
    ] == [(machine.job_id, "succeeded", 1)]


def test_c10d_without_an_id_is_one_job_as_under_torchrun(machine: Machine) -> None:
    meet = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{machine.port}")
    runs = [machine.run(*meet) for _ in range(2)]
    machine.until_running(1)
    (machine.folder / "end").touch()
    said = "".join(run.communicate(timeout=LIMIT_S)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0], said


def test_torchruns_default_form_gives_the_ranks_that_it_names(machine: Machine) -> None:
    meet = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(machine.port))
    runs = [machine.run(*meet, "--node-rank", rank) for rank in ("1", "0")]
    machine.until_running(1)
    shown = json.loads(machine.ask("status", "none", "-o", "json"))["jobs"]
    ranks = {node["name"]: node["group_rank"] for job in shown for node in job["nodes"]}
    assert sorted(ranks.values()) == [0, 1]
    (machine.folder / "end").touch()
    said = "".join(run.communicate(timeout=LIMIT_S)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0], said


def test_a_second_command_is_a_second_node_where_a_daemon_serves_the_machine(machine: Machine) -> None:
    sockets = machine.folder / "sockets"
    with subprocess.Popen([HOLDFAST, "daemon", "--socket-dir", str(sockets)], env=machine.environ) as daemon:
        try:
            wait_until((sockets / "control.sock").exists, timeout_s=LIMIT_S, what="the daemon")
            meet = ("--socket-dir", str(sockets), "--nnodes", "2", "--master-addr", "127.0.0.1")
            runs = [machine.run(*meet, "--master-port", str(machine.port), "--node-rank", rank) for rank in ("0", "1")]
            machine.until_running(1)
            shown = json.loads(machine.ask("status", "none", "-o", "json"))["jobs"]
            assert [len(job["nodes"]) for job in shown] == [2], "two supervisors, one job"
            (machine.folder / "end").touch()
            said = "".join(run.communicate(timeout=LIMIT_S)[0] for run in runs)
            assert [run.returncode for run in runs] == [0, 0], said
            assert said.count("runs under the node's supervisor") == 1
            assert said.count("this machine runs a node of job none already") == 1
        finally:
            daemon.terminate()
            daemon.wait(LIMIT_S)
