"""Which lines above the import of torch forbid its load, and which are carried out for it?"""

from __future__ import annotations

import pytest
from holdfast_wire.spawner_settings import SpawnerSettings

from tests.worker_client.spawner.conftest import Script
from worker_client.spawner import preload


def choose(path: str, **settings: str) -> preload.Choice:
    return preload.choose(SpawnerSettings("j", (path,), **settings))  # pyright: ignore[reportArgumentType]


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
            ("os.environ['CXX'] = '/opt/g++'", ("CXX=/opt/g++",)),
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
        for name in ("OMP_NUM_THREADS", "TORCH_LOGS", "MKL_NUM_THREADS", "CXX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("KMP_THERE", "as it is")
        assert choose(script(f"import os\n{line}\nimport torch\n")).steps == (*steps, "torch")
