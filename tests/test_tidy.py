"""Does the source follow our style? It covers rules that no linter knows; the exception lists only shrink."""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = ("holdfast_command.py", "holdfast_torchrun.py", "supervisor", "worker_client", "proto/holdfast_wire")
CODE_LINES_MAX = 350
FUNCTION_LINES_MAX = 70
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
CLOCK_FILE = "supervisor/edges/machine/clock.py"
LOCAL_TIME_FILE = "supervisor/local_time.py"
WALL_CLOCK = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.strftime"}
MONOTONIC_CLOCK = {
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "process_time", "clock_gettime")
    for unit in ("", "_ns")
}
DURATION_WORDS = {
    "timeout",
    "interval",
    "delay",
    "ttl",
    "deadline",
    "duration",
    "period",
    "grace",
    "backoff",
    "elapsed",
}
SERIALISERS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}

# Written so that this file does not match them.
WORKPLACE = re.compile(r"/wor[k]/|/roo[t]/|/tmp/brie[f]|/opt/(?:pyp[i]|whee[l]s)|(?<![\w.])/hom[e]/[a-z]|\.librar[y]/")

pytestmark = pytest.mark.timeout(600)  # the first test parses everything, on a busy machine too

# path → why. Starts empty and only shrinks.
EXCEPTIONS_SIZE: dict[str, str] = {}
EXCEPTIONS_TWIN: dict[str, str] = {}


def _python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        place = ROOT / folder
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if "_pb2" not in path.name:
                yield path


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _source(path: Path) -> str:
    return path.read_text()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_source(path), str(path))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(path)))


def _spots(folders: tuple[str, ...], *kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in _python_files(*folders):
        for node in _nodes(path):
            if isinstance(node, kinds):
                yield path, node


def _at(path: Path, node: ast.AST) -> str:
    return f"{_name(path)}:{getattr(node, 'lineno', 1)}"


def _report(found: list[str], rule: str) -> None:
    assert not found, f"{rule}:\n  " + "\n  ".join(found)


def _import_lines(path: Path) -> int:
    """Returns the lines of its imports: how many rooms a file knows is for the layers' contracts."""
    imports = (node for node in _nodes(path) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)


def _is_code(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#")


# --- size and place ------------------------------------------------------------------------------------------------


def test_files_are_small():
    found: list[str] = []
    for path in _python_files(*PRODUCT, "tests", "docs"):
        lines = sum(map(_is_code, _source(path).splitlines()))
        if lines > CODE_LINES_MAX:  # most files are too small to ask
            lines -= _import_lines(path)
        if lines > CODE_LINES_MAX and _name(path) not in EXCEPTIONS_SIZE:
            found.append(f"{_name(path)}: {lines} lines of code")
    _report(found, f"a file has at most {CODE_LINES_MAX} lines of code beside its imports: split it by decision")


def test_functions_are_small():
    found: list[str] = []
    for path, node in _spots((*PRODUCT, "tests", "docs"), ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            found.append(f"{_at(path, node)}: {node.name} has {lines} lines")
    _report(found, f"a function has at most {FUNCTION_LINES_MAX} lines")


def test_file_names_say_what_is_inside():
    found = [
        _name(path)
        for path in _python_files(*PRODUCT, "tests", "docs")
        if FORBIDDEN_NAMES & {path.stem.removeprefix("test_"), path.parent.name}
    ]
    _report(found, "no utils, helpers, common, misc, base, manager")


def _decides_nothing(path: Path) -> bool:
    """Returns True for plain vocabulary: a module without a function that a test could call, abstract ones aside."""
    functions = (node for node in _nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return all(ast.unparse(function.body[-1]) == "..." for function in functions)


@pytest.mark.parametrize("layer", ["edges"])
def test_each_module_has_a_test_of_its_own(layer: str):
    """A twin by name, or a test of the layer that imports the module itself."""
    tests = sorted((ROOT / "tests" / layer).rglob("test_*.py"))
    names = {path.stem for path in tests}
    imported = {dotted for path in tests for node, dotted in _dotted_uses(path) if isinstance(node, ast.ImportFrom)}
    imported |= {dotted.rpartition(".")[0] for dotted in imported}
    found = [
        _name(path)
        for path in _python_files(f"supervisor/{layer}")
        if path.stem != "__init__" and not _decides_nothing(path)
        if not any(name == f"test_{path.stem}" or name.startswith(f"test_{path.stem}_") for name in names)
        if _name(path).removesuffix(".py").replace("/", ".") not in imported
        if _name(path) not in EXCEPTIONS_TWIN
    ]
    _report(found, f"no test in tests/{layer} is for")


@pytest.mark.parametrize(
    "layer", ["supervisor/core", "supervisor/engine", "supervisor/queries", "supervisor/wiring", "worker_client"]
)
def test_each_file_has_its_twin(layer: str):
    found = [
        _name(path)
        for path in _python_files(layer)
        if path.stem != "__init__" and not _decides_nothing(path) and not _twin(path).is_file()
    ]
    _report(found, f"the twin of {layer}/x.py is tests/{layer.removeprefix('supervisor/')}/test_x.py")


def _twin(path: Path) -> Path:
    inside = _name(path).removeprefix("supervisor/")
    return ROOT / "tests" / Path(inside).parent / f"test_{path.stem}.py"


def test_modules_open_with_the_question_that_they_answer():
    found = [_name(path) for path in _python_files(*PRODUCT) if not ast.get_docstring(_tree(path))]
    _report(found, "the first line of a module or package says what it is for")


# --- time ----------------------------------------------------------------------------------------------------------


def test_core_never_waits():
    found = [_at(path, node) for path, node in _spots(("supervisor/core",), ast.AsyncFunctionDef, ast.Await)]
    _report(found, "no async in core")


def _dotted_uses(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Yields `time.monotonic` and `from time import monotonic`, both as "time.monotonic"."""
    for node in _nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def test_time_is_an_argument():
    found: list[str] = []
    for path in _python_files(*PRODUCT):
        banned = WALL_CLOCK | MONOTONIC_CLOCK if _name(path).startswith("supervisor/") else WALL_CLOCK
        for node, dotted in _dotted_uses(path):
            is_now = dotted in banned or re.fullmatch(r"(datetime|date)\.(now|utcnow|today)", dotted)
            if is_now and _name(path) != CLOCK_FILE:
                found.append(f"{_at(path, node)}: {dotted}")
    _report(found, f"clocks are read in {CLOCK_FILE} alone")


def test_local_times_are_written_in_one_place():
    found = [
        _at(path, node)
        for path, node in _spots(PRODUCT, ast.Attribute)
        if isinstance(node, ast.Attribute) and node.attr == "astimezone" and _name(path) != LOCAL_TIME_FILE
    ]
    _report(found, f"a time that people see comes from {LOCAL_TIME_FILE}")


def test_nothing_sleeps_for_a_fixed_time():
    found: list[str] = []
    for path, node in _spots(PRODUCT, ast.Call):
        assert isinstance(node, ast.Call)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("sleep", "usleep", "nanosleep"):
            found.append(_at(path, node))
    _report(found, "wait for an event or a deadline, do not sleep")


def test_pauses_are_named():
    """`with move_on_after(…): await Event().wait()` is a sleep in disguise."""
    found: list[str] = []
    for path, node in _spots(PRODUCT, ast.With):
        assert isinstance(node, ast.With)
        waits_for_nothing = re.fullmatch(
            r"await (\w+\.)*(Event\(\)\.wait|sleep_forever)\(\)", ast.unparse(node.body[0])
        )
        has_deadline = re.search(r"\b(move_on|fail)_(after|at)\(", " ".join(map(ast.unparse, node.items)))
        if waits_for_nothing and has_deadline and _name(path) != "supervisor/ports/timed_waits.py":
            found.append(_at(path, node))
    _report(found, "await the event that is meant, or supervisor.ports.timed_waits.pause with its reason")


def _is_number(annotation: ast.expr | None) -> bool:
    words = set(re.findall(r"\w+", ast.unparse(annotation))) if annotation else set[str]()
    return bool(words & {"float", "int"}) and not words & {"timedelta", "Callable"}


def test_durations_say_their_unit():
    found: list[str] = []
    for path, node in _spots(PRODUCT, ast.arg, ast.AnnAssign):
        if isinstance(node, ast.arg):
            name, annotation = node.arg, node.annotation
        else:
            assert isinstance(node, ast.AnnAssign)
            name, annotation = getattr(node.target, "id", getattr(node.target, "attr", "")), node.annotation
        if name.lower().split("_")[-1] in DURATION_WORDS and _is_number(annotation):
            found.append(f"{_at(path, node)}: {name}")
    _report(found, "a duration's name ends in its unit (…_s, …_ns)")


# --- errors and the wire -------------------------------------------------------------------------------------------


@cache
def _comments(path: Path) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(_source(path)).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def test_broad_excepts_state_their_reason():
    found: list[str] = []
    for path, node in _spots(PRODUCT, ast.ExceptHandler):
        assert isinstance(node, ast.ExceptHandler)
        caught = {"BaseException"} if node.type is None else set(re.findall(r"\w+", ast.unparse(node.type)))
        passes_it_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if passes_it_on or not caught & {"Exception", "BaseException"}:
            continue
        comments = _comments(path)
        reason = " ".join(comments.get(line, "") for line in (node.lineno - 1, node.lineno, node.lineno + 1))
        if len(re.findall(r"[A-Za-z]{2,}", re.sub(r"noqa:?\s*[A-Z0-9, ]*", "", reason))) < 3:
            found.append(_at(path, node))
    _report(found, "`except Exception` needs a comment with its reason")


def test_nothing_that_executes_what_it_reads():
    found: list[str] = []
    for path, node in _spots(PRODUCT, ast.Import, ast.ImportFrom, ast.Call):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            assert isinstance(node, ast.Call)
            names = {ast.unparse(node.func)}
        if names & (SERIALISERS | {"eval", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}):
            found.append(_at(path, node))
    _report(found, "no pickle, marshal, eval or unsafe YAML")


def test_protobuf_stops_at_the_codecs():
    allowed = re.compile(
        r"(.*_codec|worker_client/(channel_protocol|call_protocol)|supervisor/(edges/operators|edges/machine/health|cli)/.*|"
        r".*/election/(etcd_(client|backend)|member_records))\.py"
    )
    found = [
        f"{_at(path, node)}: {dotted}"
        for path in _python_files("supervisor", "worker_client")
        for node, dotted in _dotted_uses(path)
        if re.search(r"_pb2(_grpc)?$", dotted) and isinstance(node, ast.ImportFrom)
        if not allowed.fullmatch(_name(path))
    ]
    _report(found, "generated messages are used by codecs, the worker's frames and at the gRPC edges only")


def test_grpc_stays_with_the_operators():
    found = [
        _at(path, node)
        for path, node in _spots(("supervisor",), ast.Import, ast.ImportFrom)
        if re.match(r"(from|import) grpc", ast.unparse(node))
        if not _name(path).startswith(("supervisor/edges/operators/", "supervisor/cli/"))
    ]
    _report(found, "grpc is imported where gRPC is spoken: operators, cli")


# --- documents and the whole tree ----------------------------------------------------------------------------------


def _text_files() -> Iterator[Path]:
    for folder in (*PRODUCT, "proto", "tests", "docs", "deploy", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
    yield from (
        path for path in sorted(ROOT.iterdir()) if path.is_file() and path.suffix != ".sock" and path.name != ".git"
    )


def test_no_trace_of_the_place_where_it_was_written():
    found: list[str] = []
    for path in _text_files():
        text = path.read_bytes().decode(errors="ignore")
        for number, line in enumerate(text.splitlines(), 1):
            if match := WORKPLACE.search(line):
                found.append(f"{_name(path)}:{number}: {match[0]}")
    _report(found, "no path of one person's machine")


def test_decisions_are_numbered():
    files = [path.name for path in sorted((ROOT / "docs/decisions").iterdir())]
    _report([name for name in files if not re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", name)], "NNNN-title.md")
    numbers = [name[:4] for name in files]
    assert numbers == [f"{number:04}" for number in range(1, len(files) + 1)], "numbered from 0001, each once"


def test_links_between_documents_hold():
    found: list[str] = []
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", _source(path))
        lost = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
        found += [f"{_name(path)}: {target}" for target in lost]
    _report(found, "a link leads nowhere")


@pytest.mark.timeout(1200)  # 20 s of CPU, on a machine that may be busy
def test_generated_docs_are_fresh(tmp_path: Path):
    """Runs the generators in a copy of docs/ beside links to everything else, and compares."""
    generators = sorted((ROOT / "docs").glob("make_*.py"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.name != "docs" and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    for generator in generators:
        command = [sys.executable, str(tmp_path / "docs" / generator.name)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=400, stdout=subprocess.DEVNULL)
    stale = [
        _name(ROOT / path.relative_to(tmp_path))
        for path in sorted((tmp_path / "docs").rglob("*"))
        if path.is_file() and (ROOT / path.relative_to(tmp_path)).read_bytes() != path.read_bytes()
    ]
    _report(stale, "run `make docs` and commit what it changes")
