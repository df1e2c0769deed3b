"""Is all output read, across cycles, rotation and the job's end, and nothing behind a link?"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from supervisor.edges.operators import log_follower
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.edges.operators.rotated_log_reader import CHUNK_BYTES
from supervisor.edges.operators.shared_log_reader import LINK_NAME
from supervisor.errors import NotFoundError


def put(root: Path, cycle: int, rank: int, text: str, name: str = "stdout.log", mode: str = "a") -> Path:
    folder = root / "job" / f"cycle_{cycle}" / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open(mode) as file:
        file.write(text)
    return folder / name


def text_of(root: Path, choice: LogChoice | None = None) -> str:
    return b"".join(piece.data for piece in log_follower.read(root / "job", "job", choice or LogChoice())).decode()


def test_by_cycle_rank_and_stream_with_the_rotated_part_first(tmp_path: Path) -> None:
    put(tmp_path, 10, 0, "ten\n")
    put(tmp_path, 2, 1, "two-one\n")
    put(tmp_path, 2, 0, "err\n", "stderr.log")
    put(tmp_path, 2, 0, "new\n")
    put(tmp_path, 2, 0, "old\n", "stdout.log.1")
    put(tmp_path, 2, 0, "no log\n", "other.txt")
    assert text_of(tmp_path) == "old\nnew\nerr\ntwo-one\nten\n"
    assert text_of(tmp_path, LogChoice(rank=0)) == "old\nnew\nerr\nten\n"
    assert text_of(tmp_path, LogChoice(cycle=10)) == "ten\n"
    assert text_of(tmp_path, LogChoice(first_cycle=10)) == "ten\n"
    piece = next(iter(log_follower.read(tmp_path / "job", "job", LogChoice(cycle=10))))
    log = tmp_path / "job" / "cycle_10" / "rank_0" / "stdout.log"
    assert piece == LogPiece(0, 10, False, b"ten\n", log.stat().st_ino, 0)


def test_tail_counts_lines_of_the_newest_cycle(tmp_path: Path) -> None:
    put(tmp_path, 0, 0, "older\n")
    put(tmp_path, 1, 0, "".join(f"line {number}\n" for number in range(20_000)))
    assert text_of(tmp_path, LogChoice(tail_lines=2)) == "line 19998\nline 19999\n"
    assert text_of(tmp_path, LogChoice(tail_lines=30_000)).startswith("line 0\n")
    put(tmp_path, 1, 0, "no end")
    assert text_of(tmp_path, LogChoice(tail_lines=2)) == "line 19999\nno end"
    assert text_of(tmp_path, LogChoice(tail_lines=5, cycle=0)) == "older\n"


@pytest.mark.parametrize(
    ("lines", "expected"), [(2, "four\nfive\n"), (3, "three\nfour\nfive\n"), (9, "one\ntwo\nthree\nfour\nfive\n")]
)
def test_a_tail_may_begin_in_the_rotated_file(tmp_path: Path, lines: int, expected: str) -> None:
    put(tmp_path, 0, 0, "one\ntwo\nthree\n", "stdout.log.1")
    current = put(tmp_path, 0, 0, "four\nfive\n")
    assert text_of(tmp_path, LogChoice(tail_lines=lines)) == expected
    current.write_text("")
    assert text_of(tmp_path, LogChoice(tail_lines=2)) == "two\nthree\n"


@pytest.mark.parametrize(
    ("lines", "expected"), [(1, "three\n"), (2, "two\nthree\n"), (3, "one\ntwo\nthree\n"), (9, "one\ntwo\nthree\n")]
)
def test_a_line_that_a_rotation_has_cut_is_one_line_of_a_tail(tmp_path: Path, lines: int, expected: str) -> None:
    put(tmp_path, 0, 0, "one\ntw", "stdout.log.1")
    put(tmp_path, 0, 0, "o\nthree\n")
    assert text_of(tmp_path, LogChoice(tail_lines=lines)) == expected


def test_a_tail_of_all_lines_of_the_current_file_takes_none_of_the_rotated_one(tmp_path: Path) -> None:
    put(tmp_path, 0, 0, "one\n\n", "stdout.log.1")
    put(tmp_path, 0, 0, "\ntwo")
    assert text_of(tmp_path, LogChoice(tail_lines=2)) == "\ntwo"
    assert text_of(tmp_path, LogChoice(tail_lines=3)) == "\n\ntwo"


def test_a_tail_of_a_file_that_was_rotated_after_it_was_opened(tmp_path: Path) -> None:
    current = put(tmp_path, 0, 0, "one\ntwo\n")
    current.with_name("stdout.log.1").hardlink_to(current)
    assert text_of(tmp_path, LogChoice(tail_lines=5)) == "one\ntwo\n"


def test_a_tail_may_cross_chunks(tmp_path: Path) -> None:
    put(tmp_path, 0, 0, "a" * CHUNK_BYTES + "\n" + "b" * CHUNK_BYTES + "\n")
    assert text_of(tmp_path, LogChoice(tail_lines=1)) == "b" * CHUNK_BYTES + "\n"


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    mine = put(tmp_path, 0, 0, "mine\n")
    (mine.parent / "stderr.log").symlink_to(secret)
    (tmp_path / "job" / "cycle_1").symlink_to(tmp_path)
    os.mkfifo(mine.parent / "stdout.log.1")  # reading it would wait for a writer
    assert text_of(tmp_path) == "mine\n"


def test_nothing_there_is_a_clear_error(tmp_path: Path) -> None:
    put(tmp_path, 0, 0, "x\n")
    with pytest.raises(
        NotFoundError, match=r"of cycle 3 of job .*: the newest in .* is cycle 0; choose an earlier one$"
    ):
        text_of(tmp_path, LogChoice(rank=1, cycle=3))
    with pytest.raises(NotFoundError, match="holds nothing of cycle 0 of rank 1; the workers have not started yet, or"):
        text_of(tmp_path, LogChoice(rank=1, cycle=0))


class Reader:
    """Follows in a task and keeps the output."""

    def __init__(self, root: Path, choice: LogChoice | None = None) -> None:
        self.text = ""
        self.ended = anyio.Event()
        self._root = root
        self._choice = choice or LogChoice()

    async def run(self) -> None:
        async for piece in log_follower.follow(self._root / "job", self._choice, self.ended):
            self.text += piece.data.decode()

    async def wait_for(self, text: str) -> None:
        with anyio.fail_after(10):
            while self.text != text:
                await anyio.lowlevel.checkpoint()


async def test_what_is_written_from_now_on_comes_until_the_end(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "not" / "there" / "yet")
    root = tmp_path / "not" / "there" / "yet"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await anyio.lowlevel.checkpoint()
        put(root, 0, 0, "a\n")
        await reader.wait_for("a\n")
        put(root, 0, 0, "b\n")
        await reader.wait_for("a\nb\n")
        put(root, 0, 1, "c\n")
        await reader.wait_for("a\nb\nc\n")
        put(root, 1, 0, "d\n")
        await reader.wait_for("a\nb\nc\nd\n")
        put(root, 1, 0, "e\n")
        reader.ended.set()
    assert reader.text == "a\nb\nc\nd\ne\n"


async def test_earlier_cycles_than_the_first_one_are_not_read(tmp_path: Path) -> None:
    put(tmp_path, 0, 0, "a\n")
    reader = Reader(tmp_path, LogChoice(first_cycle=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        put(tmp_path, 1, 0, "b\n")
        await reader.wait_for("b\n")
        put(tmp_path, 1, 1, "c\n")
        await reader.wait_for("b\nc\n")
        reader.ended.set()
    assert reader.text == "b\nc\n"


def test_what_is_rotated_twice_between_two_reads_is_read(tmp_path: Path) -> None:
    """The older part that a reader has begun with is gone before it looks for the next one."""
    path = put(tmp_path, 0, 0, "2\n")
    put(tmp_path, 0, 0, "1\n", "stdout.log.1")
    pieces = log_follower.read(tmp_path / "job", "job", LogChoice())
    text = next(pieces).data
    for line in ("3\n", "4\n"):
        path.rename(path.with_name("stdout.log.1"))
        put(tmp_path, 0, 0, line)
        text += next(pieces).data
    assert text + b"".join(piece.data for piece in pieces) == b"1\n2\n3\n4\n"


async def test_following_survives_rotation(tmp_path: Path) -> None:
    path = put(tmp_path, 0, 0, "1\n")
    reader = Reader(tmp_path, LogChoice(tail_lines=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for("1\n")
        put(tmp_path, 0, 0, "2\n")
        path.rename(path.with_name("stdout.log.1"))
        put(tmp_path, 0, 0, "3\n")
        await reader.wait_for("1\n2\n3\n")
        reader.ended.set()
    assert reader.text == "1\n2\n3\n"


@pytest.mark.parametrize(("tail_lines", "begin"), [(0, "1\n2\n"), (1, "2\n"), (2, "1\n2\n")])
async def test_the_older_part_comes_once_if_only_the_current_file_is_removed(
    tmp_path: Path, tail_lines: int, begin: str
) -> None:
    put(tmp_path, 0, 0, "1\n", "stdout.log.1")
    path = put(tmp_path, 0, 0, "2\n")
    reader = Reader(tmp_path, LogChoice(tail_lines=tail_lines))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for(begin)
        for line in ("3\n", "4\n"):
            path.unlink()
            put(tmp_path, 0, 0, line)
            begin += line
            await reader.wait_for(begin)
        reader.ended.set()
    assert reader.text == begin


@pytest.mark.parametrize("removed", [".", "cycle_0", "cycle_0/rank_0"])
async def test_a_folder_that_is_removed_and_made_again_is_followed(tmp_path: Path, removed: str) -> None:
    put(tmp_path, 0, 1, "")
    path = put(tmp_path, 0, 0, "a\n")
    reader = Reader(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for("a\n")
        with path.open():  # as its writer has it
            shutil.rmtree(tmp_path / "job" / removed)
            await anyio.sleep(0.1)
            put(tmp_path, 0, 0, "b\n")
            await reader.wait_for("a\nb\n")
            put(tmp_path, 0, 0, "c\n")
            await reader.wait_for("a\nb\nc\n")
        put(tmp_path, 0, 1, "d\n")
        await reader.wait_for("a\nb\nc\nd\n")
        put(tmp_path, 1, 0, "e\n")
        await reader.wait_for("a\nb\nc\nd\ne\n")
        reader.ended.set()
    assert reader.text == "a\nb\nc\nd\ne\n"


async def test_a_folder_above_that_others_may_not_list_is_no_reason_not_to_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = log_follower.DirectoryWatch.add

    def refusing(watch: log_follower.DirectoryWatch, path: Path) -> bool:
        if path == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return add(watch, path)

    monkeypatch.setattr(log_follower.DirectoryWatch, "add", refusing)
    put(tmp_path, 0, 0, "a\n")
    reader = Reader(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for("a\n")
        put(tmp_path, 1, 0, "b\n")
        await reader.wait_for("a\nb\n")
        reader.ended.set()


async def test_following_one_rank_ignores_the_others(tmp_path: Path) -> None:
    put(tmp_path, 0, 0, "zero\n")
    put(tmp_path, 0, 1, "one\n")
    reader = Reader(tmp_path, LogChoice(rank=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for("one\n")
        put(tmp_path, 0, 0, "more\n")
        put(tmp_path, 0, 1, "two\n")
        await reader.wait_for("one\ntwo\n")
        reader.ended.set()


def _inotify_watches() -> int:
    """Returns the number of this process, as the kernel counts."""
    found = 0
    for number in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError):
            found += Path("/proc/self/fdinfo", number).read_text().count("inotify wd:")
    return found


def _count_calls(monkeypatch: pytest.MonkeyPatch, name: str, calls: Counter[str]) -> None:
    real = getattr(os, name)

    def counting(*arguments: object, **named: object) -> object:
        calls[name] += 1
        return real(*arguments, **named)

    monkeypatch.setattr(os, name, counting)


async def test_a_cycle_costs_the_same_however_many_came_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for name in ("scandir", "open"):
        _count_calls(monkeypatch, name, calls)
    costs: list[tuple[int, int, int]] = []
    expected = "0 0\n"
    put(tmp_path, 0, 0, expected)
    reader = Reader(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for(expected)
        for cycle in range(1, 25):
            calls.clear()
            for rank in range(4):
                put(tmp_path, cycle, rank, f"{cycle} {rank}\n")
                expected += f"{cycle} {rank}\n"
                await reader.wait_for(expected)
            costs.append((calls["scandir"], calls["open"], _inotify_watches()))
        reader.ended.set()
    early, late = costs[:5], costs[-5:]
    assert max(late) <= max(early)
    assert max(scans for scans, _, _ in late) <= 2  # one folder of a cycle
    assert max(watches for _, _, watches in late) == 7  # the run, the folder above, the cycle and its ranks


async def test_a_rank_that_writes_is_the_only_one_that_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(64):
        put(tmp_path, 0, rank, "x")
    reader = Reader(tmp_path)
    calls: Counter[str] = Counter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for("x" * 64)
        _count_calls(monkeypatch, "pread", calls)
        put(tmp_path, 0, 17, "y")
        await reader.wait_for("x" * 64 + "y")
        assert calls["pread"] <= 6  # of 128 files: two of one rank, one of which has data
        reader.ended.set()


async def test_many_ranks_that_start_together_are_looked_at_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0, 0, "a")
    reader = Reader(tmp_path)
    looks: list[bool] = []
    take = log_follower.DirectoryWatch.take

    def counting_take(watch: log_follower.DirectoryWatch) -> object:
        looks.append(True)
        return take(watch)

    monkeypatch.setattr(log_follower.DirectoryWatch, "take", counting_take)
    monkeypatch.setattr(log_follower, "GATHER_S", 0.5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for("a")
        looks.clear()
        for rank in range(1, 64):
            await to_thread.run_sync(put, tmp_path, 0, rank, "b")
        await reader.wait_for("a" + "b" * 63)
        assert len(looks) < 16  # each of 63 starts makes at least three changes
        reader.ended.set()


async def test_a_cycle_that_began_with_its_run_is_not_missed(tmp_path: Path) -> None:
    """The folders are created one after another, faster than they can be watched."""
    for attempt in range(20):
        root = tmp_path / str(attempt)
        reader = Reader(root)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            await anyio.lowlevel.checkpoint()
            await to_thread.run_sync(put, root, 0, 0, "a\n")
            await reader.wait_for("a\n")
            await to_thread.run_sync(put, root, 1, 3, "b\n")
            await reader.wait_for("a\nb\n")
            reader.ended.set()


async def test_ended_cycles_cost_no_descriptors(tmp_path: Path) -> None:
    for cycle in range(30):
        put(tmp_path, cycle, 0, f"{cycle}\n")
    before = len(os.listdir("/proc/self/fd"))
    reader = Reader(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await reader.wait_for("".join(f"{cycle}\n" for cycle in range(30)))
        put(tmp_path, 30, 0, "30\n")
        await reader.wait_for("".join(f"{cycle}\n" for cycle in range(31)))
        assert len(os.listdir("/proc/self/fd")) <= before + 10
        reader.ended.set()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def _are_open(numbers: range) -> bool:
    return all(os.path.lexists(f"/proc/self/fd/{number}") for number in numbers)


async def test_a_reader_that_leaves_within_a_shared_file_closes_no_file_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the thread that reads have the numbers of others elsewhere, such as those of the output."""
    close = log_follower.DirectoryWatch.close

    def slow_close(watch: log_follower.DirectoryWatch) -> None:
        time.sleep(0.1)  # The other thread has let go meanwhile.
        close(watch)

    monkeypatch.setattr(log_follower.DirectoryWatch, "close", slow_close)
    (tmp_path / "shared.log").write_bytes(b"0: line\n" * 100_000)
    (put(tmp_path, 0, 0, "").parent / LINK_NAME).symlink_to(tmp_path / "shared.log")
    copies = [os.dup(number) for number in range(3)]
    try:
        pieces = log_follower.follow(tmp_path / "job", LogChoice(), anyio.Event())
        await anext(pieces)
        await pieces.aclose()
        are_open = _are_open(range(3))
    finally:
        for number, copy in enumerate(copies):
            os.dup2(copy, number)
            os.close(copy)
    assert are_open
