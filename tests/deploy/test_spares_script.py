"""What does deploy/slurm/spares.sbatch leave behind if its own node is lost?

Stand-in programs play Slurm's commands here. tests/slurm plays the script under a real Slurm.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/slurm/spares.sbatch"
LIMIT_S = 30
SRUN = '#!/bin/sh\n[ "$LOST" = no ] || kill -KILL $PPID\nwhile [ "$1" != bash ]; do shift; done\nexec "$@"\n'
PROGRAMS = {
    "srun": SRUN,  # a loss of the first node takes the script
    "holdfast": '#!/bin/sh\n[ "$1" != run ] || echo run >> "$CALLS"\nexit $CODE\n',
    "scontrol": '#!/bin/sh\necho "scontrol $*" >> "$CALLS"\n',
}


@contextmanager
def srun_port(*, is_lost: bool) -> Generator[int]:
    """A port where srun answers, or nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        if is_lost:
            server.close()
        yield port


@pytest.mark.parametrize(("code", "calls"), [(0, ["run"]), (93, ["run"]), (1, ["run", "scontrol requeue 7"])])
@pytest.mark.parametrize("is_lost", [True, False])
def test_the_secret_of_a_job_that_has_ended_is_removed(tmp_path: Path, is_lost: bool, code: int, calls: list[str]):
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    # The script puts its installation first; nothing is there on this machine.
    text = SCRIPT.read_text().replace("/opt/holdfast/bin", str(tmp_path))
    (tmp_path / "script").write_text(text)
    with srun_port(is_lost=is_lost) as port:
        environment = {
            "PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "3", "SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": str(port),
            "CODE": str(code), "CALLS": str(tmp_path / "calls"), "LOST": "yes" if is_lost else "no",
        }  # fmt: skip
        # A pipe that all its processes hold: its end is theirs, too.
        subprocess.run(
            ["bash", str(tmp_path / "script")], env=environment, capture_output=True, timeout=LIMIT_S, check=False
        )
    assert (tmp_path / "calls").read_text().splitlines() == calls
    is_over = not is_lost or code != 1
    assert list(tmp_path.glob(".holdfast-token*")) == ([] if is_over else [tmp_path / ".holdfast-token-7"])
