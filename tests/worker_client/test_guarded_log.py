"""Does a filter of the script that raises, or a handler that hangs, reach the client?"""

from __future__ import annotations

import contextvars
import gc
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
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


def test_a_filter_finds_the_context_of_who_logs(caplog: pytest.LogCaptureFixture):
    step = contextvars.ContextVar[int]("step")

    def note_step(record: logging.LogRecord) -> bool:
        record.msg = f"step {step.get()}: {record.msg}"
        return True

    step.set(7)
    caplog.handler.addFilter(note_step)
    try:
        GuardedLog("holdfast.test").warning("a word")
    finally:
        caplog.handler.removeFilter(note_step)
    assert caplog.messages == ["step 7: a word"]


class Hanging(logging.Handler):
    """Writes nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write, self.written = threading.Event(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.may_write.wait()
        self.written.append(record.getMessage())


def test_a_handler_that_hangs_is_waited_for_once_and_briefly_and_gets_all_lines_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guarded_log, "LINE_TIMEOUT_S", 0.1)
    log, hanging = GuardedLog("holdfast.test"), Hanging()
    log.logger.addHandler(hanging)
    try:
        began_s = time.monotonic()
        for number in range(100):
            log.warning("line %d", number)
        assert time.monotonic() - began_s < 2.0
        assert [each.name for each in threading.enumerate()].count("holdfast-log") == 1
        hanging.may_write.set()
        monkeypatch.setattr(guarded_log, "LINE_TIMEOUT_S", 30)
        while len(hanging.written) < 100:
            log.debug("not enabled")
        log.warning("a later line")
    finally:
        hanging.may_write.set()
        log.logger.removeHandler(hanging)
    assert hanging.written == [*(f"line {number}" for number in range(100)), "a later line"]


def test_lines_that_wait_for_a_handler_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guarded_log, "LINE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(guarded_log, "LINES_MAX", 3)
    log, hanging = GuardedLog("holdfast.test"), Hanging()
    log.logger.addHandler(hanging)
    try:
        for number in range(10):
            log.warning("line %d", number)
        hanging.may_write.set()
        monkeypatch.setattr(guarded_log, "LINE_TIMEOUT_S", 30)
        log.warning("a later line")
        while "a later line" not in hanging.written and len(hanging.written) < 4:
            pass
    finally:
        hanging.may_write.set()
        log.logger.removeHandler(hanging)
    assert hanging.written[:4] == ["line 0", "line 1", "line 2", "line 3"]


def test_no_thread_is_left_once_a_line_is_written():
    """The script's own count of threads is as it was."""
    for _ in range(100):
        GuardedLog("holdfast.test").warning("a word")
        assert "holdfast-log" not in [each.name for each in threading.enumerate()]


def test_no_line_of_many_threads_is_lost_or_waits_for_a_later_one(caplog: pytest.LogCaptureFixture):
    def log_all(of: int) -> None:
        for number in range(200):
            GuardedLog("holdfast.test").warning("%d of %d", number, of)

    threads = [threading.Thread(target=log_all, args=(of,)) for of in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until_s = time.monotonic() + 10
    while len(caplog.messages) < 800 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert sorted(caplog.messages) == sorted(f"{number} of {of}" for number in range(200) for of in range(4))


def test_a_line_keeps_no_error_once_it_is_written():
    """Its frames have the process groups and tensors of what has failed."""

    class Held:
        pass

    def fail(held: Held) -> None:
        raise ValueError(f"by intention, not {held}")

    held = Held()
    is_kept = weakref.ref(held)
    try:
        fail(held)
    except ValueError as error:
        GuardedLog("holdfast.lines-that-nobody-keeps").logger.propagate = False
        GuardedLog("holdfast.lines-that-nobody-keeps").warning("cannot go on: %s", error)
    del held
    gc.collect()
    assert is_kept() is None


def test_a_forked_process_logs_too():
    """A DataLoader's worker has no thread but its own."""
    log = GuardedLog("holdfast.test")
    log.warning("a line of the parent")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        stream = logging.StreamHandler(os.fdopen(writer, "w"))
        log.logger.handlers, log.logger.propagate = [stream], False
        log.warning("a line of the child")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        assert told.read() == "a line of the child\n"
    os.waitpid(pid, 0)


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


A_DEAD_DISK = """
import contextlib, logging, logging.handlers, os, sys
from worker_client.guarded_log import GuardedLog

path = sys.argv[1]
os.mkfifo(path)
kept = os.open(path, os.O_RDWR | os.O_NONBLOCK)
with contextlib.suppress(BlockingIOError):
    while True:
        os.write(kept, bytes(4096))
def stderr_hangs():
    os.dup2(os.open(path, os.O_RDWR), 2)
log = GuardedLog("holdfast")
"""


@pytest.mark.parametrize(
    "set_up",
    [
        pytest.param("logging.basicConfig(filename=path)", id="a file"),
        pytest.param("stderr_hangs()", id="the last resort"),
        pytest.param("stderr_hangs(); logging.basicConfig()", id="stderr"),
        pytest.param(
            "logging.getLogger().addHandler(logging.handlers.MemoryHandler(1, target=logging.FileHandler(path)))",
            id="the target of a handler",
        ),
        pytest.param(
            "logging.basicConfig(filename=path); "
            "kept = logging.handlers.MemoryHandler(9, target=logging.getLogger().handlers[0]); "
            "kept.handle(logging.makeLogRecord(dict(levelno=20)))",
            id="a handler that has lines for it",
        ),
    ],
)
def test_a_handler_that_hangs_does_not_keep_a_process_from_its_end(tmp_path: Path, set_up: str):
    """Logging waits there for each handler, and Python for each standard stream. In this one hangs a line of ours."""
    script = f"{A_DEAD_DISK}\n{set_up}\nlog.warning('a line')\nprint('done')"
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=buffered, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


A_SLOW_DISK = """
import logging, sys, time
from worker_client.guarded_log import GuardedLog

class Slow(logging.Handler):
    kept = ""

    def emit(self, record):
        time.sleep(1.0 * (record.name == "holdfast"))
        self.kept += record.getMessage() + "\\n"

    def flush(self):
        with open(sys.argv[1], "w") as file:
            file.write(self.kept)

logging.basicConfig(handlers=[Slow()])
logging.warning("a line of the script")
for number in range(int(sys.argv[2])):
    GuardedLog("holdfast").warning("line %d", number)
"""


@pytest.mark.parametrize("lines", [2, 10])
def test_a_handler_that_is_only_slow_writes_what_it_has_when_a_process_ends(tmp_path: Path, lines: int):
    """Those of ours that would take too long are lost, and none of the script's."""
    path = tmp_path / "log"
    subprocess.run([sys.executable, "-c", A_SLOW_DISK, str(path), str(lines)], check=True, timeout=30)
    written = path.read_text().splitlines()
    assert written[:3] == ["a line of the script", "line 0", "line 1"]
    assert (len(written) == 3) is (lines == 2)
