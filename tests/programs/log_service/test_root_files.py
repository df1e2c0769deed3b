"""The supervisors' messages and the logs of the cycles have different disks, and neither waits for the other's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from holdfast_wire.log_pieces import SUPERVISORS, Piece, Receipt, file_of_cycle

from supervisor.programs.log_service.root_files import WORDS_BYTES_MAX, RootFiles
from supervisor.programs.log_service.wakeup import Wakeup

LIMIT_S = 30.0


class Running:
    def __init__(self, logs: str, words: str) -> None:
        self.receipts: list[Receipt] = []
        self.troubles: list[str] = []
        self.changed = Wakeup()
        self.files = RootFiles("job", logs, words, on_receipt=self._note, on_trouble=self.troubles.append)

    def _note(self, link: int, receipt: Receipt) -> None:
        assert link == 1
        self.receipts.append(receipt)
        self.changed.wake()

    async def until(self, receipt: Receipt) -> None:
        while receipt not in self.receipts:
            await self.changed.wait()

    def say(self, position: int, lines: bytes) -> Receipt:
        self.files.take(1, Piece(7, SUPERVISORS, 0, position, lines))
        return Receipt(7, position + len(lines))

    def print(self, position: int, lines: bytes) -> Receipt:
        self.files.take(1, Piece(1, file_of_cycle(0), 0, position, lines))
        return Receipt(1, position + len(lines))


@asynccontextmanager
async def running(logs: Path | None, words: Path) -> AsyncGenerator[Running]:
    made = Running(str(logs or ""), str(words))
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.files.run)
            yield made
            tasks.cancel_scope.cancel()


@contextmanager
def freezable(folder: Path) -> Generator[Path]:
    """A disk of its own, which is thawed at the end."""
    folder.mkdir()
    image = folder.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(32 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=False)
    if subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["fsfreeze", "-u", str(folder)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_disk_of_the_messages_that_hangs_does_not_hold_up_the_cycles(tmp_path: Path):
    with freezable(tmp_path / "disk") as disk:
        words = disk / "words.log"
        async with running(tmp_path / "train.log", words) as root:
            await root.until(root.say(0, b"one\n"))
            await anyio.run_process(["fsfreeze", "-f", str(disk)])
            two = root.say(4, b"two\n")
            await root.until(root.print(0, b"0: first\n"))
            more = b"x" * 65_535 + b"\n"
            position, said = 8, [two]
            while position < 2 * WORDS_BYTES_MAX:
                said.append(root.say(position, more))
                position += len(more)
            await root.until(root.print(9, b"0: second\n"))
            await root.until(said[-1])  # It is lost, and counted.
            assert two not in root.receipts
            assert not any(root.troubles)
            await anyio.run_process(["fsfreeze", "-u", str(disk)])
            while not root.files.is_idle:
                await root.changed.wait()
        kept = words.read_bytes()
        assert kept.startswith(b"one\ntwo\nxxx")
        assert WORDS_BYTES_MAX // 2 < len(kept) <= WORDS_BYTES_MAX + 8
        assert kept.endswith(b"x\n")
    assert (tmp_path / "train_cycle0.log").read_bytes() == b"0: first\n0: second\n"


async def test_where_only_the_messages_are_wanted_nothing_else_is_written(tmp_path: Path):
    async with running(None, tmp_path / "words.log") as root:
        await root.until(root.say(0, b"one\n"))
        await root.until(root.print(0, b"0: first\n"))
        await root.files.aclose()
    assert os.listdir(tmp_path) == ["words.log"]


async def test_both_leave_nothing_but_their_files(tmp_path: Path):
    async with running(tmp_path / "train.log", tmp_path / "words.log") as root:
        await root.until(root.say(0, b"one\n"))
        await root.until(root.print(0, b"0: first\n"))
        assert len(os.listdir(tmp_path)) == 4
        await root.files.aclose()
    assert sorted(os.listdir(tmp_path)) == ["train_cycle0.log", "words.log"]
