"""An impossible command is refused with the reason before any worker starts; a possible one is accepted."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Ready
from holdfast_wire.spawner_settings import SpawnerSettings

from tests.worker_client.spawner.rig import Rig
from worker_client.spawner import command_check
from worker_client.spawner.command_check import CANNOT_BE_PARSED, NOT_THERE, TRY_AGAIN, Refusal, refusal


def asked(*command: str, entry: str = "script", source: str = "", log_dir: str = "") -> Refusal | None:
    settings = SpawnerSettings(job_id="j", command=command, entry=entry, python="/bin/python", log_dir=log_dir)
    return refusal(settings, source=source)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_that_is_not_there(folder: Path) -> None:
    said = asked("trian.py")
    node = os.uname().nodename
    assert said == Refusal(
        f"cannot run trian.py: there is no such file in {folder} on node {node}; check the path", NOT_THERE
    )
    (folder / "file").touch()
    assert asked("file/train.py") is not None
    assert asked("-") is None  # standard input


def test_a_folder_for_logs_that_cannot_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").touch()
    (folder / "file").touch()
    logs = str(folder / "logs" / "of" / "mine")
    assert asked("train.py", log_dir=logs) is None
    assert os.path.isdir(logs)
    said = asked("train.py", log_dir=f"{folder}/file/logs")
    why = f"cannot keep logs in {folder}/file/logs: Not a directory; choose another --log-dir"
    assert said == Refusal(why, NOT_THERE)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "makedirs", full)
    said = asked("train.py", log_dir="logs")
    assert said == Refusal("cannot keep logs in logs: No space left on device; free space on that disk", TRY_AGAIN)


def test_a_directory_needs_a_main(folder: Path) -> None:
    said = asked(str(folder))
    assert said is not None
    assert said.reason == f"cannot run {folder}: it is a directory without a __main__.py; name the script in it"
    (folder / "__main__.py").touch()
    assert asked(str(folder)) is None


def test_an_error_of_syntax_is_told_with_file_and_line(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text("import os\n\ndef step(:\n    pass\n")
    said = asked("train.py", source=str(script))
    assert said == Refusal(
        f'cannot run train.py: invalid syntax (File "{script}", line 3): def step(:', CANNOT_BE_PARSED
    )
    assert asked("train.py") is None  # another check covers it


def test_a_nul_byte_is_an_error_of_syntax(folder: Path) -> None:
    script = folder / "train.py"
    script.write_bytes(b"import os\nx = 1\0\n")
    said = asked("train.py", source=str(script))
    assert said is not None
    assert said.exit_code == CANNOT_BE_PARSED
    assert said.reason.endswith(f'null bytes (File "{script}", line 2)')


@pytest.mark.parametrize(
    "content",
    [b"import os\n", b"PK\x03\x04\0\0", b"\xef\xbb\xbfx = 1\n", importlib.util.MAGIC_NUMBER + b"\0\0"],
)
def test_what_may_run_is_let_through(folder: Path, content: bytes) -> None:
    script = folder / "train.py"
    script.write_bytes(content)
    assert asked("train.py", source=str(script)) is None


def test_modules_are_followed_without_importing_them(folder: Path) -> None:
    package = folder / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "train.py").touch()
    assert asked("mine.train", entry="module") is None
    for name, why in (
        ("mine.trian", "/bin/python finds no module mine.trian; check the name, or install it there"),
        ("nobodys", "/bin/python finds no module nobodys; check the name, or install it there"),
        ("mine", "it is a package without a __main__.py; name a module in it"),
        ("mine.train.more", "mine.train is a module and holds no others; check the name"),
        ("mine..train", "that is not a module name"),
    ):
        assert asked(name, entry="module") == Refusal(f"cannot run -m {name}: {why}", NOT_THERE)
    (package / "__init__.py").write_text("__path__.append('/elsewhere')")
    assert asked("mine.trian", entry="module") is None  # it may exist
    assert asked("json.tool", entry="module") is None


def test_modules_named_for_the_preload_must_be_there(folder: Path) -> None:
    (folder / "train.py").touch()
    (folder / "mine").mkdir()
    (folder / "mine" / "part.py").write_text("raise SystemExit('imported')")
    settings = SpawnerSettings("j", (str(folder / "train.py"),), python="/bin/python")
    assert refusal(settings._replace(preload="mine, mine.part, json.decoder,torch._dynamo"), source="") is None
    said = refusal(settings._replace(preload="mine.no,json,jsno"), source="")
    why = "cannot load mine.no, jsno ahead: /bin/python finds no such module; correct --preload, or install it there"
    assert said == Refusal(why, NOT_THERE)


def test_commands_are_looked_for_as_the_kernel_does(folder: Path) -> None:
    assert asked("sh", entry="command") is None
    assert asked("no-such-program", entry="command") is not None
    (folder / "tool").touch(0o644)
    said = asked("./tool", entry="command")
    assert said is not None
    assert said.reason == "cannot run ./tool: it is not executable; make it so with chmod +x"
    (folder / "tools").mkdir()
    said = asked("./tools", entry="command")
    assert said == Refusal("cannot run ./tools: it is a directory; name the program in it", NOT_THERE)


@pytest.mark.parametrize(
    ("first_line", "why"),
    [
        ("#!/no/interp -u", "/no/interp, which is not there; correct that line"),
        ("#! \t/no/interp", "/no/interp, which is not there; correct that line"),
        ("#!/bin/sh\r", r"'/bin/sh\r', which is not there; end its lines with LF, not CR LF"),
        ("#!/bin/sh", ""),
        ("#!/usr/bin/env no-such", ""),  # env decides
    ],
)
def test_a_script_whose_interpreter_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, first_line: str, why: str
) -> None:
    tool = folder / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text(f"{first_line}\nexit 0\n", newline="")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    for name in ("bin/tool", "tool"):
        reason = f"cannot run {name}: its first line names the interpreter {why}"
        assert asked(name, entry="command") == (Refusal(reason, NOT_THERE) if why else None)


@pytest.mark.parametrize("content", [b"exit 0\n", b""])
def test_a_text_that_the_kernel_does_not_execute(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    tool = folder / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_bytes(content)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    for name in ("bin/tool", "tool"):
        why = "it is not a program, and its first line names no interpreter; add one such as #!/bin/sh"
        assert asked(name, entry="command") == Refusal(f"cannot run {name}: {why}", NOT_THERE)


@pytest.mark.parametrize("is_script", [True, False])
def test_what_the_kernel_executes_is_not_run_to_find_that_out(folder: Path, is_script: bool) -> None:
    """Only as `binfmt_misc` lets it execute a text without a first line, which no test can arrange."""
    (folder / "tool").write_text("#!/bin/sh\ntouch ran\n")
    (folder / "tool").chmod(0o755)
    tool = folder / "tool" if is_script else sys.executable
    assert not command_check._has_unknown_format(str(tool))  # pyright: ignore[reportPrivateUsage]
    assert not (folder / "ran").exists()


def test_a_folder_in_path_that_works_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("first", "#!/no/interp\n"), ("second", "#!/bin/sh\n")):
        (folder / name).mkdir()
        (folder / name / "tool").write_text(text)
        (folder / name / "tool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/first:{folder}/second")
    assert asked("tool", entry="command") is None


@pytest.mark.parametrize("method", ["auto", "exec"])
def test_the_spawner_says_it_in_place_of_being_ready(tmp_path: Path, method: str) -> None:
    with Rig("nowhere.py", cwd=tmp_path, method=method) as rig:
        ready = rig.receive(Ready)
        assert ready.refusal.startswith("cannot run nowhere.py: there is no such file in ")
        assert ready.refusal_code == NOT_THERE


def test_a_spawner_that_does_not_preload_looks_through_the_script_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = = 1\n")
    for preload in ("auto", "none"):
        with Rig("train.py", cwd=tmp_path, preload=preload) as rig:
            assert "line 1): x = = 1" in rig.receive(Ready).refusal


def test_what_only_the_compiler_refuses_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nreturn 1\n")
    with Rig("train.py", cwd=tmp_path, preload="auto") as rig:
        assert "line 2): return 1" in rig.receive(Ready).refusal


def test_an_old_interpreter_says_that_it_is_too_old(tmp_path: Path) -> None:
    """A current Python that reports an older version."""
    shim = tmp_path / "old" / "sitecustomize.py"
    shim.parent.mkdir()
    shim.write_text(
        "import sys, os\nsys.version_info = (3, 9, 18, 'final', 0)\n"
        "sys.path.remove(os.path.dirname(__file__))\ndel sys.modules['sitecustomize']\nimport sitecustomize\n"
    )
    python = tmp_path / "python3.9"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{shim.parent}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "train.py").touch()
    with Rig("train.py", cwd=tmp_path, python=str(python)) as rig:
        ready = rig.receive(Ready)
    assert "it is Python 3.9, and 3.11 is the oldest that works; name another with --python" in ready.refusal
    assert ready.refusal_code == 78
