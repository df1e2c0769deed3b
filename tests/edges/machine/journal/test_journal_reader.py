"""Can people ask about a finished job without a supervisor?"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal import journal_reader
from supervisor.edges.machine.journal.journal_reader import open_reader
from supervisor.errors import ConfigurationError
from tests.edges.machine.journal.journal_samples import event, report, sequences, started


def test_a_finished_job_can_be_read_without_a_supervisor(tmp_path: Path) -> None:
    ended = report(state=JobState.SUCCEEDED)
    with started(tmp_path) as journal:
        journal.save(report())
        for sequence in range(1, 4):
            journal.record(event(sequence))
        journal.save(ended)
    with open_reader(tmp_path) as reader:
        assert reader.jobs() == [ended]
        assert reader.job("train") == ended
        assert reader.job("other") is None
        assert reader.events("train") == [event(1), event(2), event(3)]
        assert sequences(reader, after=2) == [3]
    assert (tmp_path / "journal.db").stat().st_mode & 0o777 == 0o600


def test_the_newest_run_of_an_id_is_the_one_recorded_last(tmp_path: Path) -> None:
    """The clock was an hour ahead when the first one was submitted."""
    first, second = report(submitted_at_ns=4_000_000_000_000), report(submitted_at_ns=1_000_000_000_000)
    for each, reason in ((first, "the first"), (second, "the second")):
        with started(tmp_path) as journal:
            journal.save(each)
            journal.record(event(1, reason=reason))
    with open_reader(tmp_path) as reader:
        assert reader.recorded("train") == second
        assert [each.reason for each in reader.events("train")] == ["the second"]


def test_an_earlier_run_of_an_id_is_told_from_the_newest_by_its_submission(tmp_path: Path) -> None:
    first, second = report(submitted_at_ns=1_000), report(submitted_at_ns=2_000)
    for each, reason in ((first, "the first"), (second, "the second")):
        with started(tmp_path) as journal:
            journal.save(each)
            journal.record(event(1, reason=reason))
    with open_reader(tmp_path) as reader:
        assert reader.recorded("train", 1_000) == first
        assert [each.reason for each in reader.events("train", 1_000)] == ["the first"]
        assert (reader.recorded("train", 1_500), reader.events("train", 1_500)) == (None, [])


def test_an_empty_state_directory_reads_as_empty(tmp_path: Path) -> None:
    with open_reader(tmp_path / "absent") as reader:
        assert reader.jobs() == []
        assert reader.events("train") == []


def test_text_that_is_not_unicode_is_stored(tmp_path: Path) -> None:
    with started(tmp_path) as journal:
        journal.save(report())
        journal.record(event(1, reason="bad \udcff byte"))
    with open_reader(tmp_path) as reader:
        assert reader.events("train")[0].reason == "bad \\udcff byte"


def test_state_of_other_versions_reads_with_defaults() -> None:
    text = journal_reader.report_to_json(report())
    assert journal_reader.report_from_json(text.replace('"cycle":2', '"cycle":2,"later":1')) == report()


def test_a_broken_journal_is_a_clear_error_for_readers(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ConfigurationError, match=r"cannot read journal .*; the next supervisor sets it aside"):
        open_reader(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone checks whose a journal is")
def test_what_is_no_file_in_a_folder_of_roots_is_said_to_be_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "journal.db")
    with pytest.raises(ConfigurationError, match="it is not a regular file; move it away"):
        open_reader(tmp_path)


def test_a_journal_that_is_being_written_for_too_long_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path) as journal:
        journal.save(report())
    monkeypatch.setattr(journal_reader, "BUSY_TIMEOUT_S", 0.1)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigurationError, match=r"database is locked; .* the disk is slow; try again"):
            open_reader(tmp_path)


@pytest.mark.parametrize("damage", ["[" * 30_000, "{}", '{"recorded_by": 5}', "", "\\ud800"])
def test_a_row_that_can_not_be_read_hides_no_other_job(tmp_path: Path, damage: str) -> None:
    whole = report("whole", 2_000, JobState.SUCCEEDED)
    with started(tmp_path) as journal:
        journal.save(report())
        journal.record(event(1))
        journal.save(whole)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file, file:
        file.execute("UPDATE jobs SET report = ? WHERE job_id = 'train'", (damage,))
        file.execute("UPDATE events SET details = ?", (damage,))
    with open_reader(tmp_path) as reader:
        first, lost = reader.jobs()
        assert first == whole
        assert (lost.job_id, lost.state) == ("train", JobState.FAILED)
        assert "its record in the journal can't be read" in lost.reason
        ((name, _),) = reader.events("train")[0].details
        assert name == "unreadable"


def test_a_damaged_mark_of_the_writer_hides_no_report(tmp_path: Path) -> None:
    with started(tmp_path) as journal:
        journal.save(report())
    text = journal_reader.report_to_json(report()).replace('"recorded_by":""', '"recorded_by":[1]')
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file, file:
        file.execute("UPDATE jobs SET report = ?", (text,))
    with open_reader(tmp_path) as reader:
        assert reader.jobs() == [reader.recorded("train")] == [report()]
