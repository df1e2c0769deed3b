"""What happens to a journal that is damaged, torn, or newer than we are?"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.journal_file import CACHE_KIB, SCHEMA_VERSION, NewerJournalError, open_for_writing
from supervisor.edges.machine.journal.journal_reader import open_reader
from tests.edges.machine.journal.journal_samples import Alarms, event, report, sequences, started


@pytest.mark.parametrize("damage", ["garbage", "torn", "overwritten"])
def test_a_damaged_file_is_set_aside_with_a_warning(tmp_path: Path, damage: str) -> None:
    with started(tmp_path) as journal:
        journal.save(report("old"))
        for sequence in range(1, 501):
            journal.record(event(sequence, "old"))
    path = tmp_path / "journal.db"
    content = path.read_bytes()
    match damage:
        case "garbage":
            path.write_bytes(b"this is no database" * 100)
        case "torn":
            path.write_bytes(content[: len(content) // 2])
        case _:
            path.write_bytes(content[:8192] + os.urandom(4096) + content[12288:])
    alarms = Alarms()
    with started(tmp_path, alarms) as journal:
        journal.save(report())
        journal.record(event(1))
        assert journal.flush(10)
    assert len(alarms) == 1
    assert "journal.db.corrupt-1" in alarms[0]
    assert (tmp_path / "journal.db.corrupt-1").exists()
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == [1]


def test_a_file_that_an_earlier_version_left_in_wal_mode_is_read_and_then_written_without(tmp_path: Path) -> None:
    with started(tmp_path) as journal:
        journal.save(report())
        journal.record(event(1))
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as earlier:
        assert earlier.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == [1]
        assert not (tmp_path / "journal.db-shm").exists()
    with started(tmp_path) as journal:
        journal.save(report())
        journal.record(event(2))
        assert journal.flush(10)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.db", "journal.db-journal", "journal.lock"]
        with open_reader(tmp_path) as reader:  # beside the supervisor that writes
            assert sequences(reader) == [1, 2]


def test_a_state_directory_may_have_any_name(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"a?b%41#\xff c")
    odd.mkdir()
    with started(odd) as journal:
        journal.save(report())
        journal.record(event(1))
    with open_reader(odd) as reader:
        assert sequences(reader) == [1]


def test_what_was_written_is_not_kept_in_memory(tmp_path: Path) -> None:
    """About 1,500 restarts fill SQLite's default of 2 MiB."""
    with contextlib.closing(open_for_writing(tmp_path / "journal.db")) as connection:
        assert connection.execute("PRAGMA cache_size").fetchone() == (-CACHE_KIB,)
        assert CACHE_KIB <= 256


def test_a_journal_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as newer:
        newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = (tmp_path / "journal.db").read_bytes()
    alarms = Alarms()
    journal = Journal(tmp_path, on_alarm=alarms)
    journal.start()
    journal.save(report())
    journal.record(event(1))
    alarms.wait(lambda heard: len(heard) == 1)
    assert "a newer Holdfast wrote it" in alarms[0]
    assert sequences(journal) == [1]  # from memory
    assert not journal.close()
    assert (tmp_path / "journal.db").read_bytes() == before
    with pytest.raises(NewerJournalError, match="schema 2"):
        open_reader(tmp_path)


def test_on_a_network_file_system_each_node_has_a_file_and_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network(path: Path) -> str:
        del path
        return "nfs4"

    monkeypatch.setattr("supervisor.edges.machine.network_folders.file_system", network)
    for number, node in enumerate(("n0", "n1"), 1):
        monkeypatch.setattr("platform.node", lambda node=node: node)
        with started(tmp_path) as journal:
            journal.save(report(f"job-{node}", submitted_at_ns=number))
            journal.record(event(1, f"job-{node}"))
        with contextlib.closing(sqlite3.connect(tmp_path / f"journal-{node}.db")) as written:
            assert written.execute("PRAGMA journal_mode").fetchone() == ("delete",)  # its own choice is not stored
    with open_reader(tmp_path) as reader:
        assert [each.job_id for each in reader.jobs()] == ["job-n1", "job-n0"]
        assert sequences(reader, "job-n0") == [1]
