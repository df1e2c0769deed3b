"""Does a machine answer every question within a deadline, even about what it lacks?"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from supervisor.programs.doctor import machine_probe
from tests.programs.doctor.machines import machine_of, program


def test_files_and_folders_that_are_not_there_are_empty(tmp_path: Path):
    machine = machine_of(tmp_path, {"/proc/a": " 1\n", "/sys/b/c": ""})
    assert machine.text("/proc/a") == "1"
    assert machine.text("/proc/none") == ""
    assert machine.names("/sys/b") == ["c"]
    assert machine.names("/sys/none") == []


def test_a_program_is_asked(tmp_path: Path):
    program(tmp_path, "tell", "echo yes")
    program(tmp_path, "fail", "echo first >&2; echo last >&2; exit 3")
    program(tmp_path, "mute", "exit 3")
    machine = machine_of(tmp_path)
    assert machine.ask([machine.program("tell")]).stdout == "yes\n"
    assert machine.ask([machine.program("fail")]).fault == "last"
    assert machine.ask([machine.program("mute")]).fault == "it ended with exit code 3"
    assert machine.program("none-such") == ""
    assert machine.ask(["/none/such"]).fault == "it cannot be started (No such file or directory)"


def test_a_silent_disk_of_temporary_files_or_in_path_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "tell", "echo yes")
    machine = machine_of(tmp_path)
    tell = machine.program("tell")
    monkeypatch.setenv("TMPDIR", "/none/such")
    assert machine.ask([tell]).stdout == "yes\n"
    over = threading.Event()

    def wait(_: str, *, path: str) -> str:
        over.wait(60)
        return path

    monkeypatch.setattr("shutil.which", wait)
    monkeypatch.setattr(machine_probe, "ANSWER_TIMEOUT_S", 0.1)
    assert machine.program("tell") == ""
    over.set()


def test_a_program_on_a_disk_that_is_silent_at_its_start_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "tell", "echo yes")
    machine, over = machine_of(tmp_path), threading.Event()
    tell, popen = machine.program("tell"), subprocess.Popen[bytes]
    assert not vars(subprocess)["_USE_VFORK"], "it would stop all threads until the program has started"

    def wait(*_: object, **__: object) -> subprocess.Popen[bytes]:
        over.wait(60)
        return popen("true")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", wait)
        started_s = time.monotonic()
        answer = machine.ask([tell], timeout_s=0.1)
        assert time.monotonic() - started_s < 30
    over.set()
    assert (answer.fault, answer.is_late) == ("no answer within 0.1 s", True)
    assert machine.ask([tell]).stdout == "yes\n"


def test_a_load_counts_above_the_number_of_cpus(tmp_path: Path):
    assert machine_of(tmp_path).overload() == 0
    assert machine_of(tmp_path, {"/proc/loadavg": "0.01 0.2 0.3 1/9 9"}).overload() == 0
    assert machine_of(tmp_path, {"/proc/loadavg": "99999.25 0.2 0.3 1/9 9"}).overload() == 99999.25


def test_a_program_that_hangs_is_left(tmp_path: Path):
    program(tmp_path, "hang", "exec sleep 60")
    machine = machine_of(tmp_path, environ={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    started_s = time.monotonic()
    assert machine.ask([machine.program("hang")], timeout_s=0.1).fault == "no answer within 0.1 s"
    assert time.monotonic() - started_s < 30


def test_a_program_that_nothing_can_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "stuck", "exec sleep 20")
    machine = machine_of(tmp_path, environ={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    left: list[subprocess.Popen[bytes]] = []

    def kill(process: subprocess.Popen[bytes]) -> None:
        left.append(process)

    with monkeypatch.context() as patched:
        patched.setattr(machine_probe, "END_TIMEOUT_S", 0.1)
        patched.setattr(subprocess.Popen, "kill", kill)  # as for a process in the kernel's hands
        started_s = time.monotonic()
        assert machine.ask([machine.program("stuck")], timeout_s=0.1).is_late
        assert time.monotonic() - started_s < 15
    (process,) = left
    process.kill()
    process.wait(20)
