"""Output of real workers in the file of their cycle, while the process that writes it works, is stopped or dies."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import CycleLogClosed, Exited, KillTree, OutputDropped, WorkerPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, until, worker
from worker_client.spawner.cycle_log import feeds
from worker_client.spawner.cycle_log.feeds import Feeds
from worker_client.spawner.cycle_log.worker_pipe import Place
from worker_client.spawner.event_loop import Events


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


def test_what_a_rank_opens_stays_open_when_the_spawner_s_memory_in_it_is_collected(
    script: Script, tmp_path: Path
) -> None:
    path = script(
        """
        import gc, os
        gc.disable()
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
        gc.collect()
        for each in opened:
            os.fstat(each)
        """
    )
    with Rig(path) as rig:
        assert [each.code for each in rig.run(plan(tmp_path))] == [0]
        preforked = rig.prefork(1, 1)
        (exited,) = rig.run(plan(tmp_path, cycle=1), cycle=1)
        assert ({exited.pid}, exited.code) == (preforked, 0)


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


def test_a_writer_that_cannot_be_replaced_costs_lines_until_it_can_and_holds_nobody_up(
    script: Script, tmp_path: Path
) -> None:
    path = script(
        """
        import os, sys
        for turn in sys.stdin:
            for number in range(3000):
                os.write(1, b"%s %0996d\\n" % (turn.strip().encode(), number))
            open(turn.strip(), "w").close()
        """
    )
    reader, writer = os.pipe()
    log = tmp_path / "train_cycle0.log"
    with Rig(path, stdin=reader, cwd=tmp_path) as rig:
        rig.spawn(plan(tmp_path))
        os.write(writer, b"a\n")
        until(lambda: log.exists() and log.read_bytes().count(b"0: a ") == 3000, what="the first lines")
        before = resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        os.kill(writer_of(rig), signal.SIGKILL)
        os.write(writer, b"b\n")  # more than the worker's pipe takes
        until((tmp_path / "b").exists, what="the end of the worker's second turn")
        lost = rig.receive(OutputDropped, lambda each: each.local_rank == 0)
        assert "has died, and no other can be started: Too many open files" in lost.reason
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, before)
        until(lambda: b"bytes were lost here: the process that writes the log has died" in log.read_bytes(), what="it")
        os.write(writer, b"c\n")
        os.close(writer)
        rig.receive(Exited)
        rig.send(KillTree(0))
        assert rig.receive(CycleLogClosed).lost_lines == 0
    assert log.read_bytes().count(b"0: c ") == 3000
    os.close(reader)


class Hurried(Events):
    """Notes for how long the next start of the log process would wait, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float] = []

    def set_timer(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        if name == "log process":
            self.pauses_s.append(delay_s)
            delay_s = 0.0
        super().set_timer(name, delay_s, callback)


def test_a_writer_that_always_dies_is_started_again_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "STEADY_S", float("inf"))
    events, ends = Hurried(), list[int]()

    def start(link: int) -> int:
        """Only the first process has an end of its own, so only that one lives."""
        ends.append(os.dup(link) if not ends else -1)
        return len(ends)

    def ignore(*_: object) -> None: ...

    made = Feeds(events, start, ignore, ignore)
    worker_end = made.open(0, 0, Place(str(tmp_path / "c.log")), "0: ")
    os.close(ends[0])
    while len(events.pauses_s) < 8:
        events.run_once()
    assert events.pauses_s[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert len(ends) <= len(events.pauses_s) + 2
    os.close(worker_end)
    events.close()


def test_more_ranks_than_the_link_takes_messages_are_connected_once_it_is_read(tmp_path: Path) -> None:
    """The log process may get no time while a node starts hundreds of ranks."""
    ranks, events, ends = 600, Events(), list[socket.socket]()
    writers, opened, over = list[int](), dict[str, int](), list[int]()

    def start(link: int) -> int:
        if ends:
            raise OSError("the test is over")
        ends.append(socket.socket(fileno=os.dup(link)))
        ends[0].setblocking(False)
        return 1

    def ignore(*_: object) -> None: ...

    def read_link() -> bool:
        """Takes what the log process would, and lets the spawner go on. Always false."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, fds, *_ = socket.recv_fds(ends[0], 4096, 1)
                match json.loads(data):
                    case ["open", _, _, _, _, prefix]:
                        opened[prefix] = fds[0]
                    case ["over", cycle, *_]:
                        over.append(cycle)
                    case _:
                        pass
        events.set_timer("turn", 0.0, lambda: None)
        events.run_once()
        return False

    made = Feeds(events, start, ignore, ignore)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8 * ranks, limits[1]), limits[1]))
    try:
        writers += [made.open(0, rank, Place(str(tmp_path / "c.log")), f"{rank}: ") for rank in range(ranks)]
        until(lambda: read_link() or len(opened) == ranks, what="all ranks")
        os.write(writers[-1], b"last words\n")
        while writers:
            os.close(writers.pop())
        made.over(0)
        until(lambda: read_link() or over, what="the end of the cycle")
        assert over == [0]
        assert os.read(opened[f"{ranks - 1}: "], 100) == b"last words\n"
    finally:
        for descriptor in (*writers, *opened.values()):
            os.close(descriptor)
        ends[0].close()
        events.run_once()
        events.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
