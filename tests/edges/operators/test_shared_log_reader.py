"""One rank's output, read from the file that it shares with the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_wire.run_mark import run_time

from supervisor.edges.operators import log_follower, shared_log_reader
from supervisor.edges.operators.log_follower import LogChoice
from supervisor.edges.operators.shared_log_reader import (
    LINK_NAME,
    PIECE_LINES,
    RUN_LINK_NAME,
    SharedLogReader,
    folder_of_log,
    why_unread,
)
from worker_client.spawner import spawner_cycle_logs


@pytest.fixture
def rank_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "cycle_0" / "rank_1"
    folder.mkdir(parents=True)
    (folder / LINK_NAME).symlink_to(tmp_path / "train_cycle0.log")
    return folder


def test_the_spawner_calls_the_links_the_same() -> None:
    assert spawner_cycle_logs.LINK_NAME == LINK_NAME
    assert spawner_cycle_logs.RUN_LINK_NAME == RUN_LINK_NAME


def test_only_the_ranks_own_whole_lines_are_read_and_each_once(tmp_path: Path, rank_folder: Path) -> None:
    log = tmp_path / "train_cycle0.log"
    reader = SharedLogReader(rank_folder, 1)
    assert list(reader.read()) == []
    log.write_bytes(b" 1: one\n11: other\n 1:  1: two\n[holdfast: lost]\n 1: ha")
    assert b"".join(reader.read()) == b"one\n 1: two\n"
    with log.open("ab") as file:
        file.write(b"lf\n 2: x\n")
    assert b"".join(reader.read()) == b"half\n"
    assert folder_of_log(rank_folder) == tmp_path


def test_the_last_lines_are_those_of_the_rank(tmp_path: Path, rank_folder: Path) -> None:
    lines = b"".join(b"1: a%d\n0: b%d\n" % (number, number) for number in range(50))
    (tmp_path / "train_cycle0.log").write_bytes(lines)
    reader = SharedLogReader(rank_folder, 1)
    reader.skip_to_tail(2)
    assert b"".join(reader.read()) == b"a48\na49\n"
    pieces = list(log_follower.read(tmp_path / "run", "j", LogChoice(rank=1, tail_lines=3)))
    assert b"".join(piece.data for piece in pieces) == b"a47\na48\na49\n"
    assert {(piece.rank, piece.cycle, piece.is_stderr) for piece in pieces} == {(1, 0, False)}


def test_each_piece_says_where_in_the_rank_s_output_it_is(tmp_path: Path, rank_folder: Path) -> None:
    log = tmp_path / "train_cycle0.log"
    log.write_bytes(b"1: one\n0: x\n" + b"1: more\n" * PIECE_LINES)
    pieces = list(log_follower.read(tmp_path / "run", "j", LogChoice()))
    assert [(piece.file, piece.offset) for piece in pieces] == [
        (log.stat().st_ino, 0),
        (log.stat().st_ino, len(pieces[0].data)),
    ]


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path, rank_folder: Path) -> None:
    log = tmp_path / "train_cycle0.log"
    log.write_bytes(b"1: one\n")
    reader = SharedLogReader(rank_folder, 1)
    assert list(reader.read()) == [b"one\n"]
    (tmp_path / "new").write_bytes(b"1: a longer line\n")
    (tmp_path / "new").rename(log)
    assert list(reader.read()) == [b"a longer line\n"]
    assert (reader.file, reader.read_bytes) == (log.stat().st_ino, len(b"a longer line\n"))


@pytest.mark.parametrize("what", ["folder", "link", "nothing"])
def test_what_is_no_file_of_the_user_is_not_read(tmp_path: Path, rank_folder: Path, what: str) -> None:
    log = tmp_path / "train_cycle0.log"
    if what == "folder":
        log.mkdir()
    elif what == "link":
        (tmp_path / "secret").write_text("1: secret\n")
        log.symlink_to(tmp_path / "secret")
    assert list(SharedLogReader(rank_folder, 1).read()) == []
    assert ("cannot show output in " in why_unread(rank_folder)) == (what != "nothing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_file_of_another_owner_is_not_read_and_people_are_told_why(tmp_path: Path, rank_folder: Path) -> None:
    """An NFS with root_squash gives root's file to nobody; the ranks were said to have printed nothing."""
    log = tmp_path / "train_cycle0.log"
    log.write_text("1: one\n")
    assert why_unread(rank_folder) == ""
    os.chown(log, 65534, 65534)
    assert list(SharedLogReader(rank_folder, 1).read()) == []
    why = why_unread(rank_folder)
    assert why.startswith(f"cannot show output in {log}: it belongs to user id 65534, and the job to user id 0; ")
    assert log_follower.why_shared_file_unread(tmp_path / "run", LogChoice(rank=1)) == why
    assert log_follower.why_shared_file_unread(tmp_path / "run", LogChoice(rank=2)) == ""


def test_a_rank_without_a_link_has_no_shared_file(tmp_path: Path) -> None:
    assert folder_of_log(tmp_path) is None
    assert list(SharedLogReader(tmp_path, 0).read()) == []


RUNS_MS = (1_764_419_405_123, 1_764_419_405_124, 1_764_419_405_125)


def mark(run: int) -> bytes:
    return f"\n[holdfast: the run of {run_time(RUNS_MS[run])} begins here]\n".encode()


@pytest.mark.parametrize(("run", "words"), [(0, b"first\n"), (1, b"second\nand more\n"), (2, b"third\n")])
def test_only_the_lines_of_the_rank_s_own_run_are_read(
    tmp_path: Path, rank_folder: Path, monkeypatch: pytest.MonkeyPatch, run: int, words: bytes
) -> None:
    monkeypatch.setattr(shared_log_reader, "CHUNK_BYTES", 100)  # A mark may lie in two pieces.
    (rank_folder / RUN_LINK_NAME).symlink_to(str(RUNS_MS[run]))
    log = tmp_path / "train_cycle0.log"
    log.write_bytes(b"1: first" + mark(1) + b"1: second\n" + mark(1) + b"1: and more\n" + mark(2) + b"1: third\n")
    reader = SharedLogReader(rank_folder, 1)
    assert b"".join(reader.read()) == words
    assert reader.read_bytes == len(words)
    with log.open("ab") as file:
        file.write(b"1: later\n")
    assert b"".join(reader.read()) == (b"later\n" if run == 2 else b"")


def test_a_later_run_ends_what_is_followed(tmp_path: Path, rank_folder: Path) -> None:
    (rank_folder / RUN_LINK_NAME).symlink_to(str(RUNS_MS[0]))
    log = tmp_path / "train_cycle0.log"
    log.write_bytes(b"1: first\n")
    reader = SharedLogReader(rank_folder, 1)
    assert list(reader.read()) == [b"first\n"]
    with log.open("ab") as file:
        file.write(mark(1) + b"1: second\n")
    assert list(reader.read()) == []


@pytest.mark.parametrize("has_mark", [True, False])
def test_before_this_run_has_written_anything_no_line_of_an_earlier_run_is_shown(
    tmp_path: Path, rank_folder: Path, *, has_mark: bool
) -> None:
    """Without a mark, the file's time is behind: it is a new file, on a server whose clock is."""
    (rank_folder / RUN_LINK_NAME).symlink_to(str(RUNS_MS[2]))
    log = tmp_path / "train_cycle0.log"
    log.write_bytes(b"1: first\n")
    long_ago_s = RUNS_MS[2] / 1000 - 600.0
    os.utime(log, (long_ago_s, long_ago_s))
    reader = SharedLogReader(rank_folder, 1)
    assert list(reader.read()) == list(reader.read()) == []
    with log.open("ab") as file:
        file.write((mark(2) if has_mark else b"") + b"1: second\n")
    os.utime(log, (long_ago_s, long_ago_s))
    assert b"".join(reader.read()) == (b"second\n" if has_mark else b"first\nsecond\n")
