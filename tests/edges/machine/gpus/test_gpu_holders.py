"""Who has a GPU open, and which processes belong to a job? In a simulated /proc and in the real one."""

from __future__ import annotations

import os
import pwd
import threading
import time
from pathlib import Path

import pytest

from supervisor.edges.machine.gpus.gpu_holders import Job, UserNames, described, end_if_of, is_of, with_device_open

JOB = Job("job", "/s/worker.sock", ("holdfast-job-1.77",))


def process(proc: Path, pid: int, *, files: tuple[str, ...] = (), cgroup: str = "/", environ: str = "") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(file)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "environ").write_text(environ)
    (folder / "comm").write_text("python3\n")


def test_only_the_gpus_that_are_asked_for_count(tmp_path: Path) -> None:
    process(tmp_path, 10, files=("/dev/null", "/dev/nvidia0", "/dev/nvidiactl"))
    process(tmp_path, 11, files=("/dev/nvidia1",))
    process(tmp_path, 12, files=("/dev/nvidiactl", "/tmp/nvidia0"))
    process(tmp_path, os.getpid(), files=("/dev/nvidia0",))
    (tmp_path / "13").mkdir()
    assert with_device_open({0}, proc=str(tmp_path)) == {10}
    assert with_device_open({0, 1}, proc=str(tmp_path)) == {10, 11}
    assert with_device_open({0}, proc=str(tmp_path / "nothing")) == set()


def test_a_process_of_the_job_is_known_by_its_cgroup_or_by_both_variables(tmp_path: Path) -> None:
    mine, socket = "HOLDFAST_JOB_ID=job\0", "HOLDFAST_SOCKET=/s/worker.sock\0"
    process(tmp_path, 10, cgroup="/user.slice/holdfast-job-1.77/cycle-3/deeper")
    process(tmp_path, 11, environ=f"A=1\0{mine}{socket}")
    process(tmp_path, 12, cgroup="/user.slice/holdfast-job-1.78/cycle-3")
    process(tmp_path, 13, environ=mine)
    process(tmp_path, 14, environ=f"{mine}HOLDFAST_SOCKET=/another/worker.sock\0")
    assert [pid for pid in range(9, 16) if is_of(JOB, pid, proc=str(tmp_path))] == [10, 11]
    assert not is_of(Job(), 11, proc=str(tmp_path))


def test_a_process_is_described_as_far_as_it_can_be_seen(tmp_path: Path) -> None:
    process(tmp_path, 10)
    name, user = described(10, UserNames(), proc=str(tmp_path))
    assert name == "python3"
    assert user
    assert described(99, UserNames(), proc=str(tmp_path)) == ("", "")


def test_a_user_of_a_directory_service_is_named_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows users that are not in /etc/passwd, may hang, and may be away when it is first asked."""
    asked: list[int] = []
    may_answer = threading.Event()

    def look_up(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        assert may_answer.wait(30)
        if len(asked) == 1:
            raise KeyError(uid)
        return pwd.struct_passwd(("kim", "x", uid, uid, "", "/homes/kim", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    process(tmp_path, 10)
    users, uid = UserNames(), os.getuid()
    assert [described(10, users, proc=str(tmp_path)) for _ in range(3)] == [("python3", f"user {uid}")] * 3
    may_answer.set()
    deadline_s = time.monotonic() + 20
    while described(10, users, proc=str(tmp_path)) != ("python3", "kim"):
        assert time.monotonic() < deadline_s
    assert asked == [uid, uid]


def test_nothing_is_killed_that_is_not_of_the_job() -> None:
    assert not end_if_of(JOB, os.getpid())
    assert not end_if_of(JOB, 2**22 + 1)
