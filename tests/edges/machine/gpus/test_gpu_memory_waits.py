"""When is memory checked again? The test controls the driver's answers and the time."""

from __future__ import annotations

import pwd
import subprocess
import threading
import time
from typing import cast

import pytest

from supervisor.edges.machine.gpus.driver import Device, Driver
from supervisor.edges.machine.gpus.gpu_holders import Job, UserNames
from supervisor.edges.machine.gpus.gpu_memory_waits import LOOK_S_MAX, LOOK_S_MIN, MemoryWait

GPU = Device("GPU 0", 1, 1)


class SaidDriver:
    used: int | None = 100
    pids: dict[int, int | None] = {}  # noqa: RUF012 - replaced, never changed

    def used_bytes(self, device: Device) -> int | None:
        assert device is GPU
        return self.used

    def holders(self, device: Device) -> dict[int, int | None]:
        del device
        return dict(self.pids)

    def minor(self, device: Device) -> int | None:
        del device
        return None


def begun(driver: SaidDriver, *, timeout_s: float = 50.0, look_s_max: float = 2.0) -> MemoryWait:
    return MemoryWait(
        cast("Driver", driver), [GPU], tolerance_bytes=10, timeout_s=timeout_s, look_s_max=look_s_max, job=Job(),
        users=UserNames(), dev="/dev", begun_s=100.0,
    )  # fmt: skip


def test_it_is_looked_soon_at_first_and_then_less_often() -> None:
    driver = SaidDriver()
    wait = begun(driver)
    now_s, gaps = 100.0, list[float]()
    while now_s < 101.0:
        assert wait.look(now_s) is None
        gaps.append(wait.next_look_s - now_s)
        now_s = wait.next_look_s
    assert abs(gaps[0] - LOOK_S_MIN) < 1e-9
    assert max(gaps) <= LOOK_S_MAX + 1e-9
    assert len(gaps) < 80
    driver.used = 10
    answer = wait.look(now_s)
    assert answer is not None
    assert answer["is_free"]
    assert answer["gpus"] == [["GPU 0", 100, 10, 100]]


def test_a_shorter_interval_of_the_users_is_kept() -> None:
    wait = begun(SaidDriver(), look_s_max=0.005)
    assert wait.look(110.0) is None
    assert abs(wait.next_look_s - 110.005) < 1e-9


def test_the_last_look_is_when_the_time_is_over() -> None:
    driver = SaidDriver()
    driver.pids = {2**22 + 1: 90}
    wait = begun(driver, timeout_s=0.5)
    assert wait.look(100.495) is None
    assert wait.next_look_s == 100.5
    answer = wait.look(100.5)
    assert answer is not None
    assert not answer["is_free"]
    assert answer["holders"] == [[2**22 + 1, "GPU 0", 90, "", ""]]


def test_the_user_of_a_holder_is_looked_up_before_the_name_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    is_known = threading.Event()

    def look_up(uid: int) -> pwd.struct_passwd:
        is_known.set()
        return pwd.struct_passwd(("kim", "x", uid, uid, "", "/homes/kim", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    driver = SaidDriver()
    with subprocess.Popen(["sleep", "60"]) as holder:
        driver.pids = {holder.pid: 90}
        wait = begun(driver, timeout_s=1.0)
        assert wait.look(100.5) is None
        assert is_known.wait(20)
        deadline_s = time.monotonic() + 20
        while any(each.name == "user name" for each in threading.enumerate()):
            assert time.monotonic() < deadline_s
        answer = wait.look(101.0)
        holder.kill()
    assert answer is not None
    assert answer["holders"] == [[holder.pid, "GPU 0", 90, "sleep", "kim"]]


def test_what_can_not_be_read_is_free() -> None:
    driver = SaidDriver()
    driver.used = None
    answer = begun(driver).look(100.0)
    assert answer is not None
    assert answer["is_free"]
    assert answer["gpus"] == [["GPU 0"]]
