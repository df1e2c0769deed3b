"""Does a later group's record keep an earlier group out, and nobody else?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_client import commit_record
from worker_client.commit_record import EPOCHS_MAX, Record
from worker_client.errors import LeaseLostError
from worker_client.fencing_tokens import CYCLE_ONE, EPOCH_ONE


def token(epoch: int, cycle: int = 0) -> int:
    return epoch * EPOCH_ONE + cycle * CYCLE_ONE


@pytest.mark.parametrize(
    ("before", "late", "is_excluded"),
    [
        ([], token(5), False),
        ([token(5, 1)], token(5, 0), True),
        ([token(5, 1)], token(5, 1), False),
        ([token(5, 1)], token(5, 2), False),
        ([token(5, 9), token(6, 0)], token(5, 9), True),
        ([token(5, 9), token(6, 0)], token(5, 10), True),
        ([token(9, 4)], token(5, 0), False),  # another run, on a node whose clock is behind
        ([token(9, 4), token(5, 0)], token(9, 5), True),
        ([token(9, 4), token(5, 0), token(7, 0)], token(5, 3), True),
    ],
)
def test_an_earlier_cycle_and_an_earlier_epoch_are_excluded(before: list[int], late: int, is_excluded: bool):
    record = Record()
    for each in before:
        record = record.with_newest(each)
    assert record.excludes(late) is is_excluded


def test_a_record_has_a_bound():
    record = Record()
    for epoch in range(1, EPOCHS_MAX + 50):
        record = record.with_newest(token(epoch))
    assert len(record.former) == EPOCHS_MAX
    assert record.excludes(token(EPOCHS_MAX + 40))


def test_a_group_that_claims_removes_what_earlier_ones_have_begun_and_nothing_else(tmp_path: Path):
    path = tmp_path / "last.pt"
    commit_record.claim(path, token(5))
    earlier = commit_record.temporary_path(path, token(5))
    earlier.write_text("of the earlier group")
    folder = commit_record.temporary_path(path, token(5))
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "shard").touch()
    mine = commit_record.temporary_path(path, token(5, 1))
    mine.touch()
    others = [commit_record.temporary_path(tmp_path / "other.pt", token(5)), tmp_path / ".holdfast-", tmp_path / "x"]
    for each in others:
        each.touch()
    commit_record.claim(path, token(5, 1))
    kept = {each.name for each in (mine, *others, commit_record.record_path(path))}
    assert {each.name for each in tmp_path.iterdir()} == kept


def test_a_claim_that_a_later_group_overtakes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between its two looks at the record, and between the second one and its rename."""
    path = tmp_path / "last.pt"
    commit_record.claim(path, token(5))
    looks: list[Record] = []
    look = commit_record._read  # pyright: ignore[reportPrivateUsage]

    def overtaken_after(count: int) -> Callable[[Path], Record]:
        def read(record: Path) -> Record:
            found = look(record)
            looks.append(found)
            if len(looks) == count:
                commit_record.claim(path, token(5, 7))
            return found

        return read

    for count in (1, 2):
        looks.clear()
        (tmp_path / commit_record.record_path(path)).unlink()
        commit_record.claim(path, token(5))
        looks.clear()
        monkeypatch.setattr(commit_record, "_read", overtaken_after(count))
        with pytest.raises(LeaseLostError, match="a later group of ranks writes there"):
            commit_record.claim(path, token(5, 1))
        monkeypatch.setattr(commit_record, "_read", look)
        assert look(commit_record.record_path(path)).token == token(5, 7)


def test_an_earlier_group_that_wakes_late_replaces_no_record_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has looked twice and renames its own record just before the later group would remove it."""
    path = tmp_path / "last.pt"
    late = commit_record.temporary_path(path, token(5), "token")
    late.write_text(json.dumps({"token": token(5), "former": []}))
    rename = commit_record._rename_record  # pyright: ignore[reportPrivateUsage]

    def renamed(written: Path, path: Path, group: int) -> None:
        rename(written, path, group)
        if late.exists():
            late.rename(commit_record.record_path(path))

    monkeypatch.setattr(commit_record, "_rename_record", renamed)
    commit_record.claim(path, token(5, 1))
    assert commit_record.check(path, token(5, 1)).token == token(5, 1)


DAMAGED = [
    b"", b"{", b"[]", b'{"token": "x", "former": []}', b'{"token": 1}', b"null", b"\x00" * 99, b"\xff\xfe",
    b'{"token": Infinity, "former": []}', b"[" * 50_000, b" " * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_record_ends_no_training(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "last.pt"
    commit_record.record_path(path).write_bytes(content)
    commit_record.claim(path, token(5))
    assert "is not a record of commits" in caplog.text
    assert commit_record.check(path, token(5)).token == token(5)


def test_a_pipe_in_the_place_of_a_record_blocks_nobody_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "last.pt"
    os.mkfifo(commit_record.record_path(path))
    commit_record.claim(path, token(5))
    assert "is not a record of commits" in caplog.text
    assert commit_record.check(path, token(5)).token == token(5)


def test_a_folder_in_the_place_of_a_record_is_named(tmp_path: Path):
    path = tmp_path / "last.pt"
    commit_record.record_path(path).mkdir()
    with pytest.raises(IsADirectoryError, match=r"cannot commit .*last\.pt: .*\.holdfast-token-last\.pt; remove that"):
        commit_record.claim(path, token(5))


def test_an_earlier_run_whose_clock_was_ahead_does_not_keep_this_one_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "last.pt"
    commit_record.claim(path, token(9000, 3))
    commit_record.claim(path, token(5000))
    assert "an earlier run had a clock that was ahead" in caplog.text
    with pytest.raises(LeaseLostError):
        commit_record.check(path, token(9000, 4))
