"""How is a worker executed, and what is said if it can't be?"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Ready, StreamPlan, WorkerPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker


class TestExec:
    def test_a_command_that_is_not_python(self, tmp_path: Path) -> None:
        with Rig("sh", "-c", 'echo "$RANK $0 $1"; exit 5', "a", "b c", entry="command") as rig:
            ready = rig.receive(Ready)
            assert (ready.method, ready.method_reason) == (
                "exec",
                "workers are executed: the command is not a Python script",
            )
            (end,) = rig.run(worker(3))
            out, _ = rig.end()
        assert (end.code, out) == (5, "3 a b c\n")

    def test_a_command_finds_the_signals_as_the_shell_left_them(self) -> None:
        """Python ignores two of them, and a shell could not undo that for the programs of a pipe."""
        with Rig("sh", "-c", "grep SigIgn /proc/self/status", entry="command") as rig:
            rig.receive(Ready)
            (end,) = rig.run(worker(0))
            out, err = rig.end()
        assert end.code == 0, err
        ignored = int(out.split()[1], 16)
        assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)

    @pytest.mark.parametrize(
        ("command", "code", "says"),
        [
            (
                "no-such-program",
                127,
                "cannot start no-such-program: No such file or directory; check the path and PATH",
            ),
            ("./plain", 126, "cannot start ./plain: Permission denied; make it executable (chmod +x)"),
            (
                "./no-shebang",
                126,
                "cannot start ./no-shebang: Exec format error; give it a first line such as #!/bin/sh",
            ),
            ("./busy", 1, "cannot start ./busy: Text file busy; close the program that writes the file"),
        ],
    )
    def test_what_cannot_be_executed_is_said_at_once(self, tmp_path: Path, command: str, code: int, says: str) -> None:
        (tmp_path / "plain").write_text("x")
        (tmp_path / "no-shebang").write_text("echo hi")
        (tmp_path / "no-shebang").chmod(0o755)
        (tmp_path / "busy").write_bytes(Path("/bin/true").read_bytes())
        (tmp_path / "busy").chmod(0o755)
        with open(tmp_path / "busy", "ab"), Rig(command, entry="command", cwd=tmp_path) as rig:
            rig.receive(Ready)
            began = time.monotonic()
            failed = rig.spawn_failing(worker())
            assert time.monotonic() - began < 2
        assert (failed.exit_code, failed.reason) == (code, says)

    def test_too_long_arguments(self) -> None:
        with Rig("true", entry="command") as rig:
            failed = rig.spawn_failing(worker(HUGE="x" * 200_000))
        assert "Argument list too long" in failed.reason

    def test_an_exec_prefix_executes_one_worker_of_a_forking_spawner(self, script: Script, tmp_path: Path) -> None:
        path = script("import os; os.write(1, f'{os.environ[\"RANK\"]} {os.getppid()}\\n'.encode())")
        prefixed = WorkerPlan(1, 1, {"RANK": "1", "MARK": "x"}, exec_prefix=("env", "-u", "MARK"))
        with Rig(path) as rig:
            assert [each.method for each in rig.spawn(worker(0), prefixed)] == ["fork", "exec"]
            assert [rig.exited(rank).code for rank in (0, 1)] == [0, 0]
            out, _ = rig.end()
        assert sorted(out.splitlines()) == [f"0 {rig.process.pid}", f"1 {rig.process.pid}"]

    def test_a_failed_prefix(self, script: Script) -> None:
        with Rig(script("pass")) as rig:
            failed = rig.spawn_failing(WorkerPlan(0, 0, {}, exec_prefix=("no-numactl",)))
        assert (failed.exit_code, "no-numactl" in failed.reason) == (127, True)


MANY_FILES = """
import os, resource, sys
from worker_client.spawner import child_state, fork_and_exec, process_attributes
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
inherited = child_state.remember(process_attributes.Title(), frozenset())
while os.dup(1) < 1023: pass
pid = fork_and_exec.execute(inherited, fork_and_exec.Start({}, {}), ("sh", "-c", "exit 5"), leave=lambda: None)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_worker_is_executed_by_a_spawner_with_many_open_files() -> None:
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1100:
        pytest.skip("this machine allows too few open files")
    ran = subprocess.run([sys.executable, "-c", MANY_FILES], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (5, b"")


def test_a_file_that_cannot_be_opened_is_a_failed_spawn(script: Script, tmp_path: Path) -> None:
    plan = worker(stdout=StreamPlan(file=str(tmp_path / "no" / "log"), console=False, direct=True))
    (tmp_path / "no").touch()
    with Rig(script("pass")) as rig:
        failed = rig.spawn_failing(plan)
    assert "Not a directory" in failed.reason
    assert failed.exit_code == 1
