"""What does a person at a terminal see until the first workers start, and does nothing of it stay?"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.terminal import terminal
from tests.etcd_server import free_ports

SLOW = "import time\ntime.sleep(2.5)\n"  # the script imports this slow module
SCRIPT = "import slow\nprint('rank', __import__('os').environ['RANK'], 'works', flush=True)\n"


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "train.py").write_text(SCRIPT)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HOLDFAST_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": str(tmp_path),
    }


def _run(folder: Path, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "supervisor", "run", *more, str(folder / "train.py"))


def test_a_line_says_what_is_awaited_and_leaves_no_trace(tmp_path: Path, environment: Mapping[str, str]) -> None:
    with terminal(tmp_path, 100, 20, *_run(tmp_path, "--preload", "slow"), environment=environment) as opened:
        opened.shows("holdfast: loading torch, and what the script imports … ")
        screen = opened.shows("rank 0 works", "exit code 0")
    assert "loading" not in screen
    assert screen.startswith("rank 0 works\n")


def test_the_other_nodes_are_waited_for_and_messages_stand_on_lines_of_their_own(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    (port,) = free_ports(1)
    nodes = ("--nnodes", "2", "--rdzv-id", f"waits-{os.getpid()}", "--rdzv-endpoint", f"127.0.0.1:{port}")
    command = _run(tmp_path, *nodes, "--rdzv-conf", "join_timeout=8")
    with terminal(tmp_path, 220, 20, *command, environment=environment) as opened:
        opened.shows("holdfast: waiting for the other nodes … ")
        screen = opened.shows("exit code 1")
    assert "waiting for" not in screen
    assert all(line.startswith(("holdfast: ", "exit", " ")) for line in screen.splitlines() if line), screen


def test_without_a_terminal_or_on_a_dumb_one_there_is_no_such_line(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    command = ("env", "TERM=dumb", *_run(tmp_path, "--preload", "slow"))
    with terminal(tmp_path, 100, 20, *command, environment=environment) as opened:
        screen = opened.wait(lambda seen: "exit code 0" in seen or "loading" in seen, "ends")
    assert "loading" not in screen
