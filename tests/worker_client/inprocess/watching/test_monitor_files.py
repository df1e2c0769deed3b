"""Do a rank's monitor log and its supervisor's pid get where the script wants them, under each supervisor?"""

from __future__ import annotations

import contextlib
import logging
import logging.config
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.launch import SCRIPTS, launched
from worker_client.inprocess.watching.monitor_files import MonitorFiles, log

ROOT = Path(__file__).parents[4]
SCRIPT = str(SCRIPTS / "wrapped_monitor_files.py")
TIMEOUT_S = 60.0
WORLD_SIZE = 2


def supervisors(output: str) -> set[int]:
    found = re.findall(r"rank \d \(pid \d+\) is supervised by (\d+)", output)
    assert len(found) == WORLD_SIZE, output
    return {int(pid) for pid in found}


def assert_logged(path: Path, rank: int, supervisor: int) -> None:
    text = path.read_text()
    assert re.search(rf"INFO rank {rank}: pid \d+ is supervised by pid {supervisor}\n", text)
    assert f"INFO rank {rank}: restart after iteration 0: Interruption.EXCEPTION affecting ranks {{1}}\n" in text
    assert ("ValueError: by intention" in text) is (rank == 1)
    assert path.stat().st_mode & 0o777 == 0o600


def test_under_holdfast_run(tmp_path: Path):
    files = str(tmp_path / "monitor-{rank}.log"), str(tmp_path / "monitor-{rank}.pid")
    with launched(tmp_path, "--nproc-per-node", str(WORLD_SIZE), SCRIPT, *files) as launch:
        assert launch.wait() == 0, launch.explained()
        assert supervisors(launch.stdout_text()) == {launch.process.pid}
        for rank in range(WORLD_SIZE):
            assert_logged(tmp_path / f"monitor-{rank}.log", rank, launch.process.pid)
            pidfile = tmp_path / f"monitor-{rank}.pid"
            assert pidfile.read_text() == f"{launch.process.pid}\n"
            assert pidfile.stat().st_mode & 0o777 == 0o600
        assert "restart after iteration" not in launch.stderr_text()  # only the file gets this


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "FT_", "SLURM"))}
    return given | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000), "WORLD_SIZE": str(WORLD_SIZE),
        "TORCHELASTIC_RUN_ID": tmp_path.name, "HOLDFAST_STATE_DIR": str(tmp_path / "state"),
    }  # fmt: skip


def test_under_a_private_supervisor_with_one_file_for_all_ranks(tmp_path: Path, environment: dict[str, str]):
    with contextlib.ExitStack() as stack:
        ranks: list[subprocess.Popen[str]] = []
        for rank in range(WORLD_SIZE):
            process = subprocess.Popen(
                [sys.executable, SCRIPT, str(tmp_path / "log"), str(tmp_path / "pid")],
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        told = [process.communicate(timeout=TIMEOUT_S) for process in ranks]
        assert [process.returncode for process in ranks] == [0] * WORLD_SIZE, told
    (pid,) = supervisors("".join(output for output, _ in told))
    assert (tmp_path / "pid").read_text() == f"{pid}\n"
    assert (tmp_path / "pid").stat().st_mode & 0o777 == 0o600
    text = (tmp_path / "log").read_text()
    assert all(f"rank {rank}: restart after iteration 0" in text for rank in range(WORLD_SIZE))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(TIMEOUT_S)  # it ends with the last rank, as a waiter for the pidfile's process expects


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    ours = log.logger
    before = ours.level, ours.filters[:], ours.handlers[:], type(ours)
    yield ours
    assert (ours.level, ours.filters, ours.handlers, type(ours)) == before


def test_files_that_cannot_be_written_are_warnings(
    tmp_path: Path, logger: logging.Logger, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    files = MonitorFiles(str(tmp_path / "file/log"), str(tmp_path / "missing/pid"), initial_rank=0)
    with contextlib.closing(files):
        files.open()
        files.supervised_by(5)
    assert "cannot write monitor_process_logfile: " in caplog.text
    assert "cannot write monitor_process_pidfile: " in caplog.text
    assert str(tmp_path / "missing") in caplog.text


def test_the_pidfile_follows_the_supervisor(tmp_path: Path, logger: logging.Logger):
    pidfile = tmp_path / "3.pid"
    files = MonitorFiles(None, str(tmp_path / "{rank}.pid"), initial_rank=3)
    with contextlib.closing(files):
        files.open()
        files.supervised_by(0)
        assert not pidfile.exists()
        pidfile.write_text("of an earlier job, and readable by all")
        for pid in (5, 6):
            files.supervised_by(pid)
            assert pidfile.read_text() == f"{pid}\n"
            assert pidfile.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("dead", ["log", "pid"])
def test_a_disk_that_does_not_answer_holds_up_neither_the_call_nor_its_end(
    tmp_path: Path, logger: logging.Logger, dead: str
):
    """The thread that tells of a new supervisor would not hear of a restart. To close the files is the last thing."""
    fifo = tmp_path / {"log": "log", "pid": f".pid.{os.getpid()}"}[dead]
    os.mkfifo(fifo)  # To open it waits for a reader.
    files = MonitorFiles(str(tmp_path / "log"), str(tmp_path / "pid"), initial_rank=0)

    def use() -> None:
        with contextlib.closing(files):
            files.open()
            for pid in (5, 6):
                files.supervised_by(pid)

    using = threading.Thread(target=use, daemon=True)
    using.start()
    using.join(10)
    is_held_up = using.is_alive()
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    using.join()
    assert not is_held_up
    pidfile, told, until_s = tmp_path / "pid", b"", time.monotonic() + TIMEOUT_S
    while not (pidfile.is_file() and pidfile.read_text() == "6\n" and b"by pid 6\n" in told):
        assert time.monotonic() < until_s, told
        with contextlib.suppress(BlockingIOError):
            told += os.read(reader, 4096) if dead == "log" else (tmp_path / "log").read_bytes()
        time.sleep(0.01)
    os.close(reader)
    assert b"by pid 5\n" in told


@pytest.mark.parametrize("level", [logging.NOTSET, logging.ERROR, logging.DEBUG])
def test_the_file_changes_nothing_of_what_is_shown_elsewhere(tmp_path: Path, logger: logging.Logger, level: int):
    class Kept(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.levels: list[int] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.levels.append(record.levelno)

    def shown() -> list[int]:
        kept.levels.clear()
        for each in levels:
            logger.log(each, "told")
        return kept.levels[:]

    levels = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]
    kept, before = Kept(), logger.level
    parent = logging.getLogger("holdfast")
    parent.addHandler(kept)
    logger.setLevel(level)
    try:
        without = shown()
        with contextlib.closing(MonitorFiles(str(tmp_path / "log"), None, initial_rank=0)) as files:
            files.open()
            assert shown() == without
            told = (tmp_path / "log").read_text().splitlines()
            assert [line.split()[2] for line in told] == ["INFO", "WARNING", "ERROR"]
        assert shown() == without
        assert logger.level == level
    finally:
        logger.setLevel(before)
        parent.removeHandler(kept)


@pytest.mark.parametrize("moment", ["before", "within"])
def test_a_script_that_configures_logging_does_not_silence_the_file(
    tmp_path: Path, logger: logging.Logger, moment: str
):
    """dictConfig() disables all loggers that it does not name."""
    path = tmp_path / "log"
    handler = {"class": "logging.FileHandler", "filename": str(tmp_path / "script")}
    configuration = {"version": 1, "handlers": {"all": handler}, "root": {"handlers": ["all"], "level": "DEBUG"}}
    root = logging.getLogger()
    kept = root.handlers[:], root.level, [(each, each.disabled) for each in _loggers()]
    try:
        with contextlib.closing(MonitorFiles(str(path), None, initial_rank=0)) as files:
            if moment == "before":
                logging.config.dictConfig(configuration)
            files.open()
            logger.info("told first")
            if moment == "within":
                logging.config.dictConfig(configuration)
            logger.info("told then")
            logger.debug("not told")
        logger.info("told too late")
    finally:
        for each in set(root.handlers) - set(kept[0]):
            each.close()
        root.handlers, root.level = kept[0], kept[1]
        for each, disabled in kept[2]:
            each.disabled = disabled
    assert [line.split(" ", 3)[3] for line in path.read_text().splitlines()] == ["told first", "told then"]
    assert (tmp_path / "script").read_text() == ""  # the script has disabled it, and that holds


def _loggers() -> list[logging.Logger]:
    return [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
