"""The supervisor's words about a job, in the file that its user named."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from pathlib import Path

import pytest
from holdfast_wire import moved_log_file
from holdfast_wire.moved_log_file import GONE

from supervisor.edges.machine.logs.job_log import JobLog, JobLogPlace
from tests.e2e.launch import wait_until


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    logger = logging.getLogger("holdfast")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    return logging.getLogger("holdfast.jobs")


def test_words_about_a_job_reach_its_file_and_those_about_others_do_not(tmp_path: Path, log: logging.Logger) -> None:
    path = tmp_path / "new" / "nvrx.log"
    words = JobLog(lambda job_id: JobLogPlace(str(path) if job_id == "j" else ""), "n1")
    words.open()
    log.debug("rank %d was\nlost", 3, extra={"job_id": "j", "cycle": 2, "rank": 3})
    log.info("another job", extra={"job_id": "k"})
    log.info("no job")
    words.close()
    log.info("too late", extra={"job_id": "j"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z n1 DEBUG cycle=2 rank=3 rank 3 was\n    lost\n", path.read_text())


def test_a_second_run_appends(tmp_path: Path, log: logging.Logger) -> None:
    path = tmp_path / "nvrx.log"
    for text in ("one", "two"):
        words = JobLog(lambda _: JobLogPlace(str(path)), "n1")
        words.open()
        log.info(text, extra={"job_id": "j"})
        words.close()
    assert [line.rpartition(" ")[2] for line in path.read_text().splitlines()] == ["one", "two"]


def test_a_file_that_was_moved_away_is_begun_anew(
    tmp_path: Path, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moved_log_file, "LOOK_S", 0.0)
    path = tmp_path / "nvrx.log"
    words = JobLog(lambda _: JobLogPlace(str(path)), "n1")
    words.open()
    log.info("one", extra={"job_id": "j"})
    wait_until(lambda: path.exists() and path.read_text().endswith("one\n"), timeout_s=20, what="the first line")
    path.rename(tmp_path / "nvrx.log.1")
    log.info("two", extra={"job_id": "j"})
    words.close()
    assert path.read_bytes().startswith(GONE)
    assert path.read_text().endswith("two\n")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_file_that_its_server_has_lost_is_opened_again(
    tmp_path: Path, log: logging.Logger, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "nvrx.log"
    words = JobLog(lambda _: JobLogPlace(str(path)), "n1")
    words.open()
    log.info("one", extra={"job_id": "j"})
    wait_until(lambda: path.exists() and path.read_text().endswith("one\n"), timeout_s=20, what="the first line")
    real_write, real_open, refused, opened = os.write, os.open, threading.Event(), list[str]()

    def write(fd: int, data: bytes) -> int:
        if data.endswith(b"two\n"):
            refused.set()
            raise OSError(number, os.strerror(number))
        return real_write(fd, data)

    def note_open(name: str, flags: int, mode: int = 0o777) -> int:
        opened.append(name)
        return real_open(name, flags, mode)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "open", note_open)
    log.info("two", extra={"job_id": "j"})
    assert refused.wait(20)
    log.info("three", extra={"job_id": "j"})
    words.close()
    assert opened.count(str(path)) == 1
    assert [line.rpartition(" ")[2] for line in path.read_text().splitlines()] == ["one", "three"]


def test_a_file_that_can_not_be_written_is_one_warning(
    tmp_path: Path, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    words = JobLog(lambda _: JobLogPlace(str(tmp_path)), "n1")
    words.open()
    log.info("one", extra={"job_id": "j"})
    log.info("two", extra={"job_id": "j"})
    words.close()
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [f"cannot write {tmp_path}: Is a directory; check --ft-nvrx-logfile"]


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_lines_are_counted_and_the_next_one_tries_again(
    tmp_path: Path, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nvrx.log"
    words = JobLog(lambda _: JobLogPlace(str(path)), "n1")
    words.open()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        log.info("lost", extra={"job_id": "j"})
    log.info("kept", extra={"job_id": "j"})
    words.close()
    assert [line.rpartition(" ")[2] for line in path.read_text().splitlines()] == ["slow", "kept"]
