"""A rank that opens stores, as a process of its own: torch's stores must not share an interpreter with other tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.fork_server import fork_server

ROOT = Path(__file__).parents[3]


TIMEOUT_S = 90


# A rank's start: no launcher, one rank, a free port.
PREAMBLE = """
import os, socket, subprocess, sys, threading
from datetime import timedelta
from worker_client.inprocess import store
from worker_client.inprocess.store import BarrierOverflow, BarrierTimeout, FileStore, PrefixStore, StoreMixin, TCPStore
SECOND = timedelta(seconds=1)
def raised(kind, run):
    try:
        run()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")
"""


def ran(script: str, folder: Path, **environment: str) -> str:
    """Returns its output. Torch is loaded before it begins."""
    torch = fork_server("torch.distributed")
    done = torch.ran(PREAMBLE + script, environment=_variables(environment), folder=folder, timeout_s=TIMEOUT_S)
    return _output(done)


def ran_without_torch(script: str, folder: Path) -> str:
    """Returns the output of a script that begins without torch."""
    command = [sys.executable, "-c", PREAMBLE + script]
    done = subprocess.run(
        command, env=_variables({}), cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return _output(done)


def _variables(more: Mapping[str, str]) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "HOLDFAST"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]), "MASTER_ADDR": "127.0.0.1"}
    return env | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(free_port()), **more}


def _output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
