"""What a script's source does not show is learned from the first workers. A module stands for torch."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Learned, Ready

from tests.worker_client.spawner.conftest import TORCH, Script
from tests.worker_client.spawner.rig import Rig, clean_env, is_alive, until, worker
from worker_client.spawner import learned_imports

LATE = """
    import os, sys
    def main():
        {above}
        import torch
        mine, nice = torch.LOADED_BY == os.getpid(), os.getpriority(os.PRIO_PROCESS, 0)
        os.write(1, f"{mine} {nice} {os.sched_getscheduler(0)}\\n".encode())
        {below}
    if sys.argv:
        main()
"""


def late(script: Script, above: str = "pass", below: str = "pass") -> str:
    return script(LATE.replace("{above}", above).replace("{below}", below))


class TestWhatWorkersTeach:
    def test_an_import_inside_a_function_and_a_successor_that_has_it_loaded(
        self, script: Script, env: dict[str, str]
    ) -> None:
        path = late(script)
        with Rig(path, env=env, learn_after_s=0.0) as rig:
            assert rig.receive(Ready).preloaded == ()
            assert [exited.code for exited in rig.run(worker(0), worker(1))] == [0, 0]
            learned = rig.receive(Learned)
            own = f"{os.getpriority(os.PRIO_PROCESS, 0)} {os.sched_getscheduler(0)}"
            assert rig.end()[0] == f"True {own}\n" * 2
        assert learned.steps == ("torch",)
        with Rig(path, env=env, learned=learned.steps, learned_folders=learned.folders) as next_one:
            ready = next_one.receive(Ready)
            assert (ready.method, ready.preloaded) == ("fork", ("torch",))
            next_one.run(worker(0))
            assert next_one.end()[0] == f"False {own}\n", "loaded ahead, and no worker inherits the low priority"

    @pytest.mark.alone  # it loads at the lowest priority
    def test_the_real_torch_that_was_learned_is_loaded_ahead(self, script: Script) -> None:
        path = script(
            """
            import os, sys
            def main():
                print(*(name in sys.modules for name in ("torch", "torch.distributed")))
            if sys.argv:
                main()
            """
        )
        with Rig(path, learned=("torch", "torch.distributed")) as rig:
            ready = rig.receive(Ready, wait_s=90)
            assert (ready.method, ready.preloaded) == ("fork", ("torch", "torch.distributed")), ready.method_reason
            rig.run(worker(0))
            assert rig.end()[0] == "True True\n"

    def test_the_load_itself_has_a_low_priority(self, script: Script, env: dict[str, str]) -> None:
        path = script("import torch; print(*torch.PRIORITY)")
        with Rig(path, env=env, learned=("torch",)) as rig:
            rig.run(worker(0))
            nice, policy = map(int, rig.end()[0].split())
        assert nice == 19 or policy == os.SCHED_BATCH

    def test_it_is_said_once_and_only_when_all_workers_did(self, script: Script, env: dict[str, str]) -> None:
        read_end, write_end = os.pipe()
        path = late(script, above="os.environ['RANK'] == '1' and os.read(0, 1)")
        with Rig(path, env=env, stdin=read_end, learn_after_s=0.0) as rig:
            os.close(read_end)
            rig.spawn(worker(0), worker(1))
            rig.exited(0)
            assert not rig.pending(Learned)
            os.close(write_end)
            rig.receive(Learned, wait_s=20.0)
            rig.run(worker(0), worker(1), cycle=1)
            rig.end()
            assert not rig.pending(Learned)

    def test_a_child_of_the_worker_teaches_nothing(self, script: Script, env: dict[str, str]) -> None:
        path = script(
            """
            import os
            if os.fork() == 0:
                import torch
                os._exit(0)
            os.wait()
            """
        )
        with Rig(path, env=env, learn_after_s=0.0) as rig:
            rig.run(worker(0))
            rig.run(worker(0), cycle=1)  # any message would have come before this
            assert not rig.pending(Learned)

    @pytest.mark.parametrize(
        ("method", "preload", "may_restart"),
        [("auto", "none", True), ("auto", "auto", False), ("exec", "auto", True)],
    )
    def test_who_does_not_want_it_is_not_watched(
        self, script: Script, env: dict[str, str], method: str, preload: str, may_restart: bool
    ) -> None:
        with Rig(
            late(script), env=env, learn_after_s=0.0, method=method, preload=preload, may_restart=may_restart
        ) as rig:
            rig.run(worker(0))
            rig.run(worker(0), cycle=1)
            assert not rig.pending(Learned)


class TestWhatForbidsIt:
    @pytest.mark.parametrize(
        ("above", "says"),
        [
            (
                "os.environ['OMP_NUM_THREADS'] = str(2 + int(os.environ['RANK']))",
                "OMP_NUM_THREADS differs between ranks",
            ),
            ("sys.path.append(sys.path.pop(2))", "replaced sys.path before it imported torch"),
            (
                "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
                "was bound to other CPUs before it imported torch",
            ),
        ],
    )
    def test_what_a_load_reads_differs(self, script: Script, env: dict[str, str], above: str, says: str) -> None:
        with Rig(late(script, above), env=env, learn_after_s=0.0) as rig:
            rig.run(worker(0), worker(1))
            learned = rig.receive(Learned)
        assert learned.steps == ()
        assert says in learned.reason
        assert says in learned.lost

    @pytest.mark.parametrize(
        ("above", "step"),
        [
            ("os.environ['OMP_NUM_THREADS'] = str(3 + 4)", "OMP_NUM_THREADS=7"),
            ("os.putenv('TORCH_LOGS', 'x')", "TORCH_LOGS=x"),
            ("del os.environ['MKL_NUM_THREADS']", "-MKL_NUM_THREADS="),
            ("__import__('mine')", "KMP_AFFINITY=none"),
        ],
    )
    def test_what_all_ranks_change_alike_before_it_is_changed_for_the_load(
        self, script: Script, env: dict[str, str], above: str, step: str
    ) -> None:
        script("import os\nos.environ['KMP_AFFINITY'] = 'none'", "job/mine.py")
        with Rig(late(script, above), env=env | {"MKL_NUM_THREADS": "1"}, learn_after_s=0.0) as rig:
            rig.run(worker(0), worker(1))
            assert rig.receive(Learned).steps == (step, "torch")

    def test_who_only_asks_whether_it_is_there_imports_nothing(self, script: Script, env: dict[str, str]) -> None:
        ask = "import importlib.util; assert importlib.util.find_spec('torch')"
        with Rig(script(ask), env=env, learn_after_s=0.0) as rig:
            assert rig.run(worker(0))[0].code == 0
            rig.run(worker(0), cycle=1)
            assert not rig.pending(Learned)
        with Rig(late(script, above=ask), env=env, learn_after_s=0.0) as rig:
            rig.run(worker(0))
            assert rig.receive(Learned).steps == ("torch",)

    def test_a_torch_of_its_own_teaches_nothing(self, script: Script, env: dict[str, str]) -> None:
        script(TORCH, "job/torch.py")
        with Rig(late(script), env=env, learn_after_s=0.0) as rig:
            assert rig.run(worker(0))[0].code == 0
            rig.run(worker(0), cycle=1)
            assert not rig.pending(Learned)

    @pytest.mark.parametrize(
        "above",
        [
            "os.environ['NCCL_DEBUG'] = 'INFO'",
            "os.environ['OMP_NUM_THREADS'] = '1'",  # it already has this value
            "sys.path.append('/nowhere')",
        ],
    )
    def test_what_does_not(self, script: Script, env: dict[str, str], above: str) -> None:
        with Rig(late(script, above), env=env | {"OMP_NUM_THREADS": "1"}, learn_after_s=0.0) as rig:
            rig.run(worker(0))
            assert rig.receive(Learned).steps == ("torch",)

    def test_a_folder_put_before_is_named_and_what_it_hides_is_looked_at(
        self, script: Script, env: dict[str, str], tmp_path: Path
    ) -> None:
        mine = tmp_path / "mine"
        mine.mkdir()
        path = late(script, above=f"sys.path.insert(0, {str(mine)!r})")
        with Rig(path, env=env, learn_after_s=0.0) as rig:
            rig.run(worker(0))
            learned = rig.receive(Learned)
        assert str(mine) in learned.folders
        (mine / "torch.py").touch()
        with Rig(path, env=env, learned=learned.steps, learned_folders=learned.folders) as next_one:
            ready = next_one.receive(Ready)
            assert ready.preloaded == (), "a supervisor does not let this one take over"
            assert f"torch.py in {mine} would be hidden" in ready.lost

    def test_a_lesson_that_cannot_be_loaded_leaves_a_bare_interpreter(self, script: Script) -> None:
        path = late(script)
        with Rig(path, learned=("no_such_module",)) as rig:
            ready = rig.receive(Ready)
            assert (ready.method, ready.preloaded) == ("fork", ())
            assert "no_such_module could not be loaded ahead" in ready.method_reason


def test_a_script_that_closes_all_descriptors_and_drops_its_signals_teaches_all_the_same(
    script: Script, env: dict[str, str]
) -> None:
    above = "os.closerange(3, 100); __import__('signal').pthread_sigmask(0, range(1, 20))"
    with Rig(late(script, above), env=env, learn_after_s=0.0) as rig:
        rig.run(worker(0))
        assert rig.receive(Learned).steps == ("torch",)


def test_the_watch_hides_nothing(script: Script, env: dict[str, str]) -> None:
    above = "import importlib.util as u; assert u.find_spec('library_has_no_such') is None"
    with Rig(late(script, above), env=env, learn_after_s=0.0) as rig:
        assert rig.run(worker(0))[0].code == 0
        assert rig.receive(Learned).steps == ("torch",)


def test_a_failing_watch_never_fails_the_script(script: Script, env: dict[str, str]) -> None:
    above = "os.sched_getaffinity = None"
    with Rig(late(script, above), env=env, learn_after_s=0.0) as rig:
        assert rig.run(worker(0))[0].code == 0
        assert not rig.pending(Learned)


def test_where_torch_is_not_installed_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    learned_imports.LearnedImports((), ("torch",)).observe(0)
    assert str(tmp_path) not in sys.path_importer_cache


def test_more_ranks_than_the_page_has_teach_nothing() -> None:
    lessons = learned_imports.LearnedImports((), ("torch",))
    lessons.begin(0, range(learned_imports.RANKS_MAX + 1))
    assert not lessons.has_news()
    assert lessons.first() is None


def test_a_load_in_the_background_ends_with_its_supervisor(script: Script, tmp_path: Path) -> None:
    """A parent dies while something is loaded, which nobody would notice."""
    flag = tmp_path / "loading"
    # No pause(): a signal that comes just before it would not end it.
    script(f"open({str(flag)!r}, 'w').close()\nimport time\nwhile True:\n    time.sleep(0.05)", "library/torch.py")
    env = clean_env(PYTHONPATH=str(tmp_path / "library"))
    pid = os.fork()
    if pid == 0:
        rig = Rig(late(script), env=env, learned=("torch",))
        (tmp_path / "pid").write_text(str(rig.process.pid))
        signal.pause()
    until(flag.exists, what="the load")
    spawner = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: not is_alive(spawner), what="the end of the spawner")
