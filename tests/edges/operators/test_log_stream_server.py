"""Does another node get all output of this one, as fast as it reads and no faster, and is nothing left open?"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from holdfast_wire.run_mark import run_time

from supervisor.edges.operators import log_follower, log_reader_limit, log_stream_server, shared_log_reader
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.edges.operators.log_merge import NodeOutput, merge_in_order
from supervisor.edges.operators.log_stream_server import LogStreamServer
from supervisor.errors import ExhaustedError, NotFoundError
from supervisor.ports.questions import Answer, CloseLogs, Logs, ReadLogs
from supervisor.ports.reports import JobReport, LogBytes
from supervisor.queries import remote_logs
from tests.edges.operators.fake_job_service import FakeJobService, running
from tests.edges.operators.test_log_follower import put
from tests.settling import settled

LIMIT_S = 20.0


@asynccontextmanager
async def readers(folder: Path) -> AsyncGenerator[tuple[LogStreamServer, JobReport]]:
    part = running(log_dir=str(folder / "job"))
    found = LogStreamServer(FakeJobService(part))
    async with anyio.create_task_group() as tasks:
        await tasks.start(found.run)
        yield found, part
        tasks.cancel_scope.cancel()


async def read_all(found: LogStreamServer, part: JobReport, reader: str = "r") -> bytes:
    output, step, is_last = b"", 0, False
    with anyio.fail_after(LIMIT_S):
        while not is_last:
            step += 1
            answer = await found.answer("b", part, ReadLogs(reader, step))
            assert isinstance(answer, Logs)
            output += b"".join(piece.output for piece in answer.pieces)
            is_last = answer.is_last
    return output


async def test_all_output_is_read_in_bounded_answers(tmp_path: Path):
    text = "".join(f"line {number}\n" for number in range(100_000))
    put(tmp_path, 0, 0, text)
    put(tmp_path, 0, 1, "the other\n")
    async with readers(tmp_path) as (found, part):
        assert await read_all(found, part) == (text + "the other\n").encode()
        assert await read_all(found, part, "another") == (text + "the other\n").encode()


async def test_a_step_that_is_asked_again_is_answered_the_same(tmp_path: Path):
    put(tmp_path, 0, 0, "x" * 500_000)
    async with readers(tmp_path) as (found, part):
        first = await found.answer("b", part, ReadLogs("r", 1))
        assert await found.answer("b", part, ReadLogs("r", 1)) == first
        second = await found.answer("b", part, ReadLogs("r", 2))
        assert isinstance(second, Logs)
        assert second.pieces
        await found.answer("b", part, CloseLogs("r"))
        await settled()
        with pytest.raises(NotFoundError, match="its reader was closed"):
            await found.answer("b", part, ReadLogs("r", 3))


async def test_one_that_follows_gets_what_comes_later(tmp_path: Path):
    put(tmp_path, 0, 0, "one\n")
    async with readers(tmp_path) as (found, part):
        first = await found.answer("b", part, ReadLogs("r", 1, follow=True, wait_s=LIMIT_S))
        put(tmp_path, 0, 0, "two\n")
        second = await found.answer("b", part, ReadLogs("r", 2, follow=True, wait_s=LIMIT_S))
        assert isinstance(first, Logs)
        assert isinstance(second, Logs)
        assert [piece.output for piece in (*first.pieces, *second.pieces)] == [b"one\n", b"two\n"]


async def test_a_reader_whose_node_cannot_read_gets_no_end_but_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def watch() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(log_follower, "DirectoryWatch", watch)
    put(tmp_path, 0, 0, "one\n")
    async with readers(tmp_path) as (found, part):
        for follow in (False, True):
            with pytest.raises(ExhaustedError, match=r"cannot show output: .*Too many open files"):
                await found.answer("b", part, ReadLogs(f"r{follow}", 1, follow=follow, wait_s=LIMIT_S))
    assert len(caplog.records) == 1, "the asker comes again and again"


async def test_readers_are_few_and_idle_ones_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_reader_limit, "READERS_MAX", 1)
    put(tmp_path, 0, 0, "x" * 500_000)
    async with readers(tmp_path) as (found, part):
        await found.answer("b", part, ReadLogs("r", 1))
        with pytest.raises(ExhaustedError, match="1 readers of other nodes are open already"):
            await found.answer("c", part, ReadLogs("s", 1))
        monkeypatch.setattr(log_stream_server, "IDLE_S", 0.05)
        await found.answer("b", part, ReadLogs("r", 2))
        with anyio.fail_after(LIMIT_S):
            while True:
                try:
                    await found.answer("c", part, ReadLogs("s", 1))
                except ExhaustedError:
                    await settled()
                else:
                    break


async def test_a_reader_that_is_closed_while_it_is_asked_gives_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_stream_server, "IDLE_S", 0.05)
    put(tmp_path, 0, 0, "")
    async with readers(tmp_path) as (found, part):
        with pytest.raises(NotFoundError, match="its reader was closed"):
            await found.answer("b", part, ReadLogs("r", 1, follow=True, wait_s=LIMIT_S))


class Asker:
    """Node b, which asks this node. See questions.NodeRequests."""

    def __init__(self, found: LogStreamServer, part: JobReport) -> None:
        self._found = found
        self._part = part

    async def ask(self, job_id: str, to: str, question: ReadLogs | CloseLogs, *, timeout_s: float) -> Answer:
        return await self._found.answer("b", self._part, question)


OTHERS = b"1: of another rank\n" * 200
RUN_MS = 1_764_419_405_123
MARK = f"\n[holdfast: the run of {run_time(RUN_MS)} begins here]\n".encode()


@pytest.mark.parametrize("tail_lines", [0, 20])
@pytest.mark.parametrize("text", [MARK + OTHERS + b"0: own\n", OTHERS + MARK + b"0: own\n"])
async def test_a_long_search_in_a_shared_file_is_no_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, tail_lines: int
):
    folder = put(tmp_path, 0, 0, "").parent
    (tmp_path / "shared.log").write_bytes(text)
    (folder / shared_log_reader.LINK_NAME).symlink_to(tmp_path / "shared.log")
    (folder / shared_log_reader.RUN_LINK_NAME).symlink_to(str(RUN_MS))
    read = os.pread

    def slow_read(descriptor: int, size: int, offset: int) -> bytes:
        time.sleep(0.02)
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", slow_read)
    monkeypatch.setattr(shared_log_reader, "CHUNK_BYTES", 100)
    monkeypatch.setattr(log_follower, "TURN_S", 0.05)
    monkeypatch.setattr(log_stream_server, "PATIENCE_S", 0.2)
    async with readers(tmp_path) as (found, part):
        asker: Any = Asker(found, part)
        pieces = remote_logs.pieces(
            asker, part.job_id, "a", rank=None, cycle=None, tail_lines=tail_lines, first_cycle=0, follow=False
        )
        assert [piece.output async for piece in pieces] == [b"own\n"]


async def read_late(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, tail_lines: int = 0, meanwhile: Callable[[], object] = int
) -> bytes:
    """Returns what a reader gets of a node after looking at the first one's output, as in a pager, for too long."""
    monkeypatch.setattr(log_stream_server, "IDLE_S", 0.3)
    output, missing, opened = bytearray(), list[str](), list[int | None]()

    async def own() -> AsyncGenerator[LogPiece]:
        yield LogPiece(0, 0, is_stderr=False, data=b"own")

    async def send(piece: LogPiece) -> None:
        if piece.data == b"own":
            await anyio.sleep(1.5)
            monkeypatch.setattr(log_stream_server, "IDLE_S", 60.0)
            meanwhile()
        else:
            output.extend(piece.data)

    async with readers(folder) as (found, part):
        asker: Any = Asker(found, part)
        open_remote: Any = remote_logs.pieces

        def open_pieces(*, cycle: int | None, **choice: int | None) -> AsyncGenerator[LogBytes]:
            opened.append(cycle)
            return open_remote(asker, part.job_id, "a", cycle=cycle, follow=False, **choice)

        others = {"a": NodeOutput(part.log_dir, LogChoice(tail_lines=tail_lines), open_pieces)}
        await merge_in_order(own(), others, send, missing.append)
    assert len(opened) > 1
    assert not tail_lines or None not in opened[1:], "no other cycle comes"
    assert missing == []
    return bytes(output)


def lines(begin: int, end: int) -> str:
    return "".join(f"line {number}\n" for number in range(begin, end))


async def test_all_output_comes_of_a_node_that_waits_long_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path, 0, 1, lines(0, 100_000))
    assert await read_late(monkeypatch, tmp_path) == lines(0, 100_000).encode()


async def test_the_last_lines_of_a_node_that_waits_long_for_its_turn_have_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(log_stream_server, "ANSWER_BYTES", 1)

    def print_lines(begin: int, end: int) -> None:
        for rank in (1, 2):
            put(tmp_path, 1, rank, lines(begin, end))

    put(tmp_path, 0, 1, "of an earlier cycle\n")
    print_lines(0, 10)

    def go_on() -> None:
        print_lines(10, 110)
        put(tmp_path, 2, 1, "of the next cycle\n")

    output = await read_late(monkeypatch, tmp_path, tail_lines=3, meanwhile=go_on)
    assert output.decode() == lines(7, 110) + lines(107, 110), "of rank 2, nothing was shown yet"
