"""Does each command line in the documents exist as it is written there?"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from supervisor.cli.commands import COMMANDS
from supervisor.cli.parsing import Parser
from supervisor.cli.whole_parser import parser_of
from supervisor.config.daemon_settings import parse_daemon
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.resolve import parse_run
from supervisor.errors import HoldfastError
from tests.docs.pages import ROOT, Block, blocks, spans

HOLDFAST = Path(sys.executable).with_name("holdfast")
OTHERS_FLAGS = {
    "--distribution", "--env-host", "--kill-on-bad-exit", "--no-kill", "--stop-timeout",  # of srun and podman
    "--leaving", "--lost-data", "--wrapped",  # of tests.sim
    "--no-slurm",  # of nvhcd
    "--torch",  # of tests.soak packages
    "--hf-token",  # of a script
}  # fmt: skip
OTHERS = {
    "buildah", "cd", "chmod", "cp", "curl", "docker", "echo", "enroot", "export", "grpcurl", "head", "base64",
    "openssl", "rm", "sbatch", "sinfo", "ssh", "systemctl", "umask",
}  # fmt: skip


def _shell_lines(block: Block) -> list[str]:
    """Returns what is typed, continued lines joined."""
    typed = block.lines
    if block.language == "console":
        typed = tuple(line.removeprefix("$ ") for line in block.lines if line.startswith("$ "))
    elif block.language == "text":
        typed = tuple(line.strip() for line in block.lines if line.startswith("  holdfast "))
    return re.sub(r"\\\n\s*", " ", "\n".join(typed)).splitlines()


def _commands(line: str) -> Iterator[list[str]]:
    """Yields the single commands of a line, without comments and redirections."""
    line = re.sub(r"\$\([^)]*\)", "x", line).replace("…", " ")
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, "#"
    command: list[str] = []
    for word in words:
        if set(word) <= set("();<>|&"):
            if command:
                yield command
            command = [">"] if ">" in word else []
        else:
            command.append(word)
    if command:
        yield command


def _typed() -> list[tuple[str, str]]:
    """Returns each line that the documents or the help of a command tell people to type, with its place."""
    return [
        (f"{block.page}:{block.line}", line)
        for block in blocks("sh", "console", "text")
        if block.language != "text" or block.page == "docs/reference/commands.md"
        for line in _shell_lines(block)
        if line.strip() and not line.lstrip().startswith("#")
    ]


@cache
def _parser(name: str) -> ArgumentParser:
    return parser_of(COMMANDS[name])


@cache
def _flags(name: str) -> frozenset[str]:
    """Returns each flag of a command, those of torchrun and ft_launcher that are not supported yet included."""
    found = {option for action in _parser(name)._actions for option in action.option_strings} | {"-h", "--help"}
    if name == "run":
        found |= {"--help-all"} | {
            flag
            for setting in RUN_SETTINGS
            for flag in (setting.flag, setting.short, *setting.other_flags, *setting.old_flags)
        }
    return frozenset(found)


def _complaint_about_holdfast(arguments: list[str], folder: Path) -> str:
    """Parses them as the command itself does; returns its complaint, "" if there is none."""
    name, *rest = arguments or ["--help"]
    if name.startswith("-"):
        return "" if name in ("--help", "--version", "-V", "-h") else f"no flag {name}"
    if name not in COMMANDS:
        return f"no command {name}"
    environ = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    try:
        if name == "run":
            parse_run([*rest, "train.py"], environ=environ, cwd=str(folder), count_gpus=lambda _: 8)
        elif name == "daemon":
            parse_daemon(rest, environ=environ)
        else:
            command = COMMANDS[name]
            parser = Parser(prog=name, allow_abbrev=False)
            __import__(command.module)
            sys.modules[command.module].add_arguments(parser)
            given = parser.parse_args(rest)
            if name == "doctor":
                parse_run([*given.run_options, "t.py"], environ=environ, cwd=str(folder), count_gpus=lambda _: 8)
    except HoldfastError as error:
        return str(error)
    except SystemExit as error:
        return f"exit {error.code}"
    return ""


def _complaint_about_make(arguments: list[str]) -> str:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    variables = re.findall(r"^([A-Z]+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    unknown = [
        word for word in arguments if word.partition("=")[0] not in (variables if "=" in word else targets)
    ]  # fmt: skip
    return f"no target or variable {unknown}" if unknown else ""


@cache
def _help_of(module: str, *names: str) -> str:
    command = [sys.executable, "-m", module, *names, "--help"]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60).stdout


def _complaint_about_python(arguments: list[str]) -> str:
    match arguments:
        case ["-m", module, *rest] if module.partition(".")[0] in ("tests", "docs", "supervisor"):
            pass
        case _:
            return ""
    if importlib.util.find_spec(module) is None:
        return f"no module {module}"
    names = [*takewhile(lambda word: not word.startswith("-"), rest)]
    unknown = [word for word in rest if word.startswith("-") or word in names[:1]]
    unknown = [word for word in unknown if word not in _help_of(module, *names)]
    return f"{module} does not know {unknown}" if unknown else ""


def _complaint_about_pip(arguments: list[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"\[([a-z,]+)\]", " ".join(arguments)):
        if unknown := set(extras.split(",")) - set(project["optional-dependencies"]):
            return f"no extra {unknown}"
    versions = re.findall(r"holdfast_torch-([\d.]+)-py3", " ".join(arguments))
    return f"not version {versions}" if set(versions) - {project["version"]} else ""


def _complaint_about_torchrun(arguments: list[str]) -> str:
    from torch.distributed.run import get_args_parser  # Late: it loads torch.

    try:
        get_args_parser().parse_args(arguments)
    except SystemExit:
        return "torchrun refuses it"
    return ""


def _complaint(command: list[str], folder: Path) -> str:
    for word in command:
        if re.match(r"(deploy|docs|tests)/\S", word) and not [*ROOT.glob(word)]:
            return f"there is no {word}"
    while command and re.match(r"[A-Za-z_]+=", command[0]):
        command = command[1:]
    if "holdfast" in command[1:] and command[0] in ("srun", "ssh"):
        command = command[command.index("holdfast") :]
    program, arguments = (command[0].rpartition("/")[2], command[1:]) if command else (">", [])
    match program:
        case "holdfast":
            return _complaint_about_holdfast(arguments, folder)
        case "ft_launcher":
            return _complaint_about_holdfast(["run", *arguments], folder)
        case "torchrun":
            return _complaint_about_torchrun(arguments)
        case "make":
            return _complaint_about_make(arguments)
        case "pip":
            return _complaint_about_pip(arguments)
        case "python" | "python3":
            return _complaint_about_python(arguments)
        case "." | ">" | "run" if program != "run" or command[0] == ".ci/run":
            return ""
        case _:
            return "" if program in OTHERS | {"srun"} else f"the test does not know the program {program}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes the place of somebody who follows the documents: the files that they name are there."""
    for name in ("ft.yaml", "job.yaml"):
        (tmp_path / name).write_text("fault_tolerance:\n  rank_heartbeat_timeout: 120\n")
    for name in (".job-token", "llm_api_key", "node.pem", "node.key", "ca.pem"):
        (tmp_path / name).write_text("x" * 40)
        (tmp_path / name).chmod(0o600)
    return tmp_path


def test_each_line_is_one_that_its_program_accepts(folder: Path) -> None:
    typed = _typed()
    complaints = [
        (place, line, complaint)
        for place, line in typed
        for command in _commands(re.sub(r"\$HOME|~|/secure(?=/)", str(folder), line))
        if (complaint := _complaint(command, folder))
    ]
    assert len(typed) > 100
    assert not complaints, "\n".join(map(str, complaints))


def test_each_block_says_what_it_is() -> None:
    """A block without a language is neither run nor searched for."""
    assert not [(block.page, block.line) for block in blocks("")]


def test_each_command_in_a_sentence_exists_with_its_flags() -> None:
    seen = 0
    complaints: list[tuple[str, int, str]] = []
    for span in spans():
        program, _, rest = span.text.partition(" ")
        if program == "make":
            unknown = _complaint_about_make(shlex.split(rest))
        elif program == "python":
            unknown = _complaint_about_python(shlex.split(rest))
        elif program == "holdfast" and rest:
            words = re.split(r"[\s\[\]]+", rest.partition(" -- ")[0])
            name, flags = words[0], [word.partition("=")[0] for word in words if word.startswith("-") and word != "--"]
            hidden = name in ("adopt", "serve-user", "log-tier", "--version", "COMMAND")
            if not hidden and name not in COMMANDS:
                unknown = f"no command {name}"
            else:
                unknown = "" if hidden else " ".join(flag for flag in flags if flag not in _flags(name))
        else:
            continue
        seen += 1
        if unknown:
            complaints.append((span.page, span.line, f"{span.text}: {unknown}"))
    assert seen > 200
    assert not complaints, "\n".join(map(str, complaints))


def test_each_flag_in_a_sentence_exists() -> None:
    known = frozenset[str]().union(*(_flags(name) for name in COMMANDS)) | OTHERS_FLAGS
    complaints = [
        (span.page, span.line, span.text)
        for span in spans()
        if re.match(r"--[a-z][a-z-]*[a-z](?![-*<a-z])", span.text) and re.split(r"[ =\[]", span.text)[0] not in known
    ]
    assert not complaints, "\n".join(map(str, complaints))


@pytest.mark.parametrize("line", ["holdfast doctor", "holdfast run --help", "holdfast --version"])
def test_a_line_that_needs_no_job_runs(line: str, tmp_path: Path) -> None:
    """Runs it as a user without a token, a supervisor or settings."""
    done = subprocess.run(
        [HOLDFAST, *line.split()[1:]], cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode in ((0, 1) if "doctor" in line else (0,)), (
        done.stderr
    )  # 1: it found a problem of this machine
    assert done.stdout
    assert not done.stderr


@pytest.mark.soak
def test_the_simulation_shown_is_what_its_line_prints() -> None:
    """The same seed gives the same run."""
    command, output, *_ = (block.lines for block in blocks("sh", "text") if block.page == "docs/simulation.md")
    done = subprocess.run(
        [HOLDFAST, *shlex.split(command[0])[1:]], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == list(output)


@pytest.mark.parametrize(
    "line",
    [
        "holdfast runs train.py",
        "holdfast run --max-restrats 3 train.py",
        "holdfast events JOB --kin x",
        "holdfast doctor -- --ft-no-such-flag 3",
        "srun holdfast run --no-such-flag train.py",
        "holdfast jobs | hexdump",
        "make demos",
        "python -m tests.soak no-such-name",
        "pip install '.[supervisor,tops]'",
        "sbatch deploy/slurm/no-such-file.sbatch",
        "torchrun --no-such-flag train.py",
    ],
)
def test_a_line_that_its_program_refuses_is_found(line: str, folder: Path) -> None:
    assert any(_complaint(command, folder) for command in _commands(line))
