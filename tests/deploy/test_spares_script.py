"""What does deploy/slurm/spares.sbatch leave behind if its own node is lost?

Stand-in programs play Slurm's commands here. tests/slurm plays the script under a real Slurm.
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

import pytest

from supervisor.core.stop_verdict import SAME_SIGTERM_S

SCRIPT = Path(__file__).parents[2] / "deploy/slurm/spares.sbatch"
LIMIT_S = 30
SRUN = '#!/bin/sh\n[ "$LOST" = no ] || kill -KILL $PPID\nwhile [ "$1" != bash ]; do shift; done\nexec "$@"\n'
PROGRAMS = {
    "srun": SRUN,  # a loss of the first node takes the script
    "holdfast": '#!/bin/sh\n[ "$1" != run ] || echo run >> "$CALLS"\nexit $CODE\n',
    "scontrol": '#!/bin/sh\necho "scontrol $*" >> "$CALLS"\n',
}
# As `holdfast run`: saves at SIGTERM, and is killed by another one after SAME_SIGTERM_S.
SAVING = f"""#!{sys.executable}
import os, signal, sys, time
def note(line):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(line + "\\n")
first_s = None
def save(number, frame):
    global first_s
    if first_s is not None:
        if time.monotonic() - first_s < {SAME_SIGTERM_S}:
            return
        note("killed")
        os._exit(9)
    first_s = time.monotonic()
    note("saving")
    time.sleep(1)
    note("saved")
    os._exit(int(os.environ["CODE"]))
if sys.argv[1] != "run":
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
note(f"{{os.getppid()}} {{os.getpid()}}")
time.sleep({LIMIT_S})
"""


@contextmanager
def srun_port(*, is_lost: bool) -> Generator[int]:
    """A port where srun answers, or nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        if is_lost:
            server.close()
        yield port


@contextmanager
def started(tmp_path: Path, *, code: int, is_lost: bool, holdfast: str = "") -> Generator[subprocess.Popen[bytes]]:
    """The script with stand-in programs. A pipe that all its processes hold: its end is theirs, too."""
    for name, text in {**PROGRAMS, **({"holdfast": holdfast} if holdfast else {})}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    with srun_port(is_lost=is_lost) as port:
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "3", "SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": str(port),
            "CODE": str(code), "CALLS": str(tmp_path / "calls"), "LOST": "yes" if is_lost else "no",
        }  # fmt: skip
        command = ["bash", str(SCRIPT)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as script:
            yield script


@pytest.mark.parametrize(("code", "calls"), [(0, ["run"]), (93, ["run"]), (1, ["run", "scontrol requeue 7"])])
@pytest.mark.parametrize("is_lost", [True, False])
def test_the_secret_of_a_job_that_has_ended_is_removed(tmp_path: Path, is_lost: bool, code: int, calls: list[str]):
    with started(tmp_path, code=code, is_lost=is_lost) as script:
        script.communicate(timeout=LIMIT_S)
    assert (tmp_path / "calls").read_text().splitlines() == calls
    is_over = not is_lost or code != 1
    assert list(tmp_path.glob(".holdfast-token*")) == ([] if is_over else [tmp_path / ".holdfast-token-7"])


@pytest.mark.parametrize(
    ("code", "is_lost", "calls"),
    [(143, False, ["scontrol requeue 7"]), (0, False, []), (93, False, []), (143, True, [])],
)
@pytest.mark.parametrize("is_to_all", [False, True], ids=["cgroup", "linuxproc"])
def test_a_task_outlives_slurms_sigterm_until_its_ranks_have_saved(
    tmp_path: Path, code: int, is_lost: bool, calls: list[str], is_to_all: bool
):
    """proctrack/cgroup signals the first process of a task, other plugins all: then the task passes on a second one."""
    with started(tmp_path, code=code, is_lost=is_lost, holdfast=SAVING) as script:
        task, run = map(int, noted(tmp_path, 1)[0].split())
        for pid in (run, task) if is_to_all else (task,):
            os.kill(pid, signal.SIGTERM)
        assert noted(tmp_path, 2)[1] == "saving"
        os.kill(task, signal.SIGTERM)
        script.communicate(timeout=LIMIT_S)
    assert noted(tmp_path, 3)[2:] == ["saved", *calls]
    if not is_lost:
        assert script.returncode == code
    assert not list(tmp_path.glob(".holdfast-token*"))


def noted(tmp_path: Path, count: int) -> list[str]:
    """Returns what the stand-ins have noted, once there are that many lines."""
    calls, deadline_s = tmp_path / "calls", time.monotonic() + LIMIT_S
    while not calls.exists() or calls.read_text().count("\n") < count:
        assert time.monotonic() < deadline_s, calls.read_text() if calls.exists() else "nothing"
        time.sleep(0.02)
    return calls.read_text().splitlines()
