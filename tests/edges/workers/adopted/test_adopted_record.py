"""What a supervisor that died leaves to the next one: whom it had met, so that those who ended since are missed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast_wire.private_folder import RANKS_FILE

from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.adopted.adopted_record import AdoptedRecord


def test_who_lives_is_not_among_those_that_ended(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        record = AdoptedRecord(tmp_path)
        record.note(0, os.getpid())
        record.note(3, process.pid)
        assert record.ended() == {}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert record.ended() == {3: process.pid}  # Its parent has not looked yet.
    assert AdoptedRecord(tmp_path).ended() == {3: process.pid}


def test_another_process_of_the_same_number_is_another(tmp_path: Path):
    entry = process_table.look_up(os.getpid())
    assert entry is not None
    (tmp_path / RANKS_FILE).write_text(f"2 {os.getpid()} {entry.started_ticks - 1}\n")
    record = AdoptedRecord(tmp_path)
    assert record.ended() == {2: os.getpid()}
    record.note(2, os.getpid())
    assert record.ended() == {}


def test_what_cannot_be_read_or_written_is_nothing(tmp_path: Path):
    (tmp_path / RANKS_FILE).write_bytes(b"\xff\n1 2\n\nx y z\n")
    assert AdoptedRecord(tmp_path).ended() == {}
    AdoptedRecord(tmp_path / "nowhere").note(0, os.getpid())
    assert AdoptedRecord(tmp_path / "nowhere").ended() == {}
