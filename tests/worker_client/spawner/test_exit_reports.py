"""What is reported about a worker that has ended, and where does its last error come from?"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from worker_client.spawner import exit_reports
from worker_client.spawner.fork_and_exec import Child
from worker_client.spawner.reaping import Ending

TAIL = b"Traceback (most recent call last):\n  File 'x'\nRuntimeError: from its stderr\n"
FAILED = Ending(77, 1, None, core_dumped=False)


@pytest.fixture
def child() -> Child:
    return Child(cycle=1, local_rank=2, pid=77, pidfd=-1, memory=None)


def test_it_says_who_ended_and_how(child: Child) -> None:
    exited = exit_reports.exited(child, Ending(77, None, 11, core_dumped=True), 5, b"")
    assert (exited.cycle, exited.local_rank, exited.pid, exited.at_ns) == (1, 2, 77, 5)
    assert (exited.code, exited.signal, exited.core_dumped, exited.out_of_memory) == (None, 11, True, False)


def test_its_own_record_is_believed_before_what_it_printed(child: Child, tmp_path: Path) -> None:
    child.error_file = str(tmp_path / "error.json")
    assert exit_reports.exited(child, FAILED, 5, TAIL).error == "RuntimeError: from its stderr", "there is none yet"
    Path(child.error_file).write_text(json.dumps({"message": "ValueError: from its record"}))
    exited = exit_reports.exited(child, FAILED, 5, TAIL)
    assert exited.error == "ValueError: from its record"
    assert exited.error_at_unix_s == os.stat(child.error_file).st_mtime


def test_a_stderr_that_is_a_file_is_read_where_nothing_came_through_the_spawner(child: Child, tmp_path: Path) -> None:
    child.stderr_file = str(tmp_path / "stderr")
    Path(child.stderr_file).write_bytes(TAIL.replace(b"its stderr", b"its file"))
    assert exit_reports.exited(child, FAILED, 5, b"").error == "RuntimeError: from its file"
    assert exit_reports.exited(child, FAILED, 5, TAIL).error == "RuntimeError: from its stderr"


def always_full(logs: Sequence[str], command: Sequence[str]) -> str:
    return "a full disk"


def test_no_disk_is_asked_after_a_kill_since_one_that_hangs_may_be_why(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_reports.full_disks, "named", always_full)
    child.stderr_file = str(tmp_path / "silent")
    ends = [(None, signal.SIGKILL), (None, signal.SIGTERM), (None, signal.SIGBUS), (1, None)]
    told = [exit_reports.exited(child, Ending(77, *end, core_dumped=False), 5, b"").error for end in ends]
    assert ["a full disk" in each for each in told] == [False, False, True, True]


def test_a_worker_that_succeeded_has_no_last_error(child: Child, tmp_path: Path) -> None:
    child.error_file = str(tmp_path / "error.json")
    Path(child.error_file).write_text(json.dumps({"message": "ValueError: of an earlier one"}))
    exited = exit_reports.exited(child, Ending(77, 0, None, core_dumped=False), 5, TAIL)
    assert (exited.error, exited.error_at_unix_s) == ("", None)
