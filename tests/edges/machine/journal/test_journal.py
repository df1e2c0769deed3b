"""Does recording never wait or crash, and lose nothing that memory can hold?"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
import time
from pathlib import Path

import msgspec
import pytest

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal import journal_reader, journal_writer
from supervisor.edges.machine.journal.journal import (
    MEMORY_EVENTS_PER_JOB_MAX,
    MEMORY_JOBS_MAX,
    READ_AT_ONCE,
    UNSAVED_JOBS_MAX,
    Journal,
)
from supervisor.edges.machine.journal.journal_batch import Batch
from supervisor.edges.machine.journal.journal_reader import open_reader, report_from_json
from supervisor.ports.reports import JobReport
from tests.edges.machine.journal.journal_samples import Alarms, event, report, sequences, started, unexpected


def test_nothing_is_opened_before_start_and_nothing_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path, on_alarm=unexpected)
    journal.save(report())
    journal.record(event(1))
    assert list(tmp_path.iterdir()) == []
    assert sequences(journal) == [1]
    journal.start()
    assert journal.flush(10)
    assert journal.close()
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == [1]


def test_without_a_thread_events_stay_in_memory_and_the_end_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms = Alarms()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        journal = Journal(tmp_path, on_alarm=alarms, starts_thread=True)
        journal.save(report())
        journal.record(event(1))
        assert not journal.flush(10)
        assert sequences(journal) == [1]
        assert not journal.close()
    assert "ulimit -u" in str(alarms)
    assert journal.close()
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == [1]


def test_an_event_that_more_jobs_get_in_one_turn_than_memory_holds_is_written_for_each(tmp_path: Path) -> None:
    """A daemon that is stopped records one for each of its jobs before it saves any of them."""
    names = [f"job-{number}" for number in range(MEMORY_JOBS_MAX + 50)]
    with started(tmp_path) as journal:
        for name in names:
            journal.record(event(1, name))
            journal.save(report(name))
        for name in names:
            journal.record(event(2, name, "stop"))
        for name in names:
            journal.save(report(name))
        assert journal.flush(10)
    with open_reader(tmp_path) as reader:
        assert [name for name in names if sequences(reader, name) != [1, 2]] == []


def test_events_of_jobs_that_are_never_saved_are_bounded(tmp_path: Path) -> None:
    names = [f"job-{number}" for number in range(2 * UNSAVED_JOBS_MAX)]
    with started(tmp_path) as journal:
        for name in names:
            journal.record(event(1, name))
        assert [name for name in names if journal.uncommitted(name)] == names[-UNSAVED_JOBS_MAX:]


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_events_wait_for_others_to_be_committed_with_them_unless_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[int] = []
    write = journal_writer.JournalWriter.write

    def written(self: journal_writer.JournalWriter, batch: Batch) -> str:
        committed.append(len(batch.events))
        return write(self, batch)

    monkeypatch.setattr(journal_writer.JournalWriter, "write", written)
    monkeypatch.setattr("supervisor.edges.machine.journal.journal.LINGER_S", 60.0)
    with started(tmp_path) as journal:
        for sequence in (1, 2, 3):
            journal.save(report())
            journal.record(event(sequence))
        assert journal.flush(10)
        assert committed == [3]
        journal.record(event(4))
        journal.record(event(5))
        assert journal.close(10)
        assert committed == [3, 2]


def test_uncommitted_events_are_readable_at_once_and_in_order(tmp_path: Path) -> None:
    with started(tmp_path) as journal:
        journal.save(report())
        for sequence in range(1, 3_001):
            journal.record(event(sequence))
            if sequence % 500 == 0:
                assert sequences(journal, after=sequence - 2) == [sequence - 1, sequence]
        assert journal.flush(10)
        assert sequences(journal) == list(range(1, 3_001))  # more than memory holds: disk and memory are merged
    assert MEMORY_EVENTS_PER_JOB_MAX < 3_000


def test_what_memory_has_needs_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(tmp_path) as journal:
        journal.save(report())
        last = MEMORY_EVENTS_PER_JOB_MAX + 9
        for sequence in range(1, last + 1):
            journal.record(event(sequence))
        assert journal.flush(10)
        with monkeypatch.context() as patch:
            patch.setattr(journal_reader, "open_reader", no_disk)
            assert sequences(journal, after=last - 2) == [last - 1, last]
            assert sequences(journal, after=last) == []
            assert journal.events_in_memory("train", after_sequence=last, limit=10) == []
            assert journal.events_in_memory("train", after_sequence=9, limit=1) == [event(10)]
            assert journal.events_in_memory("train", after_sequence=8, limit=1) is None
            assert journal.events_in_memory("another", after_sequence=0, limit=1) is None


def no_disk(_: Path) -> None:
    raise AssertionError("the disk is read")


@pytest.mark.alone
def test_recording_never_waits_for_the_disk(tmp_path: Path) -> None:
    with started(tmp_path) as journal:
        journal.save(report())
        assert journal.flush(10)
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            began = time.monotonic()
            for sequence in range(1, 1_001):
                journal.record(event(sequence))
            assert time.monotonic() - began < 1.0  # the busy timeout alone is 5 s
            assert sequences(journal)[-1] == 1_000
            other.execute("ROLLBACK")
        assert journal.flush(10)


def test_damage_on_the_way_keeps_what_memory_has(tmp_path: Path) -> None:
    alarms = Alarms()
    with started(tmp_path, alarms) as journal:
        journal.save(report())
        journal.record(event(1))
        assert journal.flush(10)
        path = tmp_path / "journal.db"
        path.unlink()  # another supervisor set it aside, or somebody removed it
        path.write_bytes(b"this is no database" * 100)
        journal.record(event(2))
        assert journal.flush(10)
        assert sequences(journal) == [1, 2]
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == [1, 2]
        assert reader.job("train") == report()


def test_a_full_disk_costs_one_alarm_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the file's pages gives SQLITE_FULL, as a full disk does."""
    monkeypatch.setattr("supervisor.edges.machine.journal.journal.RETRY_S", 0.05)
    full = threading.Event()
    full.set()
    opened = journal_writer.open_for_writing
    attempts = threading.Semaphore(0)

    def open_small(path: Path) -> sqlite3.Connection:
        attempts.release()
        connection = opened(path)
        if full.is_set():
            connection.execute("PRAGMA max_page_count = 8").fetchall()
        return connection

    monkeypatch.setattr(journal_writer, "open_for_writing", open_small)
    alarms = Alarms()
    with started(tmp_path, alarms) as journal:
        journal.save(report())
        for sequence in range(1, 1_001):
            journal.record(event(sequence, reason="x" * 100))
        alarms.wait(lambda heard: len(heard) == 1)
        assert "full" in alarms[0]
        assert not journal.flush(0.3)
        for _ in range(4 * journal_writer.ATTEMPTS):  # It tries again and again, and says nothing more.
            assert attempts.acquire(timeout=30)
        assert len(alarms) == 1
        assert sequences(journal) == list(range(1, 1_001))
        full.clear()
        alarms.wait(lambda heard: len(heard) == 2)
        assert journal.flush(10)
        assert "0 events were lost" in alarms[1]
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == list(range(1, 1_001))


def test_a_read_only_place_costs_one_alarm(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    alarms = Alarms()
    journal = Journal(blocked / "state", on_alarm=alarms)
    journal.start()
    journal.save(report())
    journal.record(event(1))
    alarms.wait(lambda heard: len(heard) == 1)
    assert journal.job("train") == report()
    assert sequences(journal) == [1]
    assert not journal.close()


def test_memory_is_bounded_when_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.edges.machine.journal.journal.PENDING_EVENTS_MAX", 50)
    journal = Journal(tmp_path, on_alarm=unexpected)
    journal.save(report())
    for sequence in range(1, 201):
        journal.record(event(sequence))
    assert journal.close(10)
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == list(range(151, 201))


def test_events_before_the_first_save_belong_to_it(tmp_path: Path) -> None:
    with started(tmp_path) as journal:
        for round_number in (1, 2):  # the second time with the same id
            journal.record(event(1, reason=f"round {round_number}"))
            assert [each.reason for each in journal.events("train", limit=10)] == [f"round {round_number}"]
            journal.save(report(submitted_at_ns=round_number, state=JobState.SUCCEEDED))
            journal.record(event(2))
    with open_reader(tmp_path) as reader:
        assert [each.submitted_at_ns for each in reader.jobs()] == [2, 1]
        assert [each.reason for each in reader.events("train")] == ["round 2", "because"]


def test_a_run_after_one_of_which_only_the_end_is_known_begins_with_its_own_first_event(tmp_path: Path) -> None:
    later = msgspec.structs.replace(event(1), at_ns=10_000)
    with started(tmp_path) as journal:
        journal.save(report(state=JobState.FAILED))  # by a supervisor that could not take it over
        journal.record(later)
        journal.save(report(submitted_at_ns=2_000))
        assert journal.flush(10)
        with open_reader(tmp_path) as reader:
            assert reader.events("train") == [later]
            assert [each.submitted_at_ns for each in reader.jobs()] == [2_000, 1_000]


def test_of_two_runs_the_later_is_the_newest_though_the_first_is_written_after_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.edges.machine.journal.journal.RETRY_S", 0.05)
    write = journal_writer.JournalWriter.write
    later = report(submitted_at_ns=2_000)
    alarms = Alarms()

    def fails_once(self: journal_writer.JournalWriter, batch: Batch) -> str:
        if not alarms:
            journal.save(later)
            return "cannot write the journal: it is busy"
        return write(self, batch)

    monkeypatch.setattr(journal_writer.JournalWriter, "write", fails_once)
    with started(tmp_path, alarms) as journal:
        journal.save(report(state=JobState.SUCCEEDED))
        alarms.wait(lambda heard: len(heard) == 2)
        assert journal.flush(10)
        assert journal.recorded("train") == later
        assert len(list(journal.jobs())) == 2


def test_the_order_of_runs_survives_a_file_that_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = journal_writer.JournalWriter.write
    runs = [report(submitted_at_ns=at_ns, state=JobState.SUCCEEDED) for at_ns in (2_000, 3_000)]

    def begins_anew_once(self: journal_writer.JournalWriter, batch: Batch) -> str:
        while runs:
            self.began_anew = True
            journal.save(runs.pop(0))
        return write(self, batch)

    monkeypatch.setattr(journal_writer.JournalWriter, "write", begins_anew_once)
    with started(tmp_path) as journal:
        journal.save(report(state=JobState.SUCCEEDED))
        assert journal.flush(10)
        assert (newest := journal.recorded("train")) is not None
        assert newest.submitted_at_ns == 3_000


def test_a_list_decodes_few_jobs_more_than_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 256 ranks takes milliseconds, and a page of a list has only some of a thousand."""
    names = [f"job-{number:03}" for number in range(3 * READ_AT_ONCE)]
    with started(tmp_path) as journal:
        for number, name in enumerate(names):
            journal.save(report(name, number // 2, JobState.SUCCEEDED))  # two of each moment
        assert journal.flush(10)
    decoded: list[str] = []

    def counted(text: str) -> JobReport:
        decoded.append(text)
        return report_from_json(text)

    monkeypatch.setattr(journal_reader, "report_from_json", counted)
    successor = Journal(tmp_path, on_alarm=unexpected)  # It has nothing in memory.
    successor.save(report("newest", 1_000))
    page = list(itertools.islice(successor.jobs(), 4))
    assert [each.job_id for each in page] == ["newest", *names[:-4:-1]]
    assert len(decoded) == READ_AT_ONCE
    assert [each.job_id for each in successor.jobs(below=page[-1].list_key)] == names[-4::-1]
