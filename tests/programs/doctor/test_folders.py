"""Are unusable folders found before a job needs them?"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from supervisor.programs.doctor import folders
from supervisor.programs.doctor.doctor_finding import DoctorFinding, Grade
from supervisor.programs.doctor.machine_probe import Machine
from tests.programs.doctor.machines import the


def look(tmp_path: Path, sockets: str | None = None, state: str | None = None) -> list[DoctorFinding]:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    return folders.look(Machine(environ=environ), sockets=sockets, state=state or str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.socket_dir, "SYSTEM_DIR", tmp_path / "system")


def test_without_a_service_a_run_helps_itself(tmp_path: Path):
    assert the(look(tmp_path), "service").grade is Grade.OK


def test_a_folder_of_a_service_that_has_ended(tmp_path: Path):
    folder = tmp_path / "run" / "holdfast"
    folder.mkdir(parents=True, mode=0o700)
    assert the(look(tmp_path), "service").grade is Grade.NOTE
    folder.chmod(0o755)
    found = the(look(tmp_path), "service")
    assert found.grade is Grade.PROBLEM
    assert "0755" in found.found


def test_another_users_folder_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "system").mkdir(mode=0o755)
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    assert the(look(tmp_path), "service").grade is Grade.OK


def test_a_folder_for_several_users_may_be_entered(tmp_path: Path):
    (tmp_path / "system" / "users").mkdir(parents=True)
    (tmp_path / "system").chmod(0o755)
    assert the(look(tmp_path), "service").grade is Grade.NOTE


def test_a_left_over_folder_hides_no_service_that_answers(tmp_path: Path):
    for name in ("run/holdfast", "system"):
        (tmp_path / name).mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "system" / "control.sock"))
        server.listen()
        found = the(look(tmp_path), "service")
    assert (found.grade, found.found) == (Grade.OK, f"a supervisor answers at {tmp_path / 'system'}")


def test_a_supervisor_that_gets_no_job_is_named(tmp_path: Path):
    folder = tmp_path / "run" / "holdfast"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "control.sock"))
        server.listen()
        found, named = the(look(tmp_path), "service"), the(look(tmp_path, sockets=str(folder)), "service")
    assert (found.grade, named.grade) == (Grade.WARNING, Grade.PROBLEM)
    assert "others may write to that folder" in found.found
    assert (found.remedy, found.why) == (
        "take that right from them: chmod go-w",
        "holdfast run hands it no job, and leaves it out",
    )


def test_a_named_folder_must_be_served(tmp_path: Path):
    named = tmp_path / "n"
    named.mkdir(mode=0o700)
    found = the(look(tmp_path, sockets=str(named)), "service")
    assert (found.grade, found.found) == (Grade.PROBLEM, f"nobody answers at {named}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(named / "control.sock"))
        server.listen()
        assert the(look(tmp_path, sockets=str(named)), "service").grade is Grade.OK


def test_state_goes_where_it_can_be_written(tmp_path: Path):
    found = the(look(tmp_path), "state")
    assert found.grade in (Grade.OK, Grade.WARNING), "a nearly full disk is a warning"
    assert str(tmp_path / "state") in found.found
    assert not (tmp_path / "state").exists(), "nothing is made"
    file = tmp_path / "file"
    file.write_text("")
    found = the(look(tmp_path, state=str(file)), "state")
    assert (found.grade, found.found) == (Grade.WARNING, f"{file}: Not a directory")


def test_a_state_directory_that_a_run_would_refuse_is_a_warning(tmp_path: Path):
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o775)
    found = the(look(tmp_path), "state")
    assert (found.grade, found.found) == (Grade.WARNING, f"{state}: others may write to it")
    (tmp_path / "file").write_text("")
    found = the(look(tmp_path, state=f"{tmp_path}/file/below/state"), "state")
    assert (found.grade, found.found) == (
        Grade.WARNING, f"{tmp_path}/file/below/state: {tmp_path}/file is not a directory"
    )  # fmt: skip


def test_a_disk_that_refuses_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stale(path: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "statvfs", stale)
    found = the(look(tmp_path), "state")
    assert (found.grade, found.found) == (Grade.WARNING, f"{tmp_path / 'state'}: Stale file handle")


def test_a_disk_that_does_not_answer_is_a_warning_and_the_other_folders_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = threading.Event()

    def hang(path: object) -> None:
        answers.wait(60)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "statvfs", hang)
    monkeypatch.setattr(folders, "ANSWER_TIMEOUT_S", 0.5)
    began_s = time.monotonic()
    try:
        findings = look(tmp_path)
    finally:
        answers.set()
    assert time.monotonic() - began_s < 30
    found = the(findings, "state")
    assert (found.grade, found.found) == (
        Grade.WARNING, f"{tmp_path / 'state'}: no answer from its disk within 0.5 s"
    )  # fmt: skip
    assert the(findings, "service").grade is Grade.OK
    assert the(findings, "sockets of a run").grade is Grade.OK


def test_a_named_folder_of_another_user_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def closed(path: object, *, follow_symlinks: bool = True) -> os.stat_result:
        if str(path).endswith("/users"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, follow_symlinks=follow_symlinks)  # pyright: ignore[reportArgumentType]

    named, stat = tmp_path / "n", os.stat
    named.mkdir(mode=0o700)
    monkeypatch.setattr(os, "stat", closed)
    found = the(look(tmp_path, sockets=str(named)), "service")
    assert (found.grade, found.found) == (Grade.PROBLEM, f"nobody answers at {named}")


def test_state_on_a_network_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def file_system(path: Path) -> str:
        del path
        return "nfs4"

    monkeypatch.setattr(folders.network_folders, "file_system", file_system)
    found = the(look(tmp_path), "state")
    assert found.grade is Grade.WARNING
    assert "nfs4" in found.found
