"""What does a job's supervisor get from Slurm's prolog, which runs as root, and what can the job's user do to the node?

Each test plays a node in namespaces of its own, as far as they are allowed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"
LIMIT_S = 60.0
READY_S = 1
USER = 1  # on each machine
AS_USER = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
SEPARATE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# As slurmd. A root without CAP_SYS_RESOURCE can only become less protected than others, which nothing inherits either.
PROTECTED = "(echo -500 > /proc/$$/oom_score_adj) 2> /dev/null || echo 500 > /proc/$$/oom_score_adj"
WITHOUT_MOUNTS = "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin"

# In the place of holdfast, as `holdfast daemon --socket-dir DIR`. 2: it is not started again.
DAEMON = """
{
    id -u
    cat /proc/self/oom_score_adj
    (echo -1 > /proc/self/oom_score_adj) 2> /dev/null && echo lowered || echo refused
} > told/new
mv told/new told/all
exit 2
"""
ENDS_TWICE = """
echo started >> told/new
[ $(wc -l < told/new) -ge 3 ] || exit 75
mv told/new told/all
exit 2
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")


def may_separate() -> bool:
    return not subprocess.run([*SEPARATE, "true"], capture_output=True, check=False).returncode


class Node:
    """A machine with the scripts of deploy/slurm, where job 7 of USER starts."""

    def __init__(self, place: Path) -> None:
        self.place, self.folder, self.log = place, place / "jobs" / "7", place / "log"
        self.told = place / "told"
        place.chmod(0o755)
        self.told.mkdir()
        os.chown(self.told, USER, USER)
        for name in ("prolog.sh", "epilog.py", "process_sweep.py"):
            shutil.copy(SLURM / name, place)
        settings = {
            "PLACE": place / "jobs", "HOLDFAST": place / "holdfast", "JOBS": "all", "LOG": self.log,
            "READY_S": READY_S, "STOP_S": 5, "KILL_S": 5,
        }  # fmt: skip
        (place / "settings").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def play(self, daemon: str, *commands: str) -> str:
        """Runs the commands, in which PROLOG and EPILOG are the scripts' names. Returns what they print."""
        (self.place / "holdfast").write_text(f"#!/bin/sh\n{daemon.replace('told/', f'{self.told}/')}")
        (self.place / "holdfast").chmod(0o755)
        names = {"PROLOG": f"bash {self.place}/prolog.sh", "EPILOG": f"{sys.executable} -I {self.place}/epilog.py"}
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(USER), "SLURMD_NODENAME": "n0", "PATH": os.environ["PATH"]}
        script = "\n".join(["set -e", *commands])
        for name, program in names.items():
            script = script.replace(name, program)
        done = subprocess.run(
            [*(SEPARATE if may_separate() else ()), "bash", "-c", script],
            env=slurm, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        return done.stdout

    @property
    def is_told(self) -> str:
        """Returns the command that waits until the daemon has told all."""
        return f"for try in {{1..1000}}; do [ -e {self.told}/all ] && break; sleep 0.05; done"

    @property
    def mounts(self) -> str:
        """Returns the command that prints how many file systems are mounted at the job's folder."""
        return f"grep -c ' {self.folder} ' /proc/self/mountinfo || true"


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        yield Node(Path(name))


@pytest.fixture
def mounting_node(node: Node) -> Node:
    if not may_separate():
        pytest.skip("needs a root who may mount")
    return node


def test_a_job_is_not_protected_from_the_oom_killer_and_cannot_protect_itself(node: Node) -> None:
    node.play(DAEMON, PROTECTED, "PROLOG", node.is_told)
    assert (node.told / "all").read_text().split() == [str(USER), "0", "refused"]


def test_a_supervisor_that_meets_a_shortage_is_started_again(node: Node) -> None:
    node.play(ENDS_TWICE, "PROLOG", node.is_told)
    assert (node.told / "all").read_text().split() == ["started"] * 3


def test_a_user_who_fills_the_jobs_folder_fills_no_file_system_of_others(mounting_node: Node) -> None:
    node = mounting_node
    fill = f"{AS_USER} head -c 65M /dev/zero 2>&1 > {node.folder}/filled || true"
    of_file_system = f"stat --file-system --format='%b %S %c' {node.folder}"
    lines = node.play(
        "exit 2", "PROLOG", f"stat --format='%u %a' {node.folder}", of_file_system, fill,
        f"umount -l {node.folder}", f"stat --format='%u %a' {node.folder}",
    ).splitlines()  # fmt: skip
    assert lines[0] == f"{USER} 700"
    blocks, block_bytes, inodes = map(int, lines[1].split())
    assert (blocks * block_bytes, inodes) == (64 << 20, 16 << 10)
    assert "No space left on device" in lines[2]
    assert lines[3] == "0 700", "who does not see the file system gets no room below it"


def test_a_prolog_that_runs_again_and_the_epilog_leave_no_file_system(mounting_node: Node) -> None:
    """A job that is requeued has the same number."""
    node = mounting_node
    left = f"{AS_USER} touch {node.folder}/left"
    lines = node.play(
        "exit 2", "PROLOG", left, "PROLOG", node.mounts, f"ls {node.folder}", left, "EPILOG", node.mounts
    ).splitlines()
    assert lines == ["1", "log", "0"]
    assert not node.folder.exists()


def test_where_nothing_may_be_mounted_the_folder_is_an_ordinary_one(node: Node) -> None:
    owner = f"stat --format='%u %a' {node.folder}"
    lines = node.play(DAEMON, f"{WITHOUT_MOUNTS} PROLOG", node.is_told, owner, node.mounts, f"{WITHOUT_MOUNTS} EPILOG")
    assert lines.splitlines() == [f"{USER} 700", "0"]
    assert not node.folder.exists()


@pytest.mark.parametrize("in_its_place", ["mkfifo", "truncate -s 100G"])
def test_nothing_that_a_user_puts_in_the_place_of_the_log_holds_the_prolog_up(in_its_place: str, node: Node) -> None:
    """Slurm drains a node whose prolog hangs."""
    node.play(f"rm $3/log; {in_its_place} $3/log; exit 2", "PROLOG")
    assert f"job 7 on n0: no supervisor within {READY_S} s: " in node.log.read_text()


def test_no_word_of_a_user_controls_the_terminal_that_shows_roots_log(node: Node) -> None:
    node.play(r"printf 'first\nlast \033[2J word\n'; exit 2", "PROLOG")
    assert node.log.read_text().endswith(f"no supervisor within {READY_S} s: last [2J word\n")
