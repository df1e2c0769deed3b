"""Code that always runs is followed through the script's own modules and functions, in the order of execution."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_settings import SpawnerSettings
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_client.spawner.conftest import Script
from worker_client.spawner import preload
from worker_client.spawner.own_sources import OwnSources, Source
from worker_client.spawner.script_trace import Trace

Files = dict[str, str]
TORCH = ("torch",)
MAIN = "train.py"
TORCH_IMPORT = "import torch"
MAIN_IMPORTS = "def main():\n    import torch"
LIB_ON_PATH = "import sys, os\nsys.path.append(os.path.dirname(__file__) + '/lib')"
EITHER = "try:\n    from x import main\nexcept ImportError:\n    from y import main"
OMP = "os.environ['OMP_NUM_THREADS'] = '3'"
SETS_OMP = f"import os\n{OMP}"
DEF_OMP = "import os\ndef main():\n    os.environ['OMP_NUM_THREADS'] = '3'"
F = "import os\ndef f():\n    "


def choose(script: Script, files: Files, **more: str) -> preload.Choice:
    for name, source in files.items():
        script(source, f"job/{name}")
    path = script(files.get("train.py", ""), "job/train.py")
    return preload.choose(SpawnerSettings("j", (path,), **more))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("files", "steps"),
    [
        ({MAIN: "import model", "model.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "from model import Net", "model.py": "from torch import nn"}, TORCH),
        ({MAIN: "import pkg.model", "pkg/__init__.py": "", "pkg/model.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import pkg.other", "pkg/__init__.py": TORCH_IMPORT, "pkg/other.py": ""}, TORCH),
        ({MAIN: "from pkg import model", "pkg/__init__.py": "", "pkg/model.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "from pkg import A", "pkg/__init__.py": "from .model import A", "pkg/model.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import pkg.a", "pkg/a.py": "from . import b", "pkg/__init__.py": "", "pkg/b.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import pkg.a.b", "pkg/a/b.py": "from ..c import x", "pkg/c.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import a", "a.py": "import b", "b.py": "import a\nimport torch\nimport a"}, TORCH),
        ({MAIN: "from x import *", "x.py": "import torch, numpy"}, ("torch", "numpy")),
        ({MAIN: "import x\nimport numpy", "x.py": "import torch.nn"}, ("torch.nn", "numpy")),
        ({MAIN: "try:\n    import x\nexcept ImportError:\n    pass", "x.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "if __name__ == '__main__':\n    import x", "x.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import queue", "queue.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import sys\nsys.path.append('lib')\nimport x", "lib/x.py": TORCH_IMPORT}, ()),
        ({MAIN: f"{LIB_ON_PATH}\nimport x", "lib/x.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import x", "x.py": "if __name__ == '__main__':\n    import torch"}, ()),
        ({MAIN: "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import x", "x.py": TORCH_IMPORT}, ()),
        ({MAIN: "if a:\n    import x", "x.py": TORCH_IMPORT}, ()),
        ({MAIN: "def f():\n    import x", "x.py": TORCH_IMPORT}, ()),
        ({MAIN: "import x", "x.py": "def f():\n    import torch"}, ()),
        ({MAIN: "import x", "x.py": "def f(:"}, ()),
        ({MAIN: "import pkg", "pkg/__init__.py": "from ... import torch\nfrom .... import x"}, ()),
        ({MAIN: "from . import x\nfrom .x import y", "x.py": TORCH_IMPORT}, ()),
        # Its own functions that are always called.
        ({MAIN: "def main():\n    import torch\nmain()"}, TORCH),
        ({MAIN: f"{MAIN_IMPORTS}\nif __name__ == '__main__':\n    sys.exit(main())"}, TORCH),
        ({MAIN: "from x import main\nmain()", "x.py": MAIN_IMPORTS}, TORCH),
        ({MAIN: "import x\nx.main()", "x.py": MAIN_IMPORTS}, TORCH),
        ({MAIN: "import pkg.x as y\ny.go()", "pkg/x.py": f"{MAIN_IMPORTS}\ndef go():\n    main()"}, TORCH),
        ({MAIN: "def main(a):\n    if not a:\n        return\n    import torch\nmain(1)"}, ()),
        ({MAIN: "def main():\n    return 1\n    import torch\nmain()"}, ()),
        ({MAIN: "def main():\n    import torch\nif x:\n    main()"}, ()),
        ({MAIN: "def main():\n    import torch\nif x:\n    main()\nmain()"}, TORCH),
        ({MAIN: "def a():\n    b()\ndef b():\n    a()\n    import torch\na()"}, TORCH),
        ({MAIN: "def main():\n    import torch\nlist(map(main, x))"}, ()),
        ({MAIN: "if TYPE_CHECKING:\n    import y\nelse:\n    import x", "x.py": TORCH_IMPORT}, TORCH),
        ({MAIN: "import x", "x.py": "if __name__ == '__main__':\n    y()\nelse:\n    import torch"}, TORCH),
        # The function is one of two.
        ({MAIN: f"{EITHER}\nmain()", "x.py": MAIN_IMPORTS, "y.py": "def main():\n    pass"}, ()),
        # What may have been imported is imported in any case after it.
        ({MAIN: "if a:\n    import x\nimport x", "x.py": TORCH_IMPORT}, TORCH),
    ],
)  # fmt: skip
def test_what_is_imported_in_any_case(script: Script, files: Files, steps: tuple[str, ...]) -> None:
    assert choose(script, files).steps == steps


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"train.py": "import x\nimport torch", "x.py": "import os\nos.environ['OMP_NUM_THREADS'] = f()"},
            "x.py, line 2, changes OMP_NUM_THREADS",
        ),
        (
            {"train.py": "import x\nx.f()\nimport torch", "x.py": f"{F}os.sched_setaffinity(0, {{1}})"},
            "x.py, line 3, binds the process to CPUs",
        ),
        (
            {"train.py": "import x\nif y:\n    x.f()\nimport torch", "x.py": f"{F}os.environ['KMP_A'] = '1'"},
            "x.py, line 3, changes KMP_A",
        ),
        # Of modules that may not be imported, and of functions that may not be meant.
        (
            {"train.py": "if a:\n    import x\nimport torch", "x.py": SETS_OMP},
            "x.py, line 2, changes OMP_NUM_THREADS",
        ),
        (
            {"train.py": "if a:\n    from p import x\nimport torch", "p/x.py": "from . import y", "p/y.py": SETS_OMP},
            "y.py, line 2, changes OMP_NUM_THREADS",
        ),
        (
            {"train.py": "try:\n    import z\nexcept ImportError:\n    import x\nimport torch", "x.py": SETS_OMP},
            "x.py, line 2, changes OMP_NUM_THREADS",
        ),
        (
            {"train.py": "def f():\n    if a:\n        return\n    import x\nf()\nimport torch", "x.py": SETS_OMP},
            "x.py, line 2, changes OMP_NUM_THREADS",
        ),
        (
            {"train.py": f"{EITHER}\nmain()\nimport torch", "x.py": "def main():\n    pass", "y.py": DEF_OMP},
            "y.py, line 3, changes OMP_NUM_THREADS",
        ),
        (
            {"train.py": f"if a:\n    import x\n{SETS_OMP}\nimport torch", "x.py": "import torch"},
            "train.py, line 4, changes OMP_NUM_THREADS",
        ),
        (
            {"train.py": f"import os\ntry:\n    import z\n    {OMP}\nexcept E:\n    y\nimport torch"},
            "train.py, line 2, changes OMP_NUM_THREADS",
        ),
    ],
)  # fmt: skip
def test_what_own_modules_change_above_the_import_is_named(script: Script, files: Files, says: str) -> None:
    choice = choose(script, files)
    assert choice.steps == ()
    assert f"{says}, above the import of torch" in choice.reason


def test_a_function_that_is_only_defined_forbids_nothing(script: Script) -> None:
    files = {
        "train.py": "import x\nimport torch",
        "x.py": "import os\ndef f():\n    os.environ['OMP_NUM_THREADS'] = g()",
    }
    assert choose(script, files).steps == TORCH


def test_assignments_of_own_modules_keep_their_place(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    files = {
        "train.py": "import env\nimport numpy\nimport later\nimport torch",
        "env.py": "import os\nos.environ['OPENBLAS_NUM_THREADS'] = '2'",
        "later.py": "from os import environ\nenviron.setdefault('TORCH_CPP_LOG_LEVEL', 'error')",
    }
    steps = ("OPENBLAS_NUM_THREADS=2", "numpy", "TORCH_CPP_LOG_LEVEL=error", "torch")
    assert choose(script, files).steps == steps


PART = "torch.distributed.elastic"


@pytest.mark.parametrize(
    ("source", "steps"),
    [
        ("import torch\nos.environ['TORCH_X'] = '1'\nimport {}", ("torch", "TORCH_X=1", PART)),
        ("import torch\nos.environ['TORCH_X'] = f()\nimport {}\nimport numpy", TORCH),
        ("import torch\nif a:\n    os.environ['TORCH_X'] = '1'\nimport {}", TORCH),
        ("import torch\nif a:\n    import x\nimport {}", TORCH),
        ("import torch\nif a:\n    import {0}\nos.environ['TORCH_X'] = '1'\nimport {0}", TORCH),
        ("import torch\nos.environ['NCCL_DEBUG'] = f()\nimport {}", ("torch", PART)),
    ],
)
def test_a_part_of_torch_sees_what_was_set_after_torch(script: Script, source: str, steps: tuple[str, ...]) -> None:
    files = {"train.py": f"import os\n{source.format(PART)}", "x.py": SETS_OMP}
    assert choose(script, files).steps == steps


def test_a_variable_set_after_torch_was_not_set_for_it(script: Script) -> None:
    choice = choose(script, {"train.py": f"import torch\n{SETS_OMP}\nimport torch.nn"})
    assert (choice.modules, choice.variables) == (("torch", "torch.nn"), frozenset())


@pytest.mark.parametrize(
    ("line", "is_loaded"),
    [
        ("os.environ[name] = '1'", False),
        ("os.sched_setaffinity(0, cpus)", False),
        ("os.environ['OMP_NUM_THREADS'] = str(n)", True),
        ("if compiles:\n    import x", False),
    ],
)
def test_dynamo_is_loaded_unless_it_may_read_what_is_set_after_torch(
    script: Script, line: str, *, is_loaded: bool
) -> None:
    source = f"import os, torch\n{line}\nDDP(model)"
    files = {"train.py": source, "x.py": "import os\nos.environ['TORCHDYNAMO_X'] = '1'"}
    assert (preload.DYNAMO in choose(script, files).steps) == is_loaded


def test_what_is_said(script: Script) -> None:
    files = {"train.py": "import x", "x.py": "import torch"}
    assert choose(script, files).reason == "workers are forked with torch loaded: x.py imports it in any case"
    assert "the script imports it in any case" in choose(script, {"train.py": "import torch"}).reason


def test_a_module_run_by_name_brings_the_packages_around_it(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("import torch", "job/pkg/__init__.py")
    script("", "job/pkg/inner/__init__.py")
    script("from .other import x", "job/pkg/inner/train.py")
    script("import numpy", "job/pkg/inner/other.py")
    for folder, path in ((tmp_path / "job", []), (tmp_path, [str(tmp_path / "job")])):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*path, *sys.path])
        settings = SpawnerSettings("j", ("pkg.inner.train",), entry="module")
        assert preload.choose(settings).steps == ("torch", "numpy")


def test_installed_packages_are_not_followed(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script("import torch", "library/site-packages/other.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "library" / "site-packages"), *sys.path])
    assert choose(script, {"train.py": "import other"}).steps == ()
    settings = SpawnerSettings("j", ("other",), entry="module")
    assert preload.choose(settings).steps == TORCH, "the script itself may be one"


def test_a_long_chain_and_a_wide_one_end(script: Script) -> None:
    chain = {f"m{number}.py": f"import m{number + 1}" for number in range(120)}
    chain["m120.py"] = "import torch"
    assert choose(script, {"train.py": "import m0", **chain}).steps == ()
    calls = "".join(f"def f{number}():\n    f{number + 1}()\n" for number in range(200))
    assert choose(script, {"train.py": f"{calls}f0()\nimport torch"}).steps == TORCH
    assert choose(script, {"train.py": "import torch\nx = " + "+".join("y" * 3000)}).steps in (TORCH, ())


_STATEMENTS = st.sampled_from(
    [
        "import torch", "import own", "if x:\n    import own", "import torch.nn",
        "from own import f", "f()", "from . import g",
        "def f():\n    import torch\n    return",
        "if x:\n    f()", "try:\n    f()\nexcept Exception:\n    own.f()", "os.environ['OMP_NUM_THREADS'] = '1'",
        "os.environ[x] = y", "os.environ.update(**x)", "os.environ.update({**x})", "sys.path.insert(0, x)",
        "sys.path.insert()", "class A:\n    f()\n    def g(self):\n        own.f()",
        "with f() as x:\n    import own.inner",
        "for x in y:\n    return_ = f", "import own as f", "async def f():\n    await g()", "lambda: f()", "del f",
        "match x:\n    case 1:\n        f()", "@f\ndef own():\n    own()", "own()", "import a.b.c.d as f", "f.f.f()",
    ]
)  # fmt: skip


@settings(max_examples=150)
@given(st.lists(_STATEMENTS, max_size=12), st.lists(_STATEMENTS, max_size=12))
def test_any_mixture_is_read_to_its_end(main: list[str], own: list[str]) -> None:
    class Two(OwnSources):
        def has(self, name: str) -> bool:
            return name.partition(".")[0] == "own"

        def module(self, name: str) -> Source | None:
            return Source("own", "", "/job/own.py", ast.parse("\n".join(own))) if name == "own" else None

    source = Source("__main__", "", "/job/train.py", ast.parse("\n".join(main)))
    trace = Trace(Two([]), source, "/job")
    assert bool(trace.torch_in) == any(step.partition(".")[0] == "torch" for step in trace.steps)
