"""Which workers print into the file of their cycle, and when is it complete?"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from holdfast_wire.spawner_link import CycleLogClosed, Emptied, Exited, KillTree, OutputDropped, Spawn, WorkerPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.cycle_log.test_feeds import writer_of
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker
from worker_client.spawner import spawner_cycle_logs
from worker_client.spawner.spawner_cycle_logs import CycleLogs


def plan(folder: Path, rank: int = 0, cycle: int = 0) -> WorkerPlan:
    path = folder / f"train_cycle{cycle}.log"
    return worker(rank, CYCLE=str(cycle))._replace(cycle_log=str(path), cycle_log_prefix=f"{rank}: ")


def test_each_cycle_has_its_own_file_and_an_escaped_child_stays_in_the_old_one(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, subprocess, sys
        cycle = os.environ["CYCLE"]
        if cycle == "0":
            subprocess.Popen(["sh", "-c", "while :; do echo stray; done"], start_new_session=True)
        os.write(1, b"out of %s\\n" % cycle.encode())
        os.write(2, b"err of %s, no end" % cycle.encode())
        """
    )
    with Rig(path) as rig:
        rig.run(plan(tmp_path))
        first = tmp_path / "train_cycle0.log"
        until(lambda: first.exists() and b"stray" in first.read_bytes(), what="the stray child's words")
        rig.send(KillTree(0))
        rig.receive(Emptied)
        rig.run(plan(tmp_path, 0, 1), plan(tmp_path, 1, 1), cycle=1)
        closed = rig.receive(CycleLogClosed)
        rig.send_end()
        last = rig.receive(CycleLogClosed)
        rig.process.wait(30)
    lines = first.read_text().splitlines()
    assert set(lines) <= {"0: out of 0", "0: stray", "0: err of 0, no endstray", "0: err of 0, no end"}
    assert "0: out of 0" in lines
    assert sorted((tmp_path / "train_cycle1.log").read_text().splitlines()) == [
        "0: err of 1, no end", "0: out of 1", "1: err of 1, no end", "1: out of 1",
    ]  # fmt: skip
    assert (closed.cycle, closed.written_bytes, closed.lost_bytes) == (0, first.stat().st_size, 0)
    assert (last.cycle, last.lost_lines) == (1, 0)


def test_all_that_a_disk_has_refused_is_told_at_the_end_of_the_cycle(script: Script, tmp_path: Path) -> None:
    (tmp_path / "train_cycle0.log").mkdir()
    path = script("import os\nfor n in range(300): os.write(1, b'%099d\\n' % n * 100)")
    with Rig(path) as rig:
        rig.run(plan(tmp_path))
        rig.send(KillTree(0))
        closed = rig.receive(CycleLogClosed)
        told = rig.pending(OutputDropped)
    assert closed.lost_lines == 30_000
    assert told[-1].dropped_bytes == closed.lost_bytes == 30_000 * 103
    assert f"cannot write {tmp_path}/train_cycle0.log: a pipe, a device, a link or a folder" in told[-1].reason


def test_a_writer_that_outlives_the_job_does_not_hold_its_id(script: Script, tmp_path: Path) -> None:
    """A disk that does not answer holds it up, as the signal does here."""
    claim = os.open(tmp_path / "claim", os.O_RDWR | os.O_CREAT)
    fcntl.flock(claim, fcntl.LOCK_EX)
    with Rig(script("print('x')"), claim_fds=(claim,)) as rig, (tmp_path / "claim").open() as next_run:
        os.close(claim)
        rig.run(plan(tmp_path))
        writer = writer_of(rig)
        rig.seen.add(writer)
        os.kill(writer, signal.SIGSTOP)
        with pytest.raises(BlockingIOError):
            fcntl.flock(next_run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        rig.send_end()
        rig.process.wait(30)
        assert is_alive(writer)
        fcntl.flock(next_run, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_replaced_rank_writes_into_the_file_of_the_same_cycle(script: Script, tmp_path: Path) -> None:
    path = script("import os; print('pid', os.getpid())")
    with Rig(path) as rig:
        rig.run(plan(tmp_path))
        rig.run(plan(tmp_path))
        rig.send_end()
        rig.receive(CycleLogClosed)
    assert len((tmp_path / "train_cycle0.log").read_text().splitlines()) == 2


def test_without_a_cycle_log_nothing_is_loaded_or_started(script: Script) -> None:
    with Rig(script("print('x')")) as rig:
        rig.send(Spawn(0, (worker(),)))
        rig.receive(Exited)
        names = {Path(f"/proc/{pid}/comm").read_text() for pid in rig.children()}
    assert "hf-log\n" not in names


def test_the_output_of_a_rank_is_found_beside_its_other_files(script: Script, tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    with Rig(script("print('x')")) as rig:
        plans = [plan(tmp_path)._replace(env={**plan(tmp_path).env, "TORCHELASTIC_ERROR_FILE": f"{folder}/error.json"})]
        rig.run(*plans)
        rig.run(*plans)  # the link is there already
        rig.send_end()
        rig.receive(CycleLogClosed)
    assert (folder / "cycle.log").readlink() == tmp_path / "train_cycle0.log"
    assert (folder / "cycle.log").read_text() == "0: x\n" * 2


class SlowFeeds:
    """The end of one log and two lines of another have no receipt when the job's time is up."""

    def __init__(self, *_: object) -> None:
        self.late = {0: ("first.log", 0, 0, "slow"), 1: ("second.log", 2, 14, "slow")}

    def open(self, *_: object) -> int:
        return os.open(os.devnull, os.O_WRONLY)

    def close_all(self, then: Callable[[], None], timeout_s: float) -> None:
        then()


def test_a_log_whose_lines_are_all_written_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner_cycle_logs, "Feeds", SlowFeeds)
    told: list[object] = []
    nothing = cast("Any", None)
    logs = CycleLogs(nothing, nothing, nothing, told.append)
    for descriptor in logs.streams(0, WorkerPlan(0, 0, {})).values():
        os.close(descriptor)
    logs.end(lambda: told.append("ended"), alone=False)
    dropped, ended = told
    assert isinstance(dropped, OutputDropped)
    assert (dropped.dropped_bytes, dropped.cycle, ended) == (14, 1, "ended")
    assert dropped.reason.startswith("2 lines were not in second.log yet")
