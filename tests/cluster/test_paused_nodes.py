"""A node is paused as a whole, another takes its place, and then it wakes: may its rank still replace a checkpoint?"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.job import ClusterJob, cluster_job
from worker_client.fencing_tokens import epoch_of

pytestmark = pytest.mark.usefixtures("namespaces")

SCRIPT = Path(__file__).parent / "scripts" / "committing.py"
PAUSES_IN_A_SOAK = int(os.environ.get("PAUSES", "200"))
SEED = 21


def rank_of(job: ClusterJob, number: int) -> int:
    """Returns the pid of the committing rank on this node, as seen from here."""
    inside = text_of(job, "inside-0")
    return next(pid for pid in job.lab.nodes[number].pids() if _pid_there(pid) == inside)


def ranks_of(job: ClusterJob, number: int) -> list[int]:
    """Returns the processes of this node that a rank's note has named."""
    named = {line.split()[2] for line in text_of(job, "tokens").splitlines() if line.endswith(f" node{number}")}
    return [pid for pid in job.lab.nodes[number].pids() if _pid_there(pid) in named]


def _pid_there(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
    return next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:"))


def text_of(job: ClusterJob, name: str) -> str:
    path = job.folder / name
    return path.read_text() if path.exists() else ""


@pytest.mark.soak
def test_a_rank_that_wakes_alone_just_before_its_rename_is_refused_and_the_later_checkpoint_stays(tmp_path: Path):
    with cluster_job(tmp_path, 3, "2:3", script=SCRIPT) as job:
        node = job.lab.nodes[2]
        (job.folder / "hold").touch()
        job.start_leader()
        job.start(2)
        job.until(lambda: text_of(job, "inside-0"), "the commit of cycle 0")
        job.start(3)
        rank = rank_of(job, 2)
        node.pause()
        (job.folder / "hold").unlink()
        job.until(lambda: (job.folder / "saved-1").exists(), "the commit of cycle 1")
        os.kill(rank, signal.SIGCONT)  # its supervisor and its spawner stand still
        job.until(lambda: text_of(job, "lost-own-0"), "the end of the paused rank")
        assert "a later group of ranks writes there" in text_of(job, "lost-0")
        assert "this rank's lease has ended" in text_of(job, "lost-own-0")
        node.go_on()
        (job.folder / "end").touch()
        assert job.codes(1, 3) == {1: 0, 3: 0}
        assert text_of(job, "checkpoint") == "1"
        assert not text_of(job, "overwritten")
        tokens = sorted(tuple(map(int, line.split()[:2])) for line in text_of(job, "tokens").splitlines())
        assert [cycle for cycle, _ in tokens] == [0, 0, 1, 1]
        assert tokens[0][1] == tokens[1][1] < tokens[2][1] == tokens[3][1]
        assert epoch_of(tokens[0][1]) == epoch_of(tokens[2][1])
        left = [path.name for path in job.folder.iterdir() if path.name.startswith(".holdfast-")]
        assert left == [".holdfast-token-checkpoint"], "temporary files of the lost rank are removed"


def pause_at_random(job: ClusterJob, count: int, seed: int) -> None:
    """Pauses the node that commits, again and again, each time at another moment, and lets it wake too late."""
    chance = random.Random(seed)
    job.start_leader()
    job.start(2)
    paused, other = 2, 3
    for cycle in range(count):
        job.until(lambda cycle=cycle: (job.folder / f"saved-{cycle}").exists(), f"a commit of cycle {cycle}")
        if cycle == 0:
            job.start(other)
        time.sleep(chance.uniform(0, 0.2))  # the moment of the fault
        job.lab.nodes[paused].pause()
        job.until(lambda cycle=cycle: (job.folder / f"saved-{cycle + 1}").exists(), f"a commit of cycle {cycle + 1}")
        job.lab.nodes[paused].go_on()
        job.until(lambda paused=paused: not ranks_of(job, paused), "the end of its rank")
        assert int(text_of(job, "checkpoint")) == cycle + 1
        assert not text_of(job, "overwritten")
        paused, other = other, paused
    (job.folder / "end").touch()
    assert job.codes(1, paused) == {1: 0, paused: 0}


@pytest.mark.soak
def test_a_node_that_is_paused_at_any_moment_replaces_no_later_checkpoint_when_it_wakes(tmp_path: Path):
    with cluster_job(tmp_path, 3, "2:3", "--max-restarts", "1000", script=SCRIPT) as job:
        job.pace_s = 0.0
        pause_at_random(job, 2, SEED)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_later_checkpoint_is_replaced_however_often_nodes_are_paused(tmp_path: Path):
    with cluster_job(tmp_path, 3, "2:3", "--max-restarts", "1000", script=SCRIPT) as job:
        job.pace_s = 0.0
        pause_at_random(job, PAUSES_IN_A_SOAK, SEED)
