"""Does a spawner's process start with all that it needs, and is an impossible start refused with a reason?"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, SPAWNER_VARIABLE
from holdfast_wire.spawner_settings import SpawnerCommand, SpawnerSettings

from supervisor.config import JobSpec
from supervisor.edges.workers.spawner.spawner_process import start_process
from supervisor.errors import ConfigurationError, InvalidRequestError


def test_it_gets_the_job_s_environment_folder_and_one_end_of_the_link(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = (
        "import os, socket; link = socket.socket(fileno=int(os.environ['LINK'])); link.sendall(link.recv(5)); "
        f"open({str(told)!r}, 'w').write(' '.join((os.environ['A'], os.environ[{JOB_ID_VARIABLE!r}], os.getcwd())))"
    )
    started = start_process(
        JobSpec("j1", ("x",), cwd=str(tmp_path)),
        env={"A": "b", "PATH": os.environ["PATH"]},
        private=True,
        make_command=lambda _settings, env, fd: SpawnerCommand(
            (sys.executable, "-c", program), {**env, "LINK": str(fd)}
        ),
    )
    try:
        started.socket.setblocking(True)
        started.socket.sendall(b"hello")
        assert started.socket.recv(5) == b"hello"
        assert os.getsid(started.process.pid) == started.process.pid
        assert started.process.wait(10) == 0
        assert told.read_text() == f"b j1 {tmp_path}"
    finally:
        started.socket.close()
        started.process.kill()
        started.process.wait()


def test_its_name_is_in_the_environment_for_a_supervisor_that_finds_it(tmp_path: Path) -> None:
    given: list[Mapping[str, str]] = []

    def command(_settings: SpawnerSettings, env: Mapping[str, str], _fd: int) -> SpawnerCommand:
        given.append(env)
        return SpawnerCommand(("/bin/true",), dict(env))

    folder = tmp_path / "spawners"
    for place in (folder, None):
        started = start_process(JobSpec("j1", ("x",)), env={}, private=False, make_command=command, return_folder=place)
        names = [] if started.files is None else [started.files.name]
        assert names == ([given[-1][SPAWNER_VARIABLE]] if place else [])
        started.discard()
    assert given[0][SPAWNER_VARIABLE] != given[1][SPAWNER_VARIABLE]


def test_what_can_t_be_executed_is_refused_and_leaks_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidRequestError, match=r"cannot start the spawner of job j2: .*/nonexistent"):
        start_process(JobSpec("j2", ("x",), python="/nonexistent", cwd=str(tmp_path)), env={}, private=True)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("written", "kind"),
    [("PYTHON_EXEC=/nonexistent", ConfigurationError), ("--python /nonexistent", InvalidRequestError)],
)
def test_an_interpreter_that_is_not_there_is_named_as_it_was_written(
    tmp_path: Path, written: str, kind: type[Exception]
) -> None:
    spec = JobSpec("j", ("x",), python="/nonexistent", cwd=str(tmp_path), sources=(("python", written),))
    with pytest.raises(kind, match=f"cannot use {written}: No such file or directory; name a Python interpreter"):
        start_process(spec, env={}, private=True)


def test_an_argument_that_no_process_may_have_is_refused_with_what_the_kernel_takes(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    long = "x" * (128 << 10)
    with pytest.raises(
        InvalidRequestError, match=r"Argument list too long.*; the kernel takes 128 KiB for one argument"
    ):
        start_process(JobSpec("j3", ("x", long), cwd=str(tmp_path)), env={}, private=True)
    assert len(os.listdir("/proc/self/fd")) == before
