"""Do several supervisors share one file, and does it stay within its caps?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal import journal_writer
from supervisor.edges.machine.journal.journal_reader import open_reader
from tests.edges.machine.journal.journal_samples import event, report, sequences, started

WRITER = """
import sys
from pathlib import Path
from tests.edges.machine.journal.journal_samples import event, report, started
with started(Path(sys.argv[1])) as journal:
    journal.save(report(sys.argv[2]))
    for sequence in range(1, 301):
        journal.record(event(sequence, sys.argv[2]))
        if sequence % 20 == 0:
            assert journal.flush(30)
"""


def test_supervisors_share_one_file(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    names = ["a", "b", "c"]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], cwd=root) for name in names]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    with open_reader(tmp_path) as reader:
        assert sorted(each.job_id for each in reader.jobs()) == names
        for name in names:
            assert sequences(reader, name) == list(range(1, 301))


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    script = WRITER.replace("if sequence % 20", "if sequence == 200:\n            assert journal.flush(30)\n"
                            "            import os; os.kill(os.getpid(), 9)\n        if sequence % 20")  # fmt: skip
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), "train"], cwd=root, check=False)
    assert done.returncode == -9
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == list(range(1, 201))
    with started(tmp_path) as journal:  # the next supervisor continues where that one stopped
        journal.save(report())
        journal.record(event(201))
    with open_reader(tmp_path) as reader:
        assert sequences(reader) == list(range(1, 202))


def test_an_id_used_again_starts_a_new_history(tmp_path: Path) -> None:
    with started(tmp_path) as journal:
        journal.save(report(state=JobState.FAILED))
        journal.record(event(1, reason="old"))
        journal.save(report(submitted_at_ns=5_000))
        journal.record(event(1, reason="new"))
        assert [each.reason for each in journal.events("train", limit=10)] == ["new"]
    with open_reader(tmp_path) as reader:
        assert [each.submitted_at_ns for each in reader.jobs()] == [5_000, 1_000]
        assert [each.reason for each in reader.events("train")] == ["new"]


def test_old_jobs_and_events_are_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "JOBS_MAX", 5)
    monkeypatch.setattr(journal_writer, "EVENTS_MAX", 60)
    monkeypatch.setattr(journal_writer, "EVENTS_PER_JOB_MAX", 40)
    monkeypatch.setattr(journal_writer, "PRUNE_EVERY_EVENTS", 1)
    with started(tmp_path) as journal:
        journal.save(report("live", submitted_at_ns=1))
        for sequence in range(1, 51):
            journal.record(event(sequence, "live"))
        assert journal.flush(10)
        for number in range(10):
            journal.save(report(f"job-{number}", submitted_at_ns=10 + number, state=JobState.SUCCEEDED))
            for sequence in range(1, 6):
                journal.record(event(sequence, f"job-{number}"))
            assert journal.flush(10)
    with open_reader(tmp_path) as reader:
        kept = [each.job_id for each in reader.jobs()]
        assert kept == ["job-9", "job-8", "job-7", "job-6", "job-5", "live"]
        assert sequences(reader, "live") == list(range(11, 51))
        assert sequences(reader, "job-9") == [1, 2, 3, 4, 5]
        assert sequences(reader, "job-5") == []  # the oldest are pruned first
