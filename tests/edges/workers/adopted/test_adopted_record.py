"""What does a dead supervisor leave to its successor? The ranks that it had met, so that their ends are noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast_wire.private_supervisor import RANKS_FILE

from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.adopted.adopted_record import AdoptedRecord


def ended(record: AdoptedRecord) -> dict[int, int]:
    """Returns the pids of ended ranks, by local rank."""
    known = record.known()
    for each in known:
        if each.pidfd >= 0:
            assert signal.pidfd_send_signal(each.pidfd, 0) is None  # it belongs to a live process
            os.close(each.pidfd)
    return {each.local_rank: each.pid for each in known if each.pidfd < 0}


def test_who_lives_is_not_among_those_that_ended(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        record = AdoptedRecord(tmp_path)
        record.note(0, os.getpid())
        record.note(3, process.pid)
        assert ended(record) == {}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ended(record) == {3: process.pid}  # its parent has not reaped it yet
    assert ended(AdoptedRecord(tmp_path)) == {3: process.pid}


def test_another_process_of_the_same_number_is_another(tmp_path: Path):
    entry = process_table.look_up(os.getpid())
    assert entry is not None
    (tmp_path / RANKS_FILE).write_text(f"2 {os.getpid()} {entry.started_ticks - 1}\n")
    record = AdoptedRecord(tmp_path)
    assert ended(record) == {2: os.getpid()}
    record.note(2, os.getpid())
    assert ended(record) == {}


def test_what_cannot_be_read_or_written_is_nothing(tmp_path: Path):
    (tmp_path / RANKS_FILE).write_bytes(b"\xff\n1 2\n\nx y z\n")
    assert ended(AdoptedRecord(tmp_path)) == {}
    AdoptedRecord(tmp_path / "nowhere").note(0, os.getpid())
    assert ended(AdoptedRecord(tmp_path / "nowhere")) == {}
