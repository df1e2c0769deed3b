"""How are modules loaded ahead, and what must not stay?"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker_client.spawner import preload_environment


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
    assert preload_environment.counts_leaks({"sys", "extension", "is_not_there"}) is counts


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Yields a function that writes a module; what was loaded of them is forgotten afterwards."""
    before, environment, path = set(sys.modules), dict(os.environ), list(sys.path)
    sys.path.insert(0, str(tmp_path))

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]
    preload_environment.restore_environment(environment)
    sys.path[:] = path


Library = Callable[[str, str], None]


def nothing(_modules: set[str]) -> str:
    return ""


def test_a_script_s_variables_are_set_for_the_load_only_and_a_module_s_own_stay(library: Library) -> None:
    library("first", "import os; SEEN = os.environ['MINE'], 'GONE' in os.environ; os.environ['BY_FIRST'] = 'x'")
    os.environ["GONE"] = "there"
    assert preload_environment.load(["MINE=1", "-GONE=", "first", "MINE=2"]) is None
    assert sys.modules["first"].SEEN == ("1", False)
    assert os.environ["GONE"] == "there"
    assert "MINE" not in os.environ
    assert os.environ["BY_FIRST"] == "x"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('no licence')", "could not be loaded ahead: RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "could not be loaded ahead: SystemExit: 3"),
        ("FD = os.dup(1)", "opens files or sockets, which workers would share"),
        ("import signal; signal.signal(signal.SIGUSR2, print)", "handles signals, which workers would share"),
        ("import sys; sys.path.append('/nowhere')", "changes sys.path, which workers would share"),
        ("import os; os.umask(0o77)", "changes the umask, which workers would share"),
        ("import os; os.environ.get('RANK')", "reads RANK when it is loaded (in it), which only a worker has"),
    ],
)
def test_a_module_that_leaves_what_a_fork_would_share_is_named(library: Library, source: str, says: str) -> None:
    library("it", f"import os\nos.environ['BY_IT'] = '1'\n{source}")
    handler, mask = signal.getsignal(signal.SIGUSR2), os.umask(0o022)
    os.umask(mask)
    try:
        assert preload_environment.load(["it"], nothing) == preload_environment.Failure("it", f"it {says}")
    finally:
        signal.signal(signal.SIGUSR2, handler)
        os.umask(mask)
        if (fd := getattr(sys.modules.get("it"), "FD", None)) is not None:
            os.close(fd)
    assert "BY_IT" not in os.environ, "the process starts over, as it was"


def test_a_part_of_torch_that_is_not_installed_is_left_out(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)  # as if it were not there
    library("after", "")
    failure = preload_environment.load(("numpy", "after"))
    assert failure is not None
    assert failure.step == "numpy"
    assert "after" not in sys.modules
    assert preload_environment.load(("numpy", "after"), skips_parts=True) is None
    assert "after" in sys.modules
    library("other", "import is_not_installed_at_all")
    assert preload_environment.load(("other",), skips_parts=True) is not None, "what is not torch's is told"


def test_what_the_caller_objects_to_ends_the_load_at_that_module(library: Library) -> None:
    for name in ("first", "second", "third"):
        library(name, "")
    asked: list[set[str]] = []

    def object_to_the_second(modules: set[str]) -> str:
        asked.append(modules)
        return "would be hidden" if "second" in modules else ""

    failure = preload_environment.load(["first", "second", "third"], object_to_the_second)
    assert failure == preload_environment.Failure("second", "second: would be hidden")
    assert asked == [{"first"}, {"second"}]
    assert "third" not in sys.modules


def test_a_step_that_removes_a_variable_is_told_from_one_that_sets_it() -> None:
    assert preload_environment.assignment("A", "1=2") == "A=1=2"
    assert preload_environment.assignment("A", None) == "-A="


def test_the_process_that_starts_over_is_where_it_was(tmp_path: Path) -> None:
    before, mask = os.getcwd(), os.umask(0o027)
    origin = preload_environment.Origin.now()
    try:
        os.chdir(tmp_path)
        os.umask(0o077)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        origin.restore()
        assert os.getcwd() == before
        assert os.umask(0o027) == 0o027
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    finally:
        origin.close()
        os.chdir(before)
        os.umask(mask)
