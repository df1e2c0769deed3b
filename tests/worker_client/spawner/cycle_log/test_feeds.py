"""Output of real workers in the file of their cycle, while the process that writes it works, is stopped or dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast_wire.spawner_link import CycleLogClosed, Exited, KillTree, OutputDropped, WorkerPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, until, worker


def plan(folder: Path, rank: int = 0, cycle: int = 0) -> WorkerPlan:
    path = folder / f"train_cycle{cycle}.log"
    return worker(rank, CYCLE=str(cycle))._replace(cycle_log=str(path), cycle_log_prefix=f"{rank}: ")


def writer_of(rig: Rig) -> int:
    def find() -> int:
        for pid in rig.children():
            if Path(f"/proc/{pid}/comm").read_text() == "hf-log\n":
                return pid
        return 0

    return until(find, what="the process that writes")


def test_a_flood_of_several_ranks_arrives_whole(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os
        rank = os.environ["RANK"].encode()
        for block in range(200):
            data = b"".join(b"%s block %d line %d %s\\n" % (rank, block, n, b"x" * (n % 150)) for n in range(500))
            view = memoryview(data)
            while view:
                view = view[os.write(1, view[:77_777]):]
        """
    )
    with Rig(path) as rig:
        exits = rig.run(plan(tmp_path, 0), plan(tmp_path, 1))
        rig.send_end()
        closed = rig.receive(CycleLogClosed)
        rig.process.wait(30)
    assert [each.code for each in exits] == [0, 0]
    assert (closed.lost_lines, closed.lost_bytes) == (0, 0)
    seen = {0: 0, 1: 0}
    with (tmp_path / "train_cycle0.log").open("rb") as file:
        for line in file:
            rank = int(line[:1])
            block, number = divmod(seen[rank], 500)
            assert line == b"%d: %d block %d line %d %s\n" % (rank, rank, block, number, b"x" * (number % 150))
            seen[rank] += 1
    assert seen == {0: 100_000, 1: 100_000}


def test_the_last_words_of_a_worker_are_known_at_once(script: Script, tmp_path: Path) -> None:
    path = script("print('x' * 300_000, flush=True)\nraise RuntimeError('lost my way')")
    with Rig(path) as rig:
        (exited,) = rig.run(plan(tmp_path))
    assert exited.error == "RuntimeError: lost my way"


def test_a_writer_that_stands_still_costs_lines_and_holds_nobody_up(script: Script, tmp_path: Path) -> None:
    path = script("import os\nfor n in range(200): os.write(1, b'%099d\\n' % n * 1000)")
    with Rig(path) as rig:
        rig.run(plan(tmp_path, 1))
        stopped = writer_of(rig)
        os.kill(stopped, signal.SIGSTOP)
        rig.run(plan(tmp_path))
        lost = rig.receive(OutputDropped)
        os.kill(stopped, signal.SIGCONT)
        rig.send_end()
        closed = rig.receive(CycleLogClosed)
    assert lost.local_rank == 0
    assert lost.dropped_bytes > 0
    text = (tmp_path / "train_cycle0.log").read_text()
    assert "0: [holdfast: " in text
    assert "bytes were lost here: the process that writes the log was stalled]" in text
    assert closed.lost_lines == 0


def test_a_writer_that_dies_is_replaced(script: Script, tmp_path: Path) -> None:
    path = script("import sys; print('one', flush=True); sys.stdin.readline(); print('two', flush=True)")
    reader, writer = os.pipe()
    with Rig(path, stdin=reader) as rig:
        rig.spawn(plan(tmp_path))
        log = tmp_path / "train_cycle0.log"
        until(lambda: log.exists() and log.read_text() == "0: one\n", what="the first line")
        os.kill(writer_of(rig), signal.SIGKILL)
        assert "has died" in rig.receive(OutputDropped).reason
        os.write(writer, b"\n")
        rig.receive(Exited)
        rig.send(KillTree(0))
        closed = rig.receive(CycleLogClosed)
    assert log.read_text() == "0: one\n0: two\n"
    assert closed.cycle == 0
    os.close(reader)
    os.close(writer)
