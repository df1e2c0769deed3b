"""The same two commands for torchrun and for Holdfast, on one machine: do ranks and users see the same?"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.launch import COOKIE, SCRIPTS, processes_with
from tests.e2e.torchrun import TORCHRUN

HOLDFAST = (str(Path(sys.executable).with_name("holdfast")), "run")
SCRIPT = str(SCRIPTS / "first_collective.py")
LIMIT_S = 60.0
RANKS, PER_NODE = 4, 2
SEEN = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID",
)  # fmt: skip

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers]


@dataclass(frozen=True)
class Job:
    """What became of two commands."""

    codes: list[int]
    ranks: list[dict[str, str]]  # environments by rank
    totals: set[float]
    first_collective_s: float  # after the first command
    said: str


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _environment(folder: Path) -> Generator[dict[str, str]]:
    """Yields one user's environment; ends what is left of its processes."""
    folder.mkdir(mode=0o700)
    (folder / "run").mkdir(mode=0o700)
    (folder / "claims").mkdir(mode=0o700)
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    cookie = uuid.uuid4().hex
    try:
        yield kept | {
            COOKIE: cookie, "HOLDFAST_STATE_DIR": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder / "run"),
            "HOLDFAST_CLAIM_DIR": str(folder / "claims"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
    finally:
        for pid in processes_with(cookie):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def run_twice(launcher: tuple[str, ...], folder: Path, form: str, *arguments: str) -> Job:
    """Types the form's two commands; returns once both have ended."""
    port, job_id = _free_port(), f"pair-{folder.name}"
    if form == "static":
        meet = ("--master-addr", "127.0.0.1", "--master-port", str(port))
        own = [("--node-rank", "0"), ("--node-rank", "1")]
    else:
        meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", job_id)
        own = [(), ()]
    with _environment(folder) as environ:
        begun_unix = time.time()
        commands = [
            subprocess.Popen(
                [*launcher, "--nnodes", "2", "--nproc-per-node", str(PER_NODE), *meet, *each, SCRIPT, *arguments],
                env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for each in own
        ]  # fmt: skip
        answers = [command.communicate(timeout=LIMIT_S) for command in commands]
    lines = [json.loads(line) for out, _ in answers for line in out.splitlines() if line.startswith("{")]
    said = "\n".join(err for _, err in answers)
    assert len(lines) == RANKS, said
    return Job(
        codes=[command.returncode for command in commands],
        ranks=sorted((line["environment"] for line in lines), key=lambda seen: int(seen["RANK"])),
        totals={line["total"] for line in lines},
        first_collective_s=max(line["at_unix"] for line in lines) - begun_unix,
        said=said,
    )


@pytest.mark.soak
@pytest.mark.parametrize("form", ["static", "c10d"])
def test_ranks_see_the_same_and_the_first_collective_is_not_later(tmp_path: Path, form: str) -> None:
    ours = run_twice(HOLDFAST, tmp_path / "ours", form)
    theirs = run_twice(TORCHRUN, tmp_path / "theirs", form)
    print(f"{form}: first collective after {ours.first_collective_s:.2f} s, {theirs.first_collective_s:.2f} s")
    assert (ours.codes, theirs.codes) == ([0, 0], [0, 0]), ours.said + theirs.said
    assert ours.totals == theirs.totals == {6.0}
    shown = [name for name in SEEN if not (form == "c10d" and name == "TORCHELASTIC_RUN_ID")]
    of_ours, of_theirs = ([{name: each.get(name) for name in shown} for each in job.ranks] for job in (ours, theirs))
    assert of_ours == of_theirs
    for job in (ours, theirs):  # all ranks are led to one store; at which port is the launcher's own affair
        assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in job.ranks}) == 1
    if form == "static":
        assert ours.ranks[0]["MASTER_ADDR"] == theirs.ranks[0]["MASTER_ADDR"] == "127.0.0.1"
    assert ours.first_collective_s < theirs.first_collective_s


@pytest.mark.soak
@pytest.mark.parametrize("form", ["static", "c10d"])
def test_a_rank_that_fails_ends_both_commands_with_the_same_code(tmp_path: Path, form: str) -> None:
    ours = run_twice(HOLDFAST, tmp_path / "ours", form, "2")
    theirs = run_twice(TORCHRUN, tmp_path / "theirs", form, "2")
    assert (ours.codes, theirs.codes) == ([1, 1], [1, 1]), ours.said + theirs.said
