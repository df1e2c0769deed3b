"""What is loaded ahead, and does a spawner that may not keep it start over without a trace?

Modules that are not torch stand for it, so that each case is fast.
"""

from __future__ import annotations

import venv
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Ready
from holdfast_wire.spawner_settings import SpawnerSettings

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, clean_env, with_env, worker
from worker_client.spawner import spawner_startup
from worker_client.spawner.preload_environment import Failure


class TestForReal:
    """Named modules that are not torch, so that each case is fast."""

    def test_a_named_module_of_the_user_is_loaded_once(self, script: Script, tmp_path: Path) -> None:
        script("import os\nprint('loaded by', os.getpid(), flush=True)", "job/heavy.py")
        path = script("import heavy, os, sys; os.write(1, b'run %d\\n' % (sys.path[0] == sys.argv[1]))")
        with Rig(path, str(Path(path).parent), preload="heavy", cwd=tmp_path) as rig:
            ready = rig.receive(Ready)
            assert (ready.method, ready.preloaded) == ("fork", ("heavy",))
            rig.run(worker(0), worker(1))
            out, _ = rig.end()
        assert out.splitlines() == [f"loaded by {rig.process.pid}", "run 1", "run 1"]

    def test_a_module_that_fails_leaves_a_bare_interpreter(self, script: Script) -> None:
        script("import decimal\nraise RuntimeError('no licence')", "job/heavy.py")
        path = script("import sys; print('decimal' in sys.modules, 'heavy' in sys.modules)")
        with Rig(path, preload="heavy") as rig:
            ready = rig.receive(Ready)
            assert ready.method == "fork"
            assert "heavy could not be loaded ahead: RuntimeError: no licence" in ready.method_reason
            assert rig.run(worker())[0].code == 0
            assert rig.end()[0] == "False False\n"

    def test_a_module_with_a_thread_leaves_a_bare_interpreter(self, script: Script) -> None:
        script(
            "import os, threading, time\nos.environ['HEAVY'] = '1'\n"
            "threading.Thread(None, time.sleep, 'watch', (60,), daemon=True).start()",
            "job/heavy.py",
        )
        path = script("import os, sys; print('heavy' in sys.modules, sys.argv[1:], 'HEAVY' in os.environ)")
        with Rig(path, "a", preload="heavy") as rig:
            ready = rig.receive(Ready)
            assert (ready.method, ready.preloaded) == ("fork", ())
            assert "runs the thread 'watch'" in ready.method_reason
            assert "runs the thread 'watch'" in ready.lost
            assert "leave it out of --preload" in ready.lost
            assert rig.run(worker())[0].code == 0
            assert rig.end()[0] == "False ['a'] False\n"

    def test_a_thread_that_comes_with_the_interpreter_has_workers_executed(
        self, script: Script, tmp_path: Path
    ) -> None:
        """As from a profiler's library in LD_PRELOAD: no load can be left out, and a fork would lose the thread."""
        venv.create(tmp_path / "venv")
        (folder,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        start = "threading.Thread(None, time.sleep, 'profiler', (600,), daemon=True).start()"
        (folder / "profiler.pth").write_text(f"import threading, time; {start}\n")
        path = script("import threading; print(*{each.name for each in threading.enumerate()} - {'MainThread'})")
        with Rig(path, python=str(tmp_path / "venv" / "bin" / "python")) as rig:
            ready = rig.receive(Ready)
            assert ready.method == "exec"
            assert "runs the thread 'profiler'" in ready.method_reason
            assert rig.run(worker())[0].code == 0
            assert rig.end()[0] == "profiler\n"

    def test_a_shadowed_module_leaves_a_bare_interpreter(self, script: Script, tmp_path: Path) -> None:
        """A stand-in for torch imports a library module that the script's folder hides."""
        library = tmp_path / "library"
        (library / "torch").mkdir(parents=True)
        (library / "torch" / "__init__.py").write_text(
            "import queue\nWHO = queue.WHO if hasattr(queue, 'WHO') else 'lib'"
        )
        script("WHO = 'mine'", "job/queue.py")
        path = script("import torch; print(torch.WHO)")
        with Rig(path, env=clean_env(PYTHONPATH=str(library))) as rig:
            ready = rig.receive(Ready)
            assert (ready.method, ready.preloaded) == ("fork", ())
            assert "queue.py beside the script would be hidden by the preloaded module queue" in ready.lost
            assert "rename that file" in ready.lost
            assert rig.run(worker())[0].code == 0
            assert rig.end()[0] == "mine\n"

    def test_a_variable_is_set_for_the_load_and_not_for_the_worker(self, script: Script, tmp_path: Path) -> None:
        """Through the script's own module, after the launcher has set another value."""
        library = tmp_path / "library"
        library.mkdir()
        (library / "torch.py").write_text(
            "import os\nSEEN = os.environ.get('OMP_NUM_THREADS')\nos.environ['BY_TORCH'] = '1'\nBY = os.getpid()\n"
            "class default_generator:\n    seed = staticmethod(lambda: 0)\ndef set_num_threads(n): raise SystemExit(3)"
        )
        script("import os\nos.environ['OMP_NUM_THREADS'] = '3'\nimport torch", "job/pkg/__init__.py")
        path = script(
            "import os\nprint(os.environ['OMP_NUM_THREADS'])\nimport pkg\nfrom pkg import torch\n"
            "print(torch.SEEN, os.environ['OMP_NUM_THREADS'], os.environ['BY_TORCH'], torch.BY == os.getpid())"
        )
        env = clean_env(PYTHONPATH=str(library)) | {"OMP_NUM_THREADS": "1"}
        with Rig(path, env=env) as rig:
            ready = rig.receive(Ready)
            assert (ready.preloaded, ready.lost) == (("torch",), "")
            assert rig.run(with_env(0, {"OMP_NUM_THREADS": "2"}))[0].code == 0
            assert rig.end()[0] == "2\n3 3 1 False\n"

    def test_descriptors_of_a_preloaded_module_stay_open(self, script: Script, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("kept")
        script(f"FILE = open({str(tmp_path / 'data')!r})", "job/heavy.py")
        with Rig(script("import heavy; print(heavy.FILE.read())"), preload="heavy") as rig:
            rig.run(worker())
            assert rig.end()[0] == "kept\n"


class TestWhatIsLeftOut:
    """After a load that failed, the process starts over with these settings."""

    LEARNED = SpawnerSettings("j", ("train.py",), learned=("torch", "A=1", "heavy", "light"))

    def test_one_module_is_left_out_and_named(self) -> None:
        again = spawner_startup._without(self.LEARNED, Failure("heavy", "heavy opens files"))  # pyright: ignore[reportPrivateUsage]
        assert again.learned == ("torch", "A=1", "light")
        assert again.preload == "auto"
        assert again.lost.startswith("each worker loads it itself: heavy opens files; all else is loaded ahead")
        twice = spawner_startup._without(again, Failure("light", "light handles signals"))  # pyright: ignore[reportPrivateUsage]
        assert twice.learned == ("torch", "A=1")
        assert "heavy opens files; light handles signals; all else is loaded ahead" in twice.lost
        assert twice.lost.count("all else") == 1

    def test_after_many_only_torch_is_still_tried(self) -> None:
        settings = self.LEARNED
        for number in range(spawner_startup._DROPPED_MAX + 1):  # pyright: ignore[reportPrivateUsage]
            settings = spawner_startup._without(settings, Failure(f"module{number}", f"module{number} opens files"))  # pyright: ignore[reportPrivateUsage]
        assert settings.learned == ("torch", "A=1")

    @pytest.mark.parametrize(
        ("preload", "sentence", "remedy"),
        [
            (
                "auto",
                "queue.py beside the script would be hidden",
                "rename that file, or accept it with --preload none",
            ),
            ("auto", "a preloaded module runs the thread 'x'", "accept it with --preload none"),
            ("heavy", "heavy could not be loaded ahead", "leave it out of --preload, or correct it"),
        ],
    )
    def test_what_cannot_be_left_out_leaves_a_bare_interpreter(self, preload: str, sentence: str, remedy: str) -> None:
        settings = SpawnerSettings("j", ("train.py",), preload=preload)
        again = spawner_startup._without(settings, Failure("", sentence))  # pyright: ignore[reportPrivateUsage]
        assert (again.preload, again.learned) == ("none", ())
        assert again.decided == f"workers are forked from a bare interpreter: {sentence}"
        assert again.lost == f"each worker loads its modules itself: {sentence}; {remedy}"
