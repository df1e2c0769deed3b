"""The root appends each byte once, only to configured files, and reports obstacles."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from holdfast_wire import moved_log_file
from holdfast_wire.log_pieces import SUPERVISORS, Piece, Receipt, file_of_cycle
from holdfast_wire.moved_log_file import GONE
from holdfast_wire.run_mark import run_time

from supervisor.core.log_funnel.written_positions import Entry, Part
from supervisor.programs.log_service.file_writer import FileWriter, Paths
from supervisor.programs.log_service.position_file import PositionFile, place_beside
from supervisor.programs.log_service.wakeup import Wakeup

LIMIT_S = 20.0


class Running:
    def __init__(self, folder: Path, words: str, run_began_ms: int) -> None:
        self.paths = Paths(str(folder / "logs" / "train.log"), words)
        self.place = place_beside(str(folder / "logs" / "train.log"), "job/1")
        self.receipts: list[Receipt] = []
        self.troubles: list[str] = []
        self.changed = Wakeup()
        self.writer = FileWriter(
            self.paths, self.place, on_receipt=self._note, on_trouble=self._tell, run_began_ms=run_began_ms
        )

    def _note(self, link: int, receipt: Receipt) -> None:
        assert link == 1
        self.receipts.append(receipt)
        self.changed.wake()

    def _tell(self, trouble: str) -> None:
        if trouble != (self.troubles or [""])[-1]:
            self.troubles.append(trouble)
            self.changed.wake()

    async def until(self, receipt: Receipt) -> None:
        while receipt not in self.receipts:
            await self.changed.wait()


@asynccontextmanager
async def running(folder: Path, words: str = "", *, run_began_ms: int = 0) -> AsyncGenerator[Running]:
    made = Running(folder, words, run_began_ms)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.writer.run)
            yield made
            tasks.cancel_scope.cancel()


def piece(position: int, lines: bytes, *, stream: int = 1, cycle: int = 0, ends: bool = False) -> Piece:
    return Piece(stream, file_of_cycle(cycle), 0, position, lines, ends)


async def test_a_writer_that_follows_another_goes_on_where_that_one_stopped(tmp_path: Path):
    log = tmp_path / "logs" / "train_cycle0.log"
    async with running(tmp_path) as first:
        first.writer.take(1, piece(0, b"one\n"))
        await first.until(Receipt(1, 4))
    _free(first)
    with log.open("ab") as file:  # as if it had died in the middle of a noted append
        notes = PositionFile(first.place, first.paths.path_of)
        assert notes.open() is not None
        notes.note(Entry(1, 4, [Part(1, 4, 4), Part(2, 0, 12)]))
        file.write(b"two\nthree\nfou")
        os.close(notes._fd)  # pyright: ignore[reportPrivateUsage] - its process is gone
    async with running(tmp_path) as second:
        second.writer.take(1, piece(0, b"one\ntwo\n", ends=True))
        second.writer.take(1, piece(0, b"three\nfour.\n", stream=2))
        await second.until(Receipt(1, 8, True))
        await second.until(Receipt(2, 12))
        await second.writer.aclose()
    assert log.read_bytes() == b"one\ntwo\nthree\nfour.\n"
    assert os.listdir(log.parent) == ["train_cycle0.log"]


async def test_a_log_that_was_removed_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moved_log_file, "LOOK_S", 0.0)
    log = tmp_path / "logs" / "train_cycle0.log"
    async with running(tmp_path) as root:
        root.writer.take(1, piece(0, b"one\n"))
        await root.until(Receipt(1, 4))
        log.unlink()
        root.writer.take(1, piece(4, b"two\n"))
        await root.until(Receipt(1, 8))
        root.writer.take(1, piece(8, b"three\n"))
        await root.until(Receipt(1, 14))
        log.rename(log.with_suffix(".1"))
        root.writer.take(1, piece(14, b"four\n"))
        await root.until(Receipt(1, 19))
    assert log.with_suffix(".1").read_bytes() == GONE + b"two\nthree\n"
    assert log.read_bytes() == GONE + b"four\n"
    _free(root)
    async with running(tmp_path) as second:  # knows where the new file ends
        second.writer.take(1, piece(14, b"four\nfive\n"))
        await second.until(Receipt(1, 24))
    assert log.read_bytes() == GONE + b"four\nfive\n"


async def test_nothing_but_the_configured_files_is_written(tmp_path: Path):
    async with running(tmp_path) as root:
        root.writer.take(1, Piece(7, SUPERVISORS, 0, 0, b"words\n"))  # this job has no such file
        root.writer.take(1, piece(0, b"one\n", cycle=3))
        await root.until(Receipt(1, 4))
        assert Receipt(7, 6) in root.receipts
    assert os.listdir(tmp_path) == ["logs"]
    assert set(os.listdir(tmp_path / "logs")) == {"train_cycle3.log", ".train.log.job_1.positions"}


async def test_a_file_of_words_that_cannot_be_written_does_not_hold_up_the_cycles(tmp_path: Path):
    (tmp_path / "words.log").mkdir()
    async with running(tmp_path, words=str(tmp_path / "words.log")) as root:
        root.writer.take(1, Piece(7, SUPERVISORS, 0, 0, b"words\n"))
        root.writer.take(1, piece(0, b"one\n"))
        await root.until(Receipt(1, 4))
        assert Receipt(7, 6) in root.receipts
        assert not any(root.troubles)
        (tmp_path / "words.log").rmdir()
        root.writer.take(1, Piece(7, SUPERVISORS, 6, 6, b"more\n"))
        await root.until(Receipt(7, 11))
        assert root.writer.is_idle
        assert root.writer.waiting_bytes == 0
    assert (tmp_path / "words.log").read_bytes() == b"more\n"


async def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train_cycle0.log").symlink_to(tmp_path / "victim")
    async with running(tmp_path) as root:
        root.writer.take(1, piece(0, b"one\n"))
        while not root.troubles:
            await root.changed.wait()
        (tmp_path / "logs" / "train_cycle0.log").unlink()
        await root.until(Receipt(1, 4))
    assert "cannot write" in root.troubles[0]
    assert root.troubles[-1] == ""
    assert not (tmp_path / "victim").exists()


async def test_while_a_root_before_it_writes_nothing_is_written(tmp_path: Path):
    async with running(tmp_path) as root:
        root.writer.take(1, piece(0, b"", cycle=9, ends=True))
        await root.until(Receipt(1, 0, True))
        place = root.place
    _free(root)
    held = os.open(place, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    async with running(tmp_path) as root:
        root.writer.take(1, piece(0, b"one\n", stream=2))
        while not root.troubles:
            await root.changed.wait()
        assert root.troubles == ["the root before this one still writes"]
        assert not (tmp_path / "logs" / "train_cycle0.log").exists()
        os.close(held)
        await root.until(Receipt(2, 4))


@pytest.mark.parametrize("count", [2500])
async def test_many_pieces_at_once_are_appended_in_order(tmp_path: Path, count: int):
    lines = [b"%d\n" % number for number in range(count)]
    async with running(tmp_path) as root:
        position = 0
        for line in lines:
            root.writer.take(1, piece(position, line))
            position += len(line)
        await root.until(Receipt(1, position))
    assert (tmp_path / "logs" / "train_cycle0.log").read_bytes() == b"".join(lines)


def test_notes_that_could_not_be_opened_are_opened_once_the_disk_has_room(tmp_path: Path):
    notes = PositionFile(tmp_path / "notes", str)
    (tmp_path / "notes.new").mkdir()  # in the place of the shorter file
    with pytest.raises(IsADirectoryError):
        notes.open()
    (tmp_path / "notes.new").rmdir()
    assert notes.open() is not None, "the first try has released the lock"
    notes.remove()


def _free(running: Running) -> None:
    """Releases the lock, as the end of its process would."""
    fd = running.writer._notes._fd  # pyright: ignore[reportPrivateUsage]
    if fd >= 0:
        os.close(fd)


@pytest.mark.parametrize("lines", [b"", b"one\n"])
async def test_a_log_of_an_earlier_run_says_once_where_this_one_begins(tmp_path: Path, lines: bytes):
    log = tmp_path / "logs" / "train_cycle0.log"
    log.parent.mkdir()
    log.write_bytes(b"0: old\n")
    began_s = int(log.stat().st_mtime)
    os.utime(log, (began_s - 60, began_s - 60))
    for stream in (1, 2):  # the second root replaces the first one
        async with running(tmp_path, run_began_ms=began_s * 1000) as root:
            root.writer.take(1, piece(0, lines, stream=stream, ends=True))
            root.writer.take(1, piece(0, b"", stream=3, cycle=1, ends=True))  # prints nothing, and has no file
            await root.until(Receipt(stream, len(lines), True))
            await root.until(Receipt(3, 0, True))
        _free(root)
    mark = f"\n[holdfast: the run of {run_time(began_s * 1000)} begins here]\n".encode()
    assert log.read_bytes() == b"0: old\n" + mark + lines * 2
    assert "train_cycle1.log" not in os.listdir(log.parent)
