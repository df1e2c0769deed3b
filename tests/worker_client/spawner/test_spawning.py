"""How do workers start, and how are their ends reported?"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Exited, KillTree, Ready, Signal, Spawn, StreamPlan, WorkerPlan
from holdfast_wire.spawner_settings import SpawnerSettings, settings_file, spawner_command

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, clean_env, until, worker


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_exit_codes_are_exact(script: Script, method: str) -> None:
    path = script("import os; os._exit(int(os.environ['CODE']))")
    with Rig(path, method=method) as rig:
        assert rig.receive(Ready).method == method
        ends = rig.run(*(worker(at, CODE=str(code)) for at, code in enumerate((0, 1, 77, 255))))
    assert [(each.code, each.signal) for each in ends] == [(0, None), (1, None), (77, None), (255, None)]


def test_a_spawner_that_cannot_begin_does_not_run_the_script_itself(script: Script) -> None:
    """The interpreter ignores errors in sitecustomize and continues: it would train outside of any job."""
    settings = SpawnerSettings(job_id="job-1", command=(script("print('trained')"),), preload="none")
    start = spawner_command(settings, clean_env(), link_fd=9)
    os.close(start.settings_fd)
    descriptor = settings_file(settings)  # without the folders to import from
    broken = start.env | {"HOLDFAST_SPAWNER_SETTINGS": str(descriptor)}
    done = subprocess.run(start.argv, env=broken, pass_fds=[descriptor], capture_output=True, text=True, timeout=30)
    os.close(descriptor)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ModuleNotFoundError: No module named 'holdfast_wire'" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_is_a_signal_and_not_a_code(script: Script, number: int) -> None:
    with Rig(script(f"import os; os.kill(os.getpid(), {int(number)})")) as rig:
        (end,) = rig.run(worker())
    assert (end.code, end.signal, end.out_of_memory) == (None, number, False)


def test_a_core_dump_is_said(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, resource
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        os.abort()
        """
    )
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are forbidden here")
    with Rig(path, cwd=tmp_path) as rig:
        (end,) = rig.run(worker())
    expected = subprocess.Popen([sys.executable, path], cwd=tmp_path)
    dumped = os.WCOREDUMP(os.waitpid(expected.pid, 0)[1])
    expected.returncode = 0
    assert end.core_dumped == dumped


def test_an_exit_is_known_within_20_ms(script: Script, tmp_path: Path) -> None:
    path = script("import os, time; print(time.monotonic_ns(), flush=True); os._exit(3)")
    late_ms: list[float] = []
    with Rig(path) as rig:
        for _ in range(20):
            (end,) = rig.run(worker())
            assert rig.process.stdout is not None
            late_ms.append((end.at_ns - int(rig.process.stdout.readline())) / 1e6)
    assert sorted(late_ms)[len(late_ms) // 2] < 20


def test_an_exit_is_declared_though_a_grandchild_holds_the_output(script: Script) -> None:
    path = script(
        """
        import os, sys, time
        if os.fork() == 0:
            time.sleep(60)
        print("left", flush=True); sys.exit(4)
        """
    )
    with Rig(path) as rig:
        (end,) = rig.run(worker())
        assert end.code == 4
        rig.send(KillTree(0))
        out, _ = rig.end()
    assert out == "left\n"


def test_eight_deaths_at_once_are_eight_reports(script: Script) -> None:
    with Rig(script("import sys, time; print('up', flush=True); time.sleep(60)")) as rig:
        spawned = rig.spawn(*(worker(rank) for rank in range(8)))
        for each in spawned:
            os.kill(each.pid, signal.SIGKILL)
        ends = [rig.exited(rank) for rank in range(8)]
    assert [each.signal for each in ends] == [9] * 8
    assert not any(each.out_of_memory for each in ends)


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


def test_a_file_that_cannot_be_opened_is_a_failed_spawn(script: Script, tmp_path: Path) -> None:
    plan = worker(stdout=StreamPlan(file=str(tmp_path / "no" / "log"), console=False, direct=True))
    (tmp_path / "no").touch()
    with Rig(script("pass")) as rig:
        failed = rig.spawn_failing(plan)
    assert "Not a directory" in failed.reason
    assert failed.exit_code == 1


def test_signals_reach_whole_sessions_or_single_workers(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, signal, sys, time
        child = os.fork()
        name = f"{sys.argv[1]}/{os.environ['RANK']}.{'child' if child == 0 else 'main'}"
        def got(number, _):
            open(name, "w").write(str(number)); os._exit(0)
        signal.signal(signal.SIGTERM, got)
        open(name + ".up", "w").close()
        while True: time.sleep(60)
        """
    )

    def names() -> set[str]:
        return {entry.name for entry in tmp_path.iterdir() if entry.suffix in (".child", ".main")}

    with Rig(path, str(tmp_path)) as rig:
        rig.spawn(worker(0), worker(1))
        until(lambda: len(list(tmp_path.glob("*.up"))) == 4, what="four processes")
        rig.send(Signal(0, signal.SIGTERM, (0,), tree=False))
        rig.exited(0)
        assert names() == {"0.main"}
        rig.send(Signal(0, signal.SIGTERM, (1,)))
        rig.exited(1)
        until(lambda: names() == {"0.main", "1.main", "1.child"}, what="the child's signal")
        rig.send(KillTree(0))
        rig.end()


def test_a_stopped_worker_hears_a_signal_that_resumes(script: Script) -> None:
    with Rig(script("import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)")) as rig:
        (spawned,) = rig.spawn(worker())
        stat = Path(f"/proc/{spawned.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the stop")
        rig.send(Signal(0, signal.SIGTERM, resume=True))
        end = rig.exited()
    assert end.signal == signal.SIGTERM or end.code == 0  # the script may have ended before the signal came


def test_a_signal_for_another_cycle_does_nothing(script: Script) -> None:
    with Rig(script("import time; time.sleep(60)")) as rig:
        rig.spawn(worker(), cycle=2)
        rig.send(Signal(1, signal.SIGKILL))
        rig.send(Spawn(3, (worker(1, X="1"),)))
        rig.send(Signal(3, signal.SIGKILL))
        assert rig.exited(1).signal == signal.SIGKILL
        assert not rig.pending(Exited)


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.isdir("/sys/fs/cgroup/memory"), reason="needs a writable memory cgroup (v1)"
)
@pytest.mark.parametrize("who", ["worker", "child"])
def test_out_of_memory_is_told_apart(script: Script, tmp_path: Path, who: str) -> None:
    group = Path(f"/sys/fs/cgroup/memory/holdfast-test-{os.getpid()}")
    eat = "eat = bytearray(200 << 20)"
    source = {
        "worker": f"import sys\n{eat}\n",
        "child": (
            f"import os, sys\nif os.fork() == 0:\n    {eat}\n    os._exit(0)\n"
            "status = os.wait()[1]\nsys.exit(1 if status else 0)"
        ),
    }[who]
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        path = script(f"open('{group}/cgroup.procs', 'w').write('0')\n{source}")
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\necho 0 > {group}/cgroup.procs\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
        with Rig(path, python=str(wrapper), env=clean_env()) as rig:
            (end,) = rig.run(worker())
            assert end.out_of_memory
            assert (end.code, end.signal) == ((None, 9) if who == "worker" else (1, None))
            rig.spawn(worker(1))  # our own later kill in the same cgroup is not taken for one
            rig.end()
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), what="an empty cgroup")
        group.rmdir()
