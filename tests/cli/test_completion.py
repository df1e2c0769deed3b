"""Does each shell complete commands, flags, values, job ids and files? In the real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.commands import COMMANDS
from tests.cli.supervised import Home
from tests.e2e.terminal import on_terminal
from tests.edges.operators.fake_job_service import running

BASH = """
eval "$(holdfast completion bash)"
COMP_WORDS=($1) COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
[[ $1 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete holdfast
printf '%s\\n' "${COMPREPLY[@]}"
"""


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"HOME": str(folder), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}


def in_bash(line: str, folder: Path) -> list[str]:
    command = ["bash", "--norc", "-c", BASH, "bash", line]
    done = subprocess.run(command, env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("holdfast ", sorted(COMMANDS)),
        ("holdfast sta", ["stacks", "status"]),
        ("holdfast run --max-rest", ["--max-restarts"]),
        ("holdfast run --numa-binding s", ["socket"]),
        ("holdfast status --output j", ["json", "jsonl"]),
        ("holdfast run trai", ["train.py"]),
        ("holdfast run train.py --max-rest", []),  # the script's own arguments
        ("holdfast run --max-restarts 2 train.py --data trai", ["train.py"]),
        ("holdfast completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_bash_offers_what_fits(line: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert in_bash(line, tmp_path) == offered


def test_ids_of_jobs_are_offered(tmp_path: Path) -> None:
    home = Home(tmp_path)
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "told")}
    with home.supervisor(running()):
        for line, offered in (("holdfast stop tr", "train-7f3a"), ("holdfast stop other", "")):
            done = home.holdfast(**asked, COMP_LINE=line, COMP_POINT=str(len(line)))
            assert done.code == 0, done.err
            assert (tmp_path / "told").read_text().strip() == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_offers_commands_with_what_they_do(tmp_path: Path) -> None:
    script = 'holdfast completion fish | source; complete -C "holdfast sta"'
    command = ["fish", "--no-config", "-c", script]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert f"stacks\t{COMMANDS['stacks'].summary}" in done.stdout.splitlines(), done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_a_command_that_then_runs(tmp_path: Path) -> None:
    (tmp_path / ".zshrc").write_text(
        'autoload -Uz compinit; compinit -u; eval "$(holdfast completion zsh)"; PS1="ready> "\n'
    )
    _, output = on_terminal(
        ["zsh", "-i"], cwd=tmp_path, env=environment(tmp_path), type_after=(b"ready> ", b"holdfast cordo\t\nexit\n")
    )
    assert b"cannot run holdfast cordon: the following arguments are required: NODE" in output


def test_an_unknown_shell_is_a_usage_error(tmp_path: Path) -> None:
    done = Home(tmp_path).holdfast("completion", "tcsh")
    assert done.code == 2
    assert "invalid choice: 'tcsh'" in done.err
