"""Ranks without a supervisor get one: one for all, nobody's child, gone with the last of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.supervisor_lookup import find_or_start

# A rank: finds its supervisor, connects like any client, reports it and waits to be released.
RANK = """
import json, os, sys
from worker_client.inprocess.private_supervisor.supervisor_lookup import find_or_start
from worker_client.workload_monitoring import acquire
found = find_or_start(os.environ)
monitoring = acquire(found, rank=int(os.environ["RANK"]), local_rank=int(os.environ["LOCAL_RANK"]))
import socket, struct
with socket.socket(socket.AF_UNIX) as probe:
    probe.connect(found.socket_path)
    pid, = struct.unpack("i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4])
folder, welcome = os.path.dirname(found.socket_path), monitoring.supervisor_pid == pid
print(json.dumps({"supervisor": pid, "job_id": found.job_id, "welcome": welcome, "folder": folder}))
sys.stdout.flush()
sys.stdin.readline()
"""
TIMEOUT_S = 30


class Ranks:
    def __init__(self, world_size: int, environment: dict[str, str]) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]

    def told(self, rank: int) -> dict[str, object]:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        return json.loads(stdout.readline())

    def end(self, rank: int) -> None:
        self.processes[rank].communicate("\n", timeout=TIMEOUT_S)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "FT_", "SLURM"))}
    return given | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + os.getpid() % 20000),
        "TORCHELASTIC_RUN_ID": tmp_path.name,
        "HOLDFAST_STATE_DIR": str(tmp_path / "state"),
    }


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_all_ranks_find_one_supervisor_that_ends_with_the_last(environment: dict[str, str], stack: ExitStack) -> None:
    ranks = Ranks(2, environment)
    for process in ranks.processes:
        stack.enter_context(process)
        stack.callback(process.kill)
    first, second = ranks.told(0), ranks.told(1)
    assert first == second
    assert first["welcome"] is True
    supervisor = psutil.Process(int(str(first["supervisor"])))
    assert supervisor.ppid() not in [process.pid for process in ranks.processes]
    shown = subprocess.run(
        [sys.executable, "-m", "supervisor", "status", "-o", "json"],
        env=environment, capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    (job,) = [job for job in json.loads(shown.stdout)["jobs"] if job["job_id"] == first["job_id"]]
    assert [rank["pid"] for rank in job["ranks"]] == [process.pid for process in ranks.processes]
    ranks.end(0)
    assert supervisor.is_running()
    ranks.end(1)
    supervisor.wait(TIMEOUT_S)
    assert not Path(str(first["folder"])).exists()


def test_a_rank_that_is_killed_takes_no_supervisor_along(environment: dict[str, str], stack: ExitStack) -> None:
    ranks = Ranks(2, environment)
    for process in ranks.processes:
        stack.enter_context(process)
        stack.callback(process.kill)
    first = ranks.told(0)
    ranks.told(1)
    ranks.processes[0].kill()
    ranks.processes[0].wait(TIMEOUT_S)
    supervisor = psutil.Process(int(str(first["supervisor"])))
    assert ranks.processes[1].poll() is None
    ranks.end(1)
    supervisor.wait(TIMEOUT_S)
    assert ranks.processes[1].returncode == 0


def test_a_launcher_s_free_id_becomes_a_job_id(environment: dict[str, str], stack: ExitStack) -> None:
    ranks = Ranks(1, environment | {"TORCHELASTIC_RUN_ID": "../team/exp 7"})
    stack.enter_context(ranks.processes[0])
    stack.callback(ranks.processes[0].kill)
    told = ranks.told(0)
    assert told["welcome"] is True
    assert re.fullmatch(r"inprocess-\.\.-team-exp-7-[0-9a-f]{12}", str(told["job_id"]))
    ranks.end(0)


def test_a_package_of_our_name_on_the_path_is_not_started(
    environment: dict[str, str], stack: ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor" / "__init__.py").write_text("raise SystemExit('a stranger was loaded')")
    ranks = Ranks(1, environment | {"PYTHONPATH": str(tmp_path)})
    stack.callback(ranks.processes[0].kill)
    assert ranks.told(0)["welcome"] is True
    ranks.end(0)


def test_what_keeps_it_from_starting_is_told(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    python = Path(environment["HOLDFAST_STATE_DIR"]).with_name("python")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # finds no installed packages
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(InternalError, match=r"module \w+ is not installed for .*pip install '\.\[supervisor\]'"):
        find_or_start(environment)
