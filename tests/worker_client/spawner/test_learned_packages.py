"""Installed packages that all workers import are loaded ahead of the next ones, unless a worker would notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Learned, Ready

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker

PACKAGE = """
import os, time
from {name} import inner
time.sleep(0.2)
from {name} import last
os.environ["BY_{name}"] = "1"
LOADED_BY = os.getpid()
"""


class TestWhatElseWorkersImport:
    """Installed packages, beside torch; `heavy` and `light` stand for them."""

    @pytest.fixture(autouse=True)
    def packages(self, tmp_path: Path, env: dict[str, str]) -> None:
        for name in ("heavy", "other"):
            folder = tmp_path / "library" / name
            folder.mkdir()
            (folder / "__init__.py").write_text(PACKAGE.format(name=name))
            for part in ("inner", "last", "lazy"):
                (folder / f"{part}.py").touch()
        (tmp_path / "library" / "light.py").touch()

    def learned_after(self, path: str, env: dict[str, str], ranks: int = 2) -> Learned:
        """Returns what is learned from all imports of these workers."""
        with Rig(path, env=env, learn_after_s=0.5) as rig:
            rig.spawn(*map(worker, range(ranks)))
            lesson = rig.receive(Learned, lambda each: each.steps != ("torch",))
            assert [rig.exited(rank).code for rank in range(ranks)] == [0] * ranks
        return lesson

    def test_all_that_every_rank_imports_is_loaded_in_its_order(self, script: Script, env: dict[str, str]) -> None:
        script("import light", "job/mine.py")
        path = script(
            """
            import os, sys
            os.environ["FOR_HEAVY"] = "yes"
            import mine, heavy, torch, json
            os.environ["LATER"] = "x"
            import heavy.lazy
            if os.environ["RANK"] == "0":
                import other
            print(heavy.LOADED_BY == os.getpid(), os.environ["BY_heavy"], "FOR_HEAVY" in os.environ, flush=True)
            __import__("time").sleep(1)
            """
        )
        lesson = self.learned_after(path, env)
        steps = ("torch", "FOR_HEAVY=yes", "light", "heavy", "BY_heavy=1", "LATER=x", "heavy.lazy")
        assert lesson.steps == steps
        assert lesson.reason == "every worker imports light, heavy: it is being loaded for the next cycles"
        with Rig(path, env=env, learned=lesson.steps) as next_one:
            ready = next_one.receive(Ready)
            assert ready.preloaded == ("torch", "light", "heavy", "heavy.lazy")
            assert next_one.run(worker(1))[0].code == 0
            assert next_one.end()[0] == "False 1 True\n"

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("FILE = open(__file__)", "heavy opens files or sockets"),
            ("import signal; signal.signal(signal.SIGUSR1, print)", "heavy handles signals"),
            ("import sys; sys.path.append('/nowhere')", "heavy changes sys.path"),
            ("os.chdir('/')", "heavy changes the working folder"),
            ("import subprocess; CHILD = subprocess.Popen(['sleep', '9'])", "heavy starts a process"),
            ("import threading as t; t.Thread(None, time.sleep, 'x', [9], daemon=True).start()", "runs the thread 'x'"),
            ("os.environ.get('LOCAL_RANK')", "heavy reads LOCAL_RANK when it is loaded (in heavy)"),
            ("raise ImportError('not here')", "heavy could not be loaded ahead: ImportError: not here"),
        ],
    )  # fmt: skip
    def test_an_offender_is_left_out_and_named(
        self, script: Script, env: dict[str, str], tmp_path: Path, line: str, says: str
    ) -> None:
        heavy = tmp_path / "library" / "heavy" / "__init__.py"
        heavy.write_text(f"{heavy.read_text()}\n{line}\n")
        path = script("import os, sys; print('heavy' in sys.modules, 'light' in sys.modules, os.getcwd())")
        with Rig(path, env=env, cwd=tmp_path, learned=("torch", "heavy", "light")) as rig:
            ready = rig.receive(Ready)
            assert says in ready.lost
            assert ready.preloaded == ("torch", "light")
            assert rig.run(worker(0))[0].code == 0
            assert rig.end()[0] == f"False True {tmp_path}\n"

    def test_a_known_package_that_notes_its_rank_is_told_it(
        self, script: Script, env: dict[str, str], tmp_path: Path
    ) -> None:
        source = "import os\ndef rank_zero_only(): pass\nrank_zero_only.rank = int(os.environ.get('LOCAL_RANK', 0))"
        script("", "library/torchmetrics/__init__.py")
        script("", "library/torchmetrics/utilities/__init__.py")
        script(source, "library/torchmetrics/utilities/prints.py")
        text = "from torchmetrics.utilities.prints import rank_zero_only\nprint(f'{rank_zero_only.rank}\\n', end='')"
        path = script(text)
        with Rig(path, env=env, learned=("torch", "torchmetrics.utilities.prints")) as rig:
            assert rig.receive(Ready).preloaded == ("torch", "torchmetrics.utilities.prints")
            rig.run(worker(0), worker(7))
            assert sorted(rig.end()[0].split()) == ["0", "7"]

    def test_torch_counts_also_where_a_package_imports_it(
        self, script: Script, env: dict[str, str], tmp_path: Path
    ) -> None:
        heavy = tmp_path / "library" / "heavy" / "__init__.py"
        heavy.write_text(f"import os\nos.environ['OMP_NUM_THREADS'] = '3'\n__import__('torch')\n{heavy.read_text()}")
        path = script("import heavy, os; print(heavy.LOADED_BY == os.getpid(), flush=True); heavy.time.sleep(1)")
        with Rig(path, env=env, learn_after_s=0.5) as rig:
            rig.spawn(worker(0))
            assert rig.receive(Learned).steps == ("OMP_NUM_THREADS=3", "torch")
            lesson = rig.receive(Learned)
            assert rig.exited(0).code == 0
        assert [step for step in lesson.steps if "=" not in step] == ["torch", "heavy"]
        with Rig(path, env=env, learned=lesson.steps) as next_one:
            assert next_one.receive(Ready).preloaded == ("torch", "heavy")
            assert next_one.run(worker(0))[0].code == 0
            assert next_one.end()[0] == "False\n"

    def test_what_is_loaded_in_no_time_is_not_worth_a_successor(self, script: Script, env: dict[str, str]) -> None:
        path = script("import torch, light, os; __import__('time').sleep(0.5)")
        with Rig(path, env=env, learn_after_s=0.0) as rig:
            rig.run(worker(0))
            rig.run(worker(0), cycle=1)
            assert not rig.pending(Learned)

    def test_a_job_without_torch_teaches_nothing(self, script: Script, env: dict[str, str]) -> None:
        with Rig(script("import heavy"), env=env, learn_after_s=0.0) as rig:
            rig.run(worker(0))
            rig.run(worker(0), cycle=1)
            assert not rig.pending(Learned)

    def test_a_variable_of_each_rank_ends_the_list(self, script: Script, env: dict[str, str]) -> None:
        path = script(
            """
            import os, torch, heavy
            os.environ["MINE"] = os.environ["RANK"]
            import other
            __import__("time").sleep(1)
            """
        )
        lesson = self.learned_after(path, env)
        assert lesson.steps == ("torch", "heavy")
        why = "MINE differs between ranks when they import other"
        assert lesson.lost.startswith(f"each worker loads its modules itself: {why}; ")
