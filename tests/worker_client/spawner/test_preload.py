"""What may be loaded ahead is read from the script's source; a line that forbids it is named."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Ready
from holdfast_wire.spawner_settings import SpawnerSettings

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, clean_env, with_env, worker
from worker_client.spawner import fitness, loading, preload

WRAPPER = ("worker_client.inprocess.wrap", "worker_client.channel")


def choose(path: str, **settings: str) -> preload.Choice:
    return preload.choose(SpawnerSettings("j", (path,), **settings))  # pyright: ignore[reportArgumentType]


class TestWhatIsLoaded:
    @pytest.mark.parametrize(
        ("source", "modules"),
        [
            ("import torch", ("torch",)),
            ("import torch.distributed as dist\nimport numpy as np", ("torch.distributed", "numpy")),
            ("import numpy.random, os\nfrom torch.nn.parallel import X", ("numpy.random", "torch.nn.parallel")),
            ("from torch import nn\nimport torch", ("torch",)),
            ("try:\n    import torch\nexcept ImportError:\n    torch = None", ("torch",)),
            ("if __name__ == '__main__':\n    import torch", ("torch",)),
            ("import lightning as L", ("torch", "torch._dynamo")),
            ("from accelerate import Accelerator", ("torch", "torch._dynamo")),
            ("import torch\nm = torch.nn.parallel.DistributedDataParallel(x)", ("torch", "torch._dynamo")),
            ("import torch\nfrom x import FSDP\ndef f():\n    return FSDP(m)", ("torch", "torch._dynamo")),
            ("import torch, os\nos.environ['TORCH_LOGS'] = 'x'\nDDP(m)", ("torch",)),
            ("import torch\nfrom worker_client import inprocess", ("torch", *WRAPPER)),
            ("import worker_client.inprocess.rank_assignment\nimport torch", ("torch", *WRAPPER)),
            ("import torch\nfrom worker_client.inprocess import Wrapper", ("torch", *WRAPPER)),
            ("import torch\nimport worker_client.inprocessing", ("torch",)),
            ("import torch\nfrom worker_client import RankMonitorClient", ("torch",)),
            ("import torch\nfrom worker_client import X\nfrom worker_client import inprocess", ("torch", *WRAPPER)),
            ("from worker_client import inprocess", ()),
            ("import numpy", ()),
            ("if len(x) > 2:\n    import torch", ()),
            ("def main():\n    import torch", ()),
            ("import torchmetrics", ()),
            ("from . import torch", ()),
            ("import mytorch", ()),
        ],
    )
    def test_auto_takes_what_is_imported_in_any_case(
        self, script: Script, source: str, modules: tuple[str, ...]
    ) -> None:
        assert choose(script(source)).steps == modules

    def test_none_and_named_modules(self, script: Script) -> None:
        path = script("import torch")
        assert choose(path, preload="none").modules == ()
        assert choose(path, preload="torch").modules == ("torch",)
        assert choose(path, preload="numpy, mine").modules == ("numpy", "mine")

    @pytest.mark.parametrize("source", ["def f(:", "\0", "# -*- coding: nonsense -*-"])
    def test_a_source_that_cannot_be_read_is_left_to_the_interpreter(self, script: Script, source: str) -> None:
        assert choose(script(source)).steps == ()

    def test_a_module_is_found_without_being_imported(self, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
        script("raise SystemExit('imported')", "job/pkg/__init__.py")
        path = script("import torch", "job/pkg/__main__.py")
        monkeypatch.chdir(Path(path).parent.parent)
        settings = SpawnerSettings("j", ("pkg",), entry="module")
        assert preload.source_path(settings) == path
        assert preload.choose(settings).modules == ("torch",)
        assert preload.source_path(SpawnerSettings("j", ("no.such",), entry="module")) == ""


class TestWhatForbidsIt:
    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("os.environ['OMP_NUM_THREADS'] = str(n)", "changes OMP_NUM_THREADS"),
            ("os.environ.setdefault('MKL_NUM_THREADS', n)", "changes MKL_NUM_THREADS"),
            ("os.environ.update(KMP_AFFINITY=n, A='b')", "changes KMP_AFFINITY"),
            ("os.putenv('PYTORCH_ALLOC_CONF', 'x')", "changes PYTORCH_ALLOC_CONF"),
            ("del os.environ['CUDA_MODULE_LOADING']", "changes CUDA_MODULE_LOADING"),
            ("os.environ.pop('LD_PRELOAD')", "changes LD_PRELOAD"),
            ("os.environ |= {'OMP_NUM_THREADS': '1'}", "changes os.environ as a whole"),
            ("os.environ[name] = '1'", "changes an environment variable whose name is computed"),
            ("os.environ.update(settings)", "changes an environment variable whose name is computed"),
            ("if 1:\n    os.environ['OPENBLAS_NUM_THREADS'] = '1'", "changes OPENBLAS_NUM_THREADS"),
            ("os.sched_setaffinity(0, {1})", "binds the process to CPUs"),
            ("sys.path.insert(0, find_it())", "puts a folder that is computed before the installed modules"),
            ("sys.path.insert(0, folder)", "puts a folder that is computed before the installed modules"),
            ("sys.path = ['/mine']", "replaces sys.path"),
        ],
    )
    def test_what_is_read_at_load_and_changed_above_the_import(self, script: Script, line: str, says: str) -> None:
        choice = choose(script(f"import os, sys\n{line}\nimport torch\n"))
        number = 2 + line.count("\n")
        assert (choice.steps, choice.learns) == ((), ("torch",)), "the workers load it themselves, and teach"
        bare = "workers are forked from a bare interpreter"
        assert choice.reason == f"{bare}: train.py, line {number}, {says}, above the import of torch"

    @pytest.mark.parametrize(
        "line",
        [
            "os.environ['NCCL_DEBUG'] = 'INFO'",
            "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']",
            "os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')",
            "print(os.environ['OMP_NUM_THREADS'], os.environ.get('MKL_NUM_THREADS'))",
            "sys.path.append('..')",
            "def late():\n    os.environ[name] = '1'",
        ],
    )
    def test_what_does_not(self, script: Script, line: str) -> None:
        assert choose(script(f"import os, sys\n{line}\nimport torch\n")).steps == ("torch",)

    def test_what_comes_after_the_import_does_not(self, script: Script) -> None:
        assert choose(script("import os, torch\nos.environ['OMP_NUM_THREADS'] = n")).modules == ("torch",)


class TestAssignments:
    """Assignments in the source are made for the load, too."""

    @pytest.mark.parametrize(
        ("line", "steps"),
        [
            ("os.environ['OMP_NUM_THREADS'] = '4'", ("OMP_NUM_THREADS=4",)),
            ("os.environ.setdefault('TORCH_LOGS', 'x')", ("TORCH_LOGS=x",)),
            ("os.environ.setdefault('KMP_THERE', '1')", ()),
            ("os.environ['KMP_THERE'] = 'as it is'", ()),
            ("os.environ.update({'KMP_A': '1', 'OTHER': '2'}, KMP_B='3')", ("KMP_A=1", "KMP_B=3")),
            ("N = '3'\nos.environ['MKL_NUM_THREADS'] = N", ("MKL_NUM_THREADS=3",)),
            ("os.environ['KMP_A'] = '1'\nos.environ['KMP_A'] = '2'", ("KMP_A=1", "KMP_A=2")),
            ("def f():\n    os.environ['KMP_A'] = 'f'\nf()", ("KMP_A=f",)),
        ],
    )
    def test_in_their_order_above_the_import(
        self, script: Script, monkeypatch: pytest.MonkeyPatch, line: str, steps: tuple[str, ...]
    ) -> None:
        for name in ("OMP_NUM_THREADS", "TORCH_LOGS", "MKL_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("KMP_THERE", "as it is")
        assert choose(script(f"import os\n{line}\nimport torch\n")).steps == (*steps, "torch")


class TestFitness:
    def test_files_beside_the_script_that_would_be_hidden(self, tmp_path: Path) -> None:
        loaded = {"json", "json.decoder", "numpy", "select", "queue"}
        assert fitness.shadowed(loaded, str(tmp_path)) == ""
        assert fitness.shadowed(loaded, "") == ""
        (tmp_path / "queue").mkdir()  # without __init__.py a folder does not win over a library module
        (tmp_path / "other.py").touch()
        assert fitness.shadowed(loaded, str(tmp_path)) == ""
        (tmp_path / "queue" / "__init__.py").touch()
        assert "the package queue beside the script" in fitness.shadowed(loaded, str(tmp_path))
        (tmp_path / "json.py").touch()
        assert "json.py beside the script would be hidden" in fitness.shadowed(loaded, str(tmp_path))

    def test_a_thread_is_named(self) -> None:
        release = threading.Event()
        thread = threading.Thread(target=release.wait, name="watcher")
        thread.start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert "runs the thread" in fitness.foreign_thread()
        finally:
            release.set()
            thread.join()

    def test_no_cuda_context_here(self) -> None:
        assert fitness.cuda_context() == ""

    def test_an_open_device_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read_link(path: str) -> str:
            return "/dev/nvidiactl" if path.endswith("/1") else "/x"

        monkeypatch.setattr("os.readlink", read_link)
        assert "opened /dev/nvidiactl" in fitness.cuda_context()


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


@pytest.mark.parametrize(
    ("file", "maker", "counts"), [("x.so", "nanobind", True), ("x.py", "nanobind", False), ("x.so", "builtins", False)]
)
def test_an_extension_that_counts_leaks_at_its_end_is_recognised(
    monkeypatch: pytest.MonkeyPatch, file: str, maker: str, counts: bool
) -> None:
    """Real ones: `python -m tests.soak packages --torch VERSION`, where triton is one."""
    module = types.ModuleType("extension")
    module.__file__ = file
    module.function = type("nb_func", (), {"__module__": maker})()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "extension", module)
    assert loading.counts_leaks({"sys", "extension", "is_not_there"}) is counts
