"""What does the journal get? A socket plays it."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import pytest

from supervisor.edges.machine.logs import journald
from supervisor.edges.machine.logs.journald import JournaldHandler


def _read(data: bytes) -> dict[str, str]:
    """Parses a message as systemd-journald does."""
    fields: dict[str, str] = {}
    while data:
        name, _, rest = data.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            fields[key.decode()], data = value.decode(), rest
        else:
            length = int.from_bytes(rest[:8], "little")
            fields[name.decode()], data = rest[8 : 8 + length].decode(), rest[9 + length :]
    return fields


@pytest.fixture
def journal(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "journal"))
        listener.settimeout(10)
        yield listener


def _record(level: int, text: str, **ids: object) -> logging.LogRecord:
    record = logging.LogRecord("holdfast.events", level, "", 0, text, (), None)
    record.__dict__.update(ids)
    return record


def test_job_and_rank_are_fields(journal: socket.socket):
    handler = JournaldHandler(journal.getsockname())
    handler.handle(_record(logging.WARNING, "rank 3 was killed", job_id="train", rank=3, cycle=2, kind="worker_failed"))
    assert _read(journal.recv(70_000)) == {
        "MESSAGE": "rank 3 was killed",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "holdfast",
        "LOGGER": "holdfast.events",
        "JOB_ID": "train",
        "RANK": "3",
        "CYCLE": "2",
        "HOLDFAST_EVENT": "worker_failed",
    }
    handler.close()


def test_a_text_of_several_lines_adds_no_field_of_its_own(journal: socket.socket):
    handler = JournaldHandler(journal.getsockname())
    handler.handle(_record(logging.ERROR, "first\n_UID=0\nMESSAGE=forged", job_id="a\nRANK=7"))
    fields = _read(journal.recv(70_000))
    assert (fields["MESSAGE"], fields["JOB_ID"]) == ("first\n_UID=0\nMESSAGE=forged", "a\nRANK=7")
    assert not {"_UID", "RANK"} & set(fields)
    handler.close()


def test_what_is_too_long_is_shortened(journal: socket.socket):
    handler = JournaldHandler(journal.getsockname())
    handler.handle(_record(logging.INFO, "x" * 200_000))
    assert len(_read(journal.recv(70_000))["MESSAGE"]) == 4096
    handler.close()


def test_without_a_journal_nothing_blocks_or_raises(tmp_path: Path):
    handler = JournaldHandler(str(tmp_path / "nobody"))
    handler.handle(_record(logging.INFO, "hello"))
    assert handler.lost == 1
    handler.close()


def test_the_journal_is_behind_stderr_only_if_systemd_says_so(tmp_path: Path):
    found = os.fstat(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)
    stream = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    assert not journald.is_stderr(stream, str(tmp_path / "nobody"))
    assert journald.is_stderr(stream, str(tmp_path))
    assert not journald.is_stderr({"JOURNAL_STREAM": "1:1"})
    assert not journald.is_stderr({})
