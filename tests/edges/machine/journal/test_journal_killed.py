"""Supervisors killed at any moment leave a journal that is readable at once and complete up to some event."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edges.machine.journal.journal_reader import open_reader
from tests.edges.machine.journal.journal_samples import sequences

pytestmark = pytest.mark.timeout(120)

EVENTS_SEEN_MAX = 80

# Each child is a supervisor that writes until it is killed.
WRITERS = """
import os, signal, sys
from pathlib import Path
from supervisor.edges.machine.journal import journal_writer  # loaded once, for all children
from supervisor.edges.machine.journal.journal import Journal
from tests.edges.machine.journal.journal_samples import event, report, unexpected

for line in sys.stdin:
    submitted_at_ns = int(line)
    pid = os.fork()
    if pid == 0:
        journal = Journal(Path("state"), on_alarm=unexpected)
        journal.start()
        sequence = 0
        while True:
            sequence += 1
            journal.save(report(submitted_at_ns=submitted_at_ns))
            journal.record(event(sequence, reason="x" * (sequence % 997)))
            journal.flush(10 if sequence % 7 == 0 else 0.0)
    print(pid, flush=True)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    print("killed", flush=True)
"""


@pytest.mark.parametrize("rounds", [10, pytest.param(40, marks=pytest.mark.soak)])
def test_a_journal_is_readable_whenever_its_supervisor_is_killed(tmp_path: Path, rounds: int) -> None:
    dice = random.Random(6)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    root = Path(__file__).parents[4]
    writers = subprocess.Popen(
        [sys.executable, "-c", WRITERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{root}:{root}/proto"},
    )  # fmt: skip
    assert writers.stdin is not None
    assert writers.stdout is not None
    try:
        for round_number in range(1, rounds + 1):
            writers.stdin.write(f"{round_number}\n")
            writers.stdin.flush()
            pid = int(writers.stdout.readline())
            wanted = dice.randint(1, EVENTS_SEEN_MAX)
            while len(seen_by_reader(state, round_number)) < wanted:  # each check is that of a reader beside the writer
                pass
            os.kill(pid, signal.SIGKILL)
            assert writers.stdout.readline() == "killed\n"
            assert len(seen_by_reader(state, round_number)) >= wanted
    finally:
        writers.stdin.close()
        writers.wait(20)
        writers.stdout.close()
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as found:
        assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert found.execute("SELECT count(*) FROM jobs").fetchone() == (rounds,)
    left = {path.name for path in state.iterdir()}
    assert left - {"journal.db-journal"} == {"journal.db", "journal.lock"}  # SQLite may keep its own, or remove it


def seen_by_reader(state: Path, submitted_at_ns: int) -> list[int]:
    """Returns the events of that run if it is the journal's newest; without gaps."""
    with open_reader(state) as reader:
        report = reader.job("train")
        if report is None or report.submitted_at_ns != submitted_at_ns:
            return []
        seen = sequences(reader)
    assert seen == list(range(1, len(seen) + 1))
    return seen
