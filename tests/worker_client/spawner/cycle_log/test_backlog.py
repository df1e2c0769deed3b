"""Lines wait for a disk that is slow, full or absent: only whole lines are lost, and the file reports their number."""

from __future__ import annotations

import errno
import os
import queue
import threading
from pathlib import Path

import pytest
from holdfast_wire.run_mark import run_time

from tests.worker_client.spawner.rig import until
from worker_client.spawner.cycle_log import backlog
from worker_client.spawner.cycle_log.backlog import Backlog, CycleFile

WAIT_S = 20.0


class Disk:
    """A backlog with its thread; keeps its messages."""

    def __init__(self) -> None:
        self.losses: list[int] = []
        self.closed: queue.Queue[CycleFile] = queue.Queue()
        self.backlog = Backlog(lambda file: self.losses.append(file.loss.lines), self.closed.put)
        self.backlog.start()

    def close(self, file: CycleFile) -> None:
        self.backlog.close(file)
        assert self.closed.get(timeout=WAIT_S) is file


def test_lines_are_appended_to_what_is_there_and_the_folders_are_made(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "new" / "train_cycle0.log"
    for text in (b"0: one\n", b"1: two\n"):
        file = CycleFile(0, str(path))
        disk.backlog.put(file, (text,))
        disk.close(file)
    assert path.read_bytes() == b"0: one\n1: two\n"
    assert (file.written_bytes, file.loss.lines) == (7, 0)


def test_two_cycles_never_meet_in_one_file(tmp_path: Path) -> None:
    disk = Disk()
    files = [CycleFile(cycle, str(tmp_path / f"c{cycle}.log")) for cycle in (0, 1)]
    for number in range(2000):
        disk.backlog.put(files[number % 2], (b"0: ", str(number % 2).encode(), b"\n"))
    for file in files:
        disk.close(file)
    assert (tmp_path / "c0.log").read_bytes() == b"0: 0\n" * 1000
    assert (tmp_path / "c1.log").read_bytes() == b"0: 1\n" * 1000


def test_what_a_disk_has_not_taken_yet_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, file, other = Disk(), CycleFile(0, str(tmp_path / "c.log")), CycleFile(1, str(tmp_path / "d.log"))
    real, writes, goes_on = os.writev, threading.Event(), threading.Event()

    def slow(fd: int, parts: list[bytes | memoryview]) -> int:
        writes.set()
        assert goes_on.wait(WAIT_S)
        return real(fd, parts)

    monkeypatch.setattr(os, "writev", slow)
    disk.backlog.put(file, (b"0: one\n",))
    assert writes.wait(WAIT_S)
    disk.backlog.put(file, (b"0: ", b"two\n"))
    disk.backlog.put(other, (b"0: three\n",))
    assert disk.backlog.late(file) == backlog.Loss(2, 14, backlog.SLOW)
    goes_on.set()
    disk.close(file)
    assert disk.backlog.late(file).lines == 0


def test_a_full_disk_costs_whole_lines_and_says_so_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, file = Disk(), CycleFile(0, str(tmp_path / "c.log"))
    real, is_full = os.writev, threading.Event()
    puts = 0

    def writev(fd: int, parts: list[bytes]) -> int:
        if is_full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, parts)

    monkeypatch.setattr(backlog.os, "writev", writev)
    disk.backlog.put(file, (b"0: kept\n",))
    until(lambda: file.written_bytes, what="the first line on the disk")
    is_full.set()
    while not disk.losses:
        disk.backlog.put(file, (b"0: more\n",))
        puts += 1
    is_full.clear()
    disk.close(file)
    text = (tmp_path / "c.log").read_text()
    lost = file.loss.lines
    assert lost >= 1
    assert f"[holdfast: {lost} lines ({8 * lost} bytes) were lost here: No space left on device; free space" in text
    assert text.startswith("0: kept\n")
    assert text.count("0: more\n") + lost == puts


def test_a_line_of_which_the_disk_took_a_part_does_not_run_into_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, file = Disk(), CycleFile(0, str(tmp_path / "c.log"))
    real, answers = os.writev, iter([4, OSError(errno.ENOSPC, "full")])

    def writev(fd: int, parts: list[bytes]) -> int:
        answer = next(answers, None)
        if isinstance(answer, OSError):
            raise answer
        return real(fd, parts) if answer is None else os.write(fd, b"".join(parts)[:answer])

    monkeypatch.setattr(backlog.os, "writev", writev)
    disk.backlog.put(file, (b"0: one\n",))
    while not disk.losses:
        assert disk.closed.empty()
    disk.backlog.put(file, (b"0: two\n",))
    disk.close(file)
    lines = (tmp_path / "c.log").read_text().splitlines()
    assert lines == ["0: o", "[holdfast: 1 lines (3 bytes) were lost here: full; free space on that disk]", "0: two"]


def test_a_disk_that_takes_nothing_costs_lines_and_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "BACKLOG_BYTES_MAX", 64 * 1024)
    disk, file = Disk(), CycleFile(0, str(tmp_path / "c.log"))
    real, may_write = os.writev, threading.Event()

    def writev(fd: int, parts: list[bytes]) -> int:
        may_write.wait(WAIT_S)
        return real(fd, parts)

    monkeypatch.setattr(backlog.os, "writev", writev)
    line = b"0: " + b"x" * 997 + b"\n"
    for _ in range(500):
        disk.backlog.put(file, (line,))
    lost = file.loss.lines
    assert 400 < lost < 500
    may_write.set()
    disk.close(file)
    text = (tmp_path / "c.log").read_bytes()
    assert text.count(line) == 500 - lost
    assert f"[holdfast: {lost} lines (".encode() in text
    assert text.endswith(b"the disk took them too slowly]\n")


def test_a_file_that_can_not_be_opened_costs_its_lines(tmp_path: Path) -> None:
    (tmp_path / "c.log").symlink_to(tmp_path / "elsewhere")
    disk, file = Disk(), CycleFile(0, str(tmp_path / "c.log"))
    disk.backlog.put(file, (b"0: one\n0: two\n",))
    disk.close(file)
    assert (file.loss.lines, file.written_bytes) == (2, 0)
    assert "a link or a folder stands in the place" in file.loss.reason
    assert not (tmp_path / "elsewhere").exists()


def of_earlier_run(path: Path) -> int:
    """Makes a file that was written a minute before the run whose beginning is returned."""
    path.write_bytes(b"0: old, cut o")
    began_s = int(path.stat().st_mtime)
    os.utime(path, (began_s - 60, began_s - 60))
    return began_s * 1000


def mark(began_ms: int) -> bytes:
    return f"\n[holdfast: the run of {run_time(began_ms)} begins here]\n".encode()


@pytest.mark.parametrize("lines", [[], [b"0: one\n", b"0: two\n"]])
def test_a_file_of_an_earlier_run_says_once_where_this_one_begins(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "c.log"
    began_ms = of_earlier_run(path)
    for _ in range(2):  # the second as after the death of the first process
        disk, file = Disk(), CycleFile(0, str(path), began_ms)
        disk.backlog.begin(file)
        for line in lines:
            disk.backlog.put(file, (line,))
        disk.close(file)
        assert file.loss.lines == 0
    assert path.read_bytes() == b"0: old, cut o" + mark(began_ms) + b"".join(lines) * 2


def test_a_cycle_that_prints_nothing_makes_no_file(tmp_path: Path) -> None:
    disk, file = Disk(), CycleFile(0, str(tmp_path / "c.log"), 1)
    disk.backlog.begin(file)
    disk.close(file)
    assert os.listdir(tmp_path) == []


def test_a_mark_that_a_full_disk_refuses_is_written_before_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.log"
    began_ms = of_earlier_run(path)
    real, refused = os.write, threading.Event()

    def write(fd: int, data: bytes) -> int:
        if not refused.is_set() and data.startswith(b"\n[holdfast: the run of"):
            refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    disk, file = Disk(), CycleFile(0, str(path), began_ms)
    disk.backlog.begin(file)
    assert refused.wait(WAIT_S)
    disk.backlog.put(file, (b"0: one\n",))
    disk.close(file)
    assert path.read_bytes() == b"0: old, cut o" + mark(began_ms) + b"0: one\n"
