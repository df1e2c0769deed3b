"""Real workers print while the disk of their cycle's log is full, silent, away or cleaned up: nobody waits for it.

Missing lines are counted: the lines in the file and the lost ones add up to what was printed.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import CycleLogClosed, Exited, KillTree, OutputDropped

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.cycle_log.test_feeds import plan
from tests.worker_client.spawner.rig import Rig, until
from worker_client.spawner.cycle_log import log_process
from worker_client.spawner.cycle_log.worker_pipe import Place

LINE = b"x" * 99 + b"\n"
SLOW_S = 20.0  # a worker that waits for a disk waits longer
TURNS = """
import os, sys
for turn in sys.stdin:
    view = memoryview((b"x" * 99 + b"\\n") * int(turn))
    while view:
        view = view[os.write(1, view):]
    os.write(2, b"done\\n")
"""
NOTE = re.compile(rb"\[holdfast: (\d+) lines \(\d+ bytes\) were lost here: ([^\]]*)\]")


class Turns:
    """A worker that prints as many lines as it is told to."""

    def __init__(self, path: str, log: Path) -> None:
        self.log = log
        reader, self._writer = os.pipe()
        self.rig = Rig(path, stdin=reader)
        os.close(reader)
        self.printed = 0

    def print(self, lines: int) -> None:
        os.write(self._writer, b"%d\n" % lines)
        self.printed += lines + 1

    def end(self) -> CycleLogClosed:
        """The worker must not wait: its end is seen at once."""
        os.close(self._writer)
        began_s = time.monotonic()
        exited = self.rig.receive(Exited)
        assert exited.code == 0
        assert time.monotonic() - began_s < SLOW_S
        self.rig.send(KillTree(0))
        return self.rig.receive(CycleLogClosed)

    def kept(self) -> int:
        """Returns the number of the worker's lines in its log."""
        data = self.log.read_bytes()
        return data.count(b"0: xxx") + data.count(b"0: done")


@contextmanager
def _turns(path: str, folder: Path) -> Generator[Turns]:
    turns = Turns(path, folder / "train_cycle0.log")
    with turns.rig as rig:
        rig.spawn(plan(folder))
        yield turns


@contextmanager
def _mounted(*arguments: str, at: Path) -> Generator[Path]:
    at.mkdir()
    if subprocess.run(["mount", *arguments, str(at)], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def test_a_full_disk_costs_counted_lines_until_there_is_room(script: Script, tmp_path: Path) -> None:
    with _mounted("-t", "tmpfs", "-o", "size=8m", "none", at=tmp_path / "disk") as disk:
        (disk / "filler").write_bytes(bytes(6 * 1024 * 1024))
        with _turns(script(TURNS), disk) as turns:
            turns.print(50_000)
            dropped = turns.rig.receive(OutputDropped)
            assert "No space left on device; free space on that disk" in dropped.reason
            (disk / "filler").unlink()
            for _ in range(3):
                turns.print(10)
            closed = turns.end()
        notes = NOTE.findall(turns.log.read_bytes())
    assert closed.lost_lines > 0
    assert sum(int(lines) for lines, _ in notes) == closed.lost_lines
    assert notes[-1][1] == b"No space left on device; free space on that disk"


def test_what_a_full_disk_took_and_lost_is_all_that_was_printed(script: Script, tmp_path: Path) -> None:
    with (
        _mounted("-t", "tmpfs", "-o", "size=1m", "none", at=tmp_path / "disk") as disk,
        _turns(script(TURNS), disk) as turns,
    ):
        turns.print(30_000)
        closed = turns.end()
        # One line may be cut where the disk was full: it counts as lost, and its beginning is in the file.
        assert 0 <= turns.kept() + closed.lost_lines - turns.printed <= 1
        assert closed.lost_lines > 15_000


def test_a_disk_that_does_not_answer_holds_nobody_up(script: Script, tmp_path: Path) -> None:
    """On a frozen file system each write hangs, and no signal ends it."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(256 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=False)
    with _mounted("-o", "loop", str(image), at=tmp_path / "disk") as disk, _turns(script(TURNS), disk) as turns:
        turns.print(10)
        until(lambda: turns.log.exists() and turns.kept() >= 11, what="the first lines")
        subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
        try:
            turns.print(1_000_000)  # 100 MB: more than the backlog
            os.close(turns._writer)  # pyright: ignore[reportPrivateUsage]
            began_s = time.monotonic()
            assert turns.rig.receive(Exited).code == 0
            assert time.monotonic() - began_s < SLOW_S
            turns.rig.send(KillTree(0))
            dropped = turns.rig.receive(OutputDropped)
        finally:
            subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        closed = turns.rig.receive(CycleLogClosed)
        assert "the disk took them too slowly" in dropped.reason
        assert closed.lost_lines > 100_000
        assert turns.kept() + closed.lost_lines == turns.printed
        ((lines, reason),) = NOTE.findall(turns.log.read_bytes())
        assert (int(lines), reason) == (closed.lost_lines, b"the disk took them too slowly")


def test_a_path_that_can_not_be_opened_is_told_at_once_and_tried_again(script: Script, tmp_path: Path) -> None:
    """Even in the first cycle the job runs: its shared file system may be away for a moment."""
    folder = tmp_path / "logs"
    folder.write_text("a file stands where the folder should be")
    with _turns(script(TURNS), folder) as turns:
        turns.print(100)
        dropped = turns.rig.receive(OutputDropped)
        assert f"cannot write {folder}/train_cycle0.log: Not a directory" in dropped.reason
        folder.unlink()
        folder.mkdir()

        def goes_on() -> bool:
            turns.print(1)
            return turns.log.exists()

        until(goes_on, what="the next lines")
        closed = turns.end()
    ((lines, reason),) = NOTE.findall(turns.log.read_bytes())
    assert (int(lines), reason) == (closed.lost_lines, b"Not a directory")
    assert turns.kept() + closed.lost_lines == turns.printed


def test_a_folder_that_is_removed_meanwhile_is_made_again(script: Script, tmp_path: Path) -> None:
    with _turns(script(TURNS), tmp_path / "logs") as turns:
        turns.print(1)
        until(lambda: turns.log.exists() and turns.kept() >= 2, what="the first lines")
        shutil.rmtree(tmp_path / "logs")

        def goes_on() -> bool:
            turns.print(1)
            return turns.log.exists()

        until(goes_on, what="the next lines")
        closed = turns.end()
    assert turns.log.read_bytes().startswith(
        b"[holdfast: the file was removed or moved away; the log goes on here]\n0: "
    )
    assert closed.lost_lines == 0


class Process:
    """The log process alone, as the spawner sees it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "train_cycle0.log"
        self.spawner, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self.spawner.close()
            log_process.serve(theirs.fileno())
        theirs.close()

    def open(self, rank: int) -> int:
        """Returns the worker's end of a pipe."""
        reader, writer = os.pipe()
        words = json.dumps(["open", 0, *Place(str(self.log)), f"{rank}: "]).encode()
        socket.send_fds(self.spawner, [words], [reader])
        os.close(reader)
        return writer

    def over(self) -> None:
        self.spawner.send(json.dumps(["over", 0, *Place(str(self.log))]).encode())

    def told(self) -> list[object]:
        self.spawner.settimeout(SLOW_S)
        return json.loads(self.spawner.recv(log_process.MESSAGE_BYTES_MAX))

    def end(self) -> int:
        """Ends the spawner's side and returns the exit code."""
        self.spawner.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_cycle_is_closed_once_it_is_over_and_all_its_pipes_have_ended(tmp_path: Path) -> None:
    process = Process(tmp_path)
    first, second = process.open(0), process.open(1)
    os.write(first, b"one\n")
    process.over()
    os.close(first)
    os.write(second, b"two, no end")
    assert select.select([process.spawner], [], [], 0.2)[0] == [], "a worker still has its pipe"
    os.close(second)
    lines = "0: one\n1: two, no end\n"
    assert process.told() == ["closed", 0, str(process.log), len(lines), 0, 0, ""]
    assert sorted(process.log.read_text().splitlines()) == sorted(lines.splitlines())
    assert process.end() == 0


def test_what_comes_after_the_spawner_s_end_is_written_all_the_same_and_nothing_more_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_process, "LINGER_S", 3 * SLOW_S)
    process = Process(tmp_path)
    writer = process.open(0)
    process.spawner.close()
    os.write(writer, b"last words\n")
    os.close(writer)
    began_s = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began_s < SLOW_S
    assert process.log.read_text() == "0: last words\n"


def test_a_cycle_to_which_nothing_was_printed_is_closed_too(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.over()
    assert process.told()[:5] == ["closed", 0, str(process.log), 0, 0]
    assert process.end() == 0


def test_it_does_not_wait_for_a_pipe_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_process, "LINGER_S", 0.2)
    process = Process(tmp_path)
    writer = process.open(0)
    began_s = time.monotonic()
    assert process.end() == 0
    assert 0.1 < time.monotonic() - began_s < SLOW_S / 2
    os.close(writer)
