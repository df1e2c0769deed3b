"""Does a filter of the script that raises, or a handler that hangs, reach the client?"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.worker_client.inprocess.ranks import ran
from worker_client import guarded_log
from worker_client.guarded_log import GuardedLog


class Rank(logging.Filter):
    """Like the many that ask torch for the rank of a group that is not there."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise ValueError("Default process group has not been initialized")


def test_a_line_is_lost_and_nothing_else(caplog: pytest.LogCaptureFixture):
    log, refused = GuardedLog("holdfast.test"), Rank()
    caplog.handler.addFilter(refused)
    for say in (log.debug, log.info, log.warning, log.error, log.exception):
        say("a %s", "word")
    caplog.handler.removeFilter(refused)
    assert caplog.records == []
    log.warning("a %s", "word")
    (record,) = caplog.records
    assert (record.getMessage(), record.name, record.filename) == ("a word", "holdfast.test", Path(__file__).name)


def test_all_ranks_restart_whatever_the_script_s_filter_raises(tmp_path: Path):
    job = ran(tmp_path, "a_filter_raises", 2)
    for rank in (0, 1):
        assert job.told(rank, "fn", "returned") == ["fn", "fn", "returned"]


def test_a_line_says_where_it_was_logged_and_in_which_thread_with_its_error(caplog: pytest.LogCaptureFixture):
    try:
        raise ValueError("by intention")
    except ValueError:
        GuardedLog("holdfast.test").exception("a word")
    (record,) = caplog.records
    here = Path(__file__).name, threading.current_thread().name
    assert (record.filename, record.threadName, record.funcName) == (*here, record.funcName)
    assert record.funcName.startswith("test_a_line_says")
    assert "ValueError: by intention" in caplog.text


def test_a_handler_that_hangs_is_waited_for_only_briefly(monkeypatch: pytest.MonkeyPatch):
    class Hanging(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            may_end.wait()
            written.append(record.getMessage())

    monkeypatch.setattr(guarded_log, "LINE_TIMEOUT_S", 0.05)
    may_end, written, log = threading.Event(), list[str](), GuardedLog("holdfast.test")
    log.logger.addHandler(hanging := Hanging())
    try:
        for number in range(3):
            log.warning("line %d", number)
        assert written == []
    finally:
        may_end.set()
        for thread in threading.enumerate():
            if thread.name == "holdfast-log":
                thread.join()
        log.logger.removeHandler(hanging)
    assert sorted(written) == ["line 0", "line 1", "line 2"]


AT_THE_END = """
import sys
from worker_client.guarded_log import GuardedLog

class Client:
    def __del__(self, say=GuardedLog("holdfast").warning, is_finalizing=sys.is_finalizing):
        say("dropped %s", is_finalizing())

kept = Client()
"""


def test_a_destructor_can_log_when_python_ends():
    """There are no more threads by then."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END], check=False, capture_output=True, text=True, timeout=30)
    assert done.stderr == "dropped True\n"


def test_all_ranks_restart_though_no_line_can_be_written(tmp_path: Path):
    """Both the rank that fails and the one that hangs have a line to write before they can go on."""
    job = ran(tmp_path, "a_handler_hangs", 2)
    for rank in (0, 1):
        assert job.told(rank, "fn", "returned") == ["fn", "fn", "returned"]
