"""Are the supervisor's words on one line for people, in a file for each job, and never in the way?"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.edges.machine.logs import supervisor_log
from supervisor.edges.machine.logs.supervisor_log import SupervisorLog
from tests.e2e.launch import wait_until

LOGGER = logging.getLogger("holdfast.jobs")


@contextmanager
def opened(log_dir: Path, stream: io.TextIOBase, level: int = logging.INFO) -> Generator[SupervisorLog]:
    log = SupervisorLog(log_dir, level=level, stream=stream)  # pyright: ignore[reportArgumentType]
    log.open()
    try:
        yield log
    finally:
        log.close()


def test_people_read_one_line_with_the_ids(tmp_path: Path) -> None:
    seen = io.StringIO()
    with opened(tmp_path, seen):
        LOGGER.info("rank 1 was\nkilled", extra={"job_id": "train", "cycle": 2, "rank": 1})
        LOGGER.info("cycle 3 starts", extra={"job_id": "train", "cycle": 3, "rank": None})
        LOGGER.warning("the journal cannot be written")
        LOGGER.debug("only for the file", extra={"job_id": "train"})
    assert seen.getvalue().splitlines() == [
        "holdfast: job train cycle 2 rank 1: rank 1 was killed",
        "holdfast: job train cycle 3: cycle 3 starts",
        "holdfast: warning: the journal cannot be written",
    ]


def test_no_word_of_a_job_controls_a_terminal_that_shows_the_log(tmp_path: Path) -> None:
    seen = io.StringIO()
    with opened(tmp_path, seen):
        LOGGER.info("said \x1b]0;x\x07\x9b1m\u202e", extra={"job_id": "a"})
    for text in (seen.getvalue(), (tmp_path / "a" / "supervisor.log").read_text()):
        assert r"said \x1b]0;x\x07\x9b1m\x202e" in text
        assert text.rstrip("\n").isprintable()


def test_each_job_has_a_file_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "logs", io.StringIO(), level=logging.ERROR):
        LOGGER.info("began", extra={"job_id": "a", "cycle": 0, "kind": "cycle_started"})
        LOGGER.debug("detail", extra={"job_id": "b"})
        LOGGER.info("of no job")
    path = tmp_path / "logs" / "a" / "supervisor.log"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\S+Z INFO cycle=0 kind=cycle_started began\n", path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "logs" / "b" / "supervisor.log").read_text().endswith("DEBUG detail\n")
    assert sorted(each.name for each in (tmp_path / "logs").iterdir()) == ["a", "b"]


def test_a_file_has_a_cap_and_one_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_log, "FILE_BYTES_MAX", 1_000)
    with opened(tmp_path, io.StringIO()):
        for number in range(100):
            LOGGER.info("line %d %s", number, "x" * 50, extra={"job_id": "a"})
    files = sorted((tmp_path / "a").iterdir())
    assert [each.name for each in files] == ["supervisor.log", "supervisor.log.1"]
    assert sum(each.stat().st_size for each in files) <= 2_000
    assert "line 99" in files[0].read_text()


def test_many_jobs_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_log, "OPEN_FILES_MAX", 3)
    before = len(os.listdir("/proc/self/fd"))
    most = 0

    class Counting(io.StringIO):
        def write(self, text: str) -> int:
            nonlocal most
            most = max(most, len(os.listdir("/proc/self/fd")))
            return super().write(text)

    with opened(tmp_path, Counting()):
        for turn in range(2):
            for number in range(10):
                LOGGER.info("turn %d", turn, extra={"job_id": f"job-{number}"})
    assert before < most <= before + 4  # one of them belongs to the listing itself
    assert (tmp_path / "job-0" / "supervisor.log").read_text().count("turn") == 2


class Stuck(io.StringIO):
    """A terminal stopped with Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        assert self.free.wait(20)
        return super().write(text)


def test_a_stuck_terminal_does_not_block_and_is_told_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_log, "WAITING_RECORDS_MAX", 10)
    seen = Stuck()
    with opened(tmp_path, seen):
        for number in range(100):
            LOGGER.info("line %d", number)  # returns although nobody reads
        seen.free.set()
    assert "lines of this log were dropped" in seen.getvalue()


def test_a_place_that_cannot_be_written_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").touch()
    with opened(tmp_path / "logs", io.StringIO()):
        for _ in range(3):
            LOGGER.info("words", extra={"job_id": "a"})
    assert capsys.readouterr().err.count("cannot write supervisor.log") == 1


def test_a_pipe_that_nobody_reads_holds_up_neither_files_nor_the_end(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "w") as stderr:
        with opened(tmp_path, stderr):  # pyright: ignore[reportArgumentType]
            for number in range(100):
                LOGGER.info("line %d", number, extra={"job_id": "a"})
            wait_until(lambda: (tmp_path / "a" / "supervisor.log").exists(), timeout_s=10, what="the file")
            wait_until(
                lambda: (tmp_path / "a" / "supervisor.log").read_text().count("line") == 100,
                timeout_s=10, what="all lines in the file",
            )  # fmt: skip
            pipe.read1(1 << 20)
            LOGGER.info("last", extra={"job_id": "a"})
        stderr.close()
        told = pipe.read().decode()
    assert "job a: last" in told
    assert re.search(r"holdfast: warning: (99|100) lines of this log were dropped", told)
