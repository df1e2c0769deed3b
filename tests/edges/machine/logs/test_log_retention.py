"""Old logs go, oldest first; logs of live jobs, recent logs and others' files stay. Real files and real locks."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.log_limits import LogLimits
from supervisor.edges.machine.logs import log_retention
from supervisor.edges.machine.logs.log_retention import LOCK_FILE, JobLogs, LogRetention, too_much
from tests.e2e.launch import wait_until

DAY_S = 86400.0
NONE = LogLimits(jobs_max=0, gib_max=0.0)


def gib(used_bytes: int) -> float:
    return used_bytes / (1 << 30)


def job(log_dir: Path, name: str, *, age_s: float, used_bytes: int = 4096) -> Path:
    """Makes the logs of a job with two cycles, written that long ago."""
    folder = log_dir / name
    for cycle in (0, 1):
        rank = folder / f"cycle_{cycle}" / "rank_0"
        rank.mkdir(parents=True)
        (rank / "stdout.log").write_bytes(b"x" * (used_bytes // 2))
    (folder / "supervisor.log").touch()
    touch(folder, age_s)
    return folder


def touch(folder: Path, age_s: float) -> None:
    at_s = time.time() - age_s
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (at_s, at_s))


def names(log_dir: Path) -> list[str]:
    return sorted(path.name for path in log_dir.iterdir())


def test_the_oldest_go_above_the_count(tmp_path: Path) -> None:
    for day in range(1, 6):
        job(tmp_path, f"day-{day}", age_s=day * DAY_S)
    LogRetention(tmp_path, LogLimits(jobs_max=2, gib_max=0.0)).tidy()
    assert names(tmp_path) == ["day-1", "day-2"]
    assert (tmp_path / "day-1" / "cycle_1" / "rank_0" / "stdout.log").exists()


def test_the_oldest_go_above_the_size(tmp_path: Path) -> None:
    for day in range(1, 6):
        job(tmp_path, f"day-{day}", age_s=day * DAY_S, used_bytes=1 << 20)
    LogRetention(tmp_path, LogLimits(jobs_max=0, gib_max=gib(5 << 19))).tidy()
    assert names(tmp_path) == ["day-1", "day-2"]


def test_no_limits_remove_nothing(tmp_path: Path) -> None:
    job(tmp_path, "old", age_s=1000 * DAY_S)
    LogRetention(tmp_path, NONE).tidy()
    assert names(tmp_path) == ["old"]


def test_what_was_written_of_late_goes_later_though_no_job_comes_or_goes(tmp_path: Path) -> None:
    for age_s in (1.0, 2.0, 3.0):
        job(tmp_path, f"age-{age_s:g}", age_s=age_s)
    retention = LogRetention(tmp_path, LogLimits(jobs_max=1), quiet_s=4.0)
    retention.tidy_soon()
    try:
        wait_until(lambda: names(tmp_path) == ["age-1"], timeout_s=60, what="the end of logs that are no longer recent")
    finally:
        retention.close()


def test_what_was_written_of_late_counts_and_stays(tmp_path: Path) -> None:
    job(tmp_path, "old", age_s=DAY_S)
    for minute in (1, 2, 3):
        job(tmp_path, f"new-{minute}", age_s=60.0 * minute)
    one = job(tmp_path, "one-file", age_s=DAY_S)
    os.utime(one / "cycle_0" / "rank_0" / "stdout.log")
    LogRetention(tmp_path, LogLimits(jobs_max=2)).tidy()
    assert names(tmp_path) == ["new-1", "new-2", "new-3", "one-file"]


def test_live_jobs_stay_whoever_supervises_them(tmp_path: Path) -> None:
    mine = LogRetention(tmp_path, LogLimits(jobs_max=1))
    other = LogRetention(tmp_path, LogLimits(jobs_max=1))
    mine.claim("mine")
    other.claim("other")
    for name in ("mine", "other", "ended"):
        job(tmp_path, name, age_s=DAY_S) if name == "ended" else touch(tmp_path / name, DAY_S)
    mine.tidy()
    assert names(tmp_path) == ["ended", "mine", "other"]
    job(tmp_path, "ended-later", age_s=DAY_S / 2)
    mine.tidy()
    assert names(tmp_path) == ["ended-later", "mine", "other"]
    other.release("other")
    assert names(tmp_path / "other") == []
    touch(tmp_path / "other", DAY_S)
    mine.tidy()
    assert names(tmp_path) == ["ended-later", "mine"]
    mine.close()


def test_two_jobs_of_one_name_hold_the_folder_together(tmp_path: Path) -> None:
    first, second = LogRetention(tmp_path, LogLimits(jobs_max=1)), LogRetention(tmp_path, LogLimits(jobs_max=1))
    first.claim("same")
    second.claim("same")
    first.release("same")
    job(tmp_path, "newer", age_s=2 * log_retention.QUIET_S)
    touch(tmp_path / "same", DAY_S)
    first.tidy()
    assert names(tmp_path) == ["newer", "same"]
    second.close()


def test_a_killed_supervisor_leaves_its_jobs_a_while(tmp_path: Path) -> None:
    program = (
        "import sys, signal, pathlib\n"
        "from supervisor.config.log_limits import LogLimits\n"
        "from supervisor.edges.machine.logs.log_retention import LogRetention\n"
        "LogRetention(pathlib.Path(sys.argv[1]), LogLimits()).claim('orphan')\n"
        "print('claimed', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"claimed\n"
        touch(tmp_path / "orphan", DAY_S)
        for day in (2, 3):
            job(tmp_path, f"day-{day}", age_s=day * DAY_S)
        retention = LogRetention(tmp_path, LogLimits(jobs_max=1))
        retention.tidy()
        assert names(tmp_path) == ["day-2", "orphan"], "its supervisor lives"
        supervisor.kill()
    retention.tidy()
    assert names(tmp_path) == ["orphan"], "seen first now: its workers may live a little longer"
    assert names(tmp_path / "orphan") == []
    touch(tmp_path / "orphan", DAY_S)
    job(tmp_path, "newer", age_s=2 * log_retention.QUIET_S)
    retention.tidy()
    assert names(tmp_path) == ["newer"]


def test_all_that_a_run_leaves_is_ours(tmp_path: Path) -> None:
    old = job(tmp_path, "old", age_s=9 * DAY_S)
    for name in ("supervisor.log.1", "spawner.stdout.log", "log_sender.log", "night-7.exits.jsonl"):
        (old / name).touch()
    touch(old, 9 * DAY_S)
    job(tmp_path, "newest", age_s=DAY_S)
    LogRetention(tmp_path, LogLimits(jobs_max=1)).tidy()
    assert names(tmp_path) == ["newest"]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    mine = job(tmp_path, "notes", age_s=9 * DAY_S)
    (mine / "thesis.txt").touch()
    touch(mine, 9 * DAY_S)
    job(tmp_path, "newest", age_s=DAY_S)
    elsewhere = job(tmp_path.parent / "elsewhere", "data", age_s=9 * DAY_S)
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "file").touch()
    (tmp_path / ".hidden").mkdir()
    LogRetention(tmp_path, LogLimits(jobs_max=1)).tidy()
    assert names(tmp_path) == [".hidden", "file", "link", "newest", "notes"]
    assert (elsewhere / "supervisor.log").exists()


def test_runs_that_stay_because_of_foreign_files_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def with_notes(name: str, day: int) -> Path:
        folder = job(tmp_path, f"{name}/run_{day}", age_s=day * DAY_S, used_bytes=1 << 20)
        for note in ("notes.md", "a\nb"):
            (folder / note).touch()
        touch(folder, day * DAY_S)
        return folder

    oldest = with_notes("mine", 9)
    with_notes("mine", 8)
    job(tmp_path, "theirs/run_7", age_s=7 * DAY_S, used_bytes=1 << 20)
    job(tmp_path, "newest/run_1", age_s=DAY_S, used_bytes=1 << 20)
    retention = LogRetention(tmp_path, LogLimits(jobs_max=0, gib_max=gib(3 << 19)))
    with caplog.at_level(logging.WARNING, "holdfast.logs"):
        retention.tidy()
        retention.tidy()
        assert names(tmp_path) == ["mine", "newest"]
        assert caplog.messages == [
            f"cannot keep logs below 0.00146484 GiB: {oldest} contains a b, notes.md, which Holdfast did not write, "
            "and 1 more folder has such files; move such files, or remove the folders yourself"
        ]
        other = with_notes("other", 6)
        retention.tidy()
    assert len(caplog.messages) == 2
    assert f": {other} contains a b, notes.md, which Holdfast did not write; move" in caplog.messages[1]
    caplog.clear()
    LogRetention(tmp_path, LogLimits(jobs_max=1, gib_max=1.0)).tidy()
    assert caplog.messages[0].startswith(f"cannot keep logs of 1 ended run at most: {oldest} contains ")


def test_a_link_inside_is_removed_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "weights").touch()
    logs = tmp_path / "logs"
    old = job(logs, "old", age_s=9 * DAY_S)
    (old / "cycle_0" / "rank_0" / "link").symlink_to(precious)
    (old / "cycle_2").symlink_to(precious)
    at_s = time.time() - 9 * DAY_S
    for path in (old, old / "cycle_0" / "rank_0", old / "cycle_0"):
        os.utime(path, (at_s, at_s))
    for path in (old / "cycle_2", old / "cycle_0" / "rank_0" / "link"):
        os.utime(path, (at_s, at_s), follow_symlinks=False)
    job(logs, "new", age_s=DAY_S)
    LogRetention(logs, LogLimits(jobs_max=1)).tidy()
    assert names(logs) == ["new"]
    assert names(precious) == ["weights"]


def test_what_another_supervisor_did_not_finish_is_finished(tmp_path: Path) -> None:
    job(tmp_path, ".removing-12-old", age_s=1.0)
    LogRetention(tmp_path, LogLimits(jobs_max=5)).tidy()
    assert names(tmp_path) == []


def test_a_missing_directory_is_nothing_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    LogRetention(tmp_path / "none", LogLimits()).tidy()
    assert caplog.messages == []


def test_what_cannot_be_removed_is_a_warning_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        job(tmp_path, name, age_s=9 * DAY_S)
    job(tmp_path, "new", age_s=DAY_S)

    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "rename", refuse)
    retention = LogRetention(tmp_path, LogLimits(jobs_max=1))
    with caplog.at_level(logging.WARNING, "holdfast.logs"):
        retention.tidy()
        touch(tmp_path / "a", 9 * DAY_S)
        retention.tidy()
    told = [message for message in caplog.messages if f"remove {tmp_path / 'a'} yourself" in message]
    assert len(told) == 1
    assert told[0].startswith("cannot remove old logs: ")
    assert names(tmp_path) == ["a", "b", "new"]


def test_a_claim_that_fails_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "job").touch()
    retention = LogRetention(tmp_path, LogLimits())
    with caplog.at_level(logging.WARNING, "holdfast.logs"):
        retention.claim("job")
    assert caplog.messages[0].startswith("cannot mark the logs of job as in use: ")
    retention.release("job")


def test_a_thread_tidies_and_ends(tmp_path: Path) -> None:
    for day in range(1, 4):
        job(tmp_path, f"day-{day}", age_s=day * DAY_S)
    retention = LogRetention(tmp_path, LogLimits(jobs_max=1))
    retention.tidy_soon()
    retention.tidy_soon()
    deadline_s = time.monotonic() + 20.0
    while names(tmp_path) != ["day-1"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    retention.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "log retention"]
    job(tmp_path, "later", age_s=9 * DAY_S)
    retention.tidy_soon()
    assert names(tmp_path) == ["day-1", "later"], "closed"


def test_a_claim_wins_or_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    """Claims and removals of one name run at once: a process with a claim keeps the folder that exists."""
    stop = threading.Event()

    def remove() -> None:
        while not stop.is_set():
            LogRetention(tmp_path, LogLimits(jobs_max=1), quiet_s=-DAY_S).tidy()

    job(tmp_path, "newest", age_s=-DAY_S)
    thread = threading.Thread(target=remove)
    thread.start()
    try:
        for _ in range(300):
            mine = LogRetention(tmp_path, LogLimits())
            mine.claim("contested")
            (tmp_path / "contested" / "supervisor.log").write_text("mine")
            assert (tmp_path / "contested" / LOCK_FILE).exists()
            mine.release("contested")
    finally:
        stop.set()
        thread.join()


def test_runs_of_one_job_go_one_by_one_and_the_job_with_the_last(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        job(tmp_path, f"same/run_2026110{day}T000000.000Z", age_s=(9 - day) * DAY_S)
    job(tmp_path, "gone/run_20250101T000000.000Z", age_s=30 * DAY_S)
    job(tmp_path / "same", f"{log_retention._REMOVING}7-run_1", age_s=1.0)  # pyright: ignore[reportPrivateUsage]
    LogRetention(tmp_path, LogLimits(jobs_max=2, gib_max=0.0)).tidy()
    assert names(tmp_path) == ["same"]
    assert names(tmp_path / "same") == ["run_20261102T000000.000Z", "run_20261103T000000.000Z"]


def test_old_cycles_of_a_live_run_go_but_for_the_first_and_the_newest_two(tmp_path: Path) -> None:
    limits = LogLimits(jobs_max=0, gib_max=gib(1 << 20))
    mine, other = LogRetention(tmp_path, limits), LogRetention(tmp_path, limits)
    for retention, run in ((mine, "mine/run_1"), (other, "other/run_1")):
        retention.claim(run)
        for cycle in range(12):
            rank = tmp_path / run / f"cycle_{cycle}" / "rank_0"
            rank.mkdir(parents=True)
            (rank / "stdout.log").write_bytes(b"x" * (256 << 10))
            touch(rank.parent, 100.0 - cycle)
    mine.tidy()
    kept = {f"cycle_{cycle}" for cycle in (0, 10, 11)}
    assert set(names(tmp_path / "mine" / "run_1")) - {LOCK_FILE} == kept
    assert len(names(tmp_path / "other" / "run_1")) == 13, "another supervisor's live run is its own to prune"
    mine.release("mine/run_1")
    other.release("other/run_1")


def test_a_live_run_is_looked_at_again_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retention, "LOOK_AGAIN_S", 0.02)
    retention = LogRetention(tmp_path, LogLimits(jobs_max=0, gib_max=gib(1)))
    retention.claim_soon("mine/run_1")
    for cycle in range(9):
        rank = tmp_path / "mine" / "run_1" / f"cycle_{cycle}" / "rank_0"
        rank.mkdir(parents=True)
        (rank / "stdout.log").write_bytes(b"x" * 4096)
    deadline_s = time.monotonic() + 20.0
    while len(names(tmp_path / "mine" / "run_1")) > 4:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    retention.release_soon("mine/run_1")
    retention.close()
    assert names(tmp_path / "mine" / "run_1") == ["cycle_0", "cycle_7", "cycle_8"]


def test_a_disk_that_hangs_holds_up_neither_claims_nor_closing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang(folder: Path) -> int:
        del folder
        answers.wait(60)
        raise OSError("it answers at last")

    monkeypatch.setattr(log_retention, "_lock", hang)
    monkeypatch.setattr(log_retention, "CLOSE_TIMEOUT_S", 0.1)
    retention = LogRetention(tmp_path, LogLimits())
    began_s = time.monotonic()
    retention.claim_soon("mine/run_1")
    retention.tidy_soon()
    retention.close()
    assert time.monotonic() - began_s < 5.0
    answers.set()


@given(
    jobs=st.lists(
        st.tuples(st.floats(0, 100) | st.just(math.inf), st.integers(0, 1 << 40)), max_size=30, unique_by=lambda x: x[0]
    ),
    jobs_max=st.integers(0, 30),
    gib_max=st.floats(0, 64),
    before_s=st.floats(0, 100),
)
def test_what_goes_is_older_than_what_it_makes_room_for(
    jobs: list[tuple[float, int]], jobs_max: int, gib_max: float, before_s: float
) -> None:
    found = [JobLogs(Path(str(index)), *each) for index, each in enumerate(jobs)]
    limits = LogLimits(jobs_max, gib_max)
    doomed = too_much(found, limits, before_s=before_s)
    kept = [logs for logs in found if logs not in doomed]
    assert [logs.written_at_s for logs in doomed] == sorted(logs.written_at_s for logs in doomed)
    assert all(logs.written_at_s < before_s for logs in doomed)
    old = [logs for logs in kept if logs.written_at_s < before_s]
    if old and jobs_max:
        assert len([logs for logs in kept if logs.written_at_s != math.inf]) <= jobs_max
    if old and limits.bytes_max:
        assert sum(logs.used_bytes for logs in kept) <= limits.bytes_max


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_a_claim_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job(tmp_path, "j", age_s=0)
    retention = LogRetention(tmp_path, NONE)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        retention.claim_soon("j")
    assert "ulimit -u" in caplog.text
    retention.tidy_soon()
    wait_until((tmp_path / "j" / LOCK_FILE).exists, timeout_s=10, what="the claim")
    retention.close()
