"""Is the command line parsed as torchrun does it?"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.run_flags import read_command_line
from supervisor.errors import InvalidRequestError

# argparse with torchrun's own parser, for many command lines in one process.
ORACLE = """
import contextlib, io, json, sys
from torch.distributed.run import get_args_parser
answers = []
for argv in json.load(sys.stdin):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = vars(get_args_parser().parse_args(argv))
        answers.append([found[name] for name in
            ("training_script", "training_script_args", "nproc_per_node", "module", "redirects", "tee", "standalone")])
    except SystemExit:
        answers.append(None)
json.dump(answers, sys.stdout)
"""

LINES = [
    ["t.py"],
    ["t.py", "--nproc-per-node", "4"],
    ["--nproc-per-node", "2", "t.py", "--nproc-per-node", "4", "-m", "--help"],
    ["--nproc_per_node=2", "t.py", "a", "--", "b"],
    ["--", "t.py", "--x"],
    ["t.py", "--", "--x"],
    ["t.py", "--", "--", "--x"],
    ["--", "t.py", "--", "--x"],
    ["--", "--", "t.py"],
    ["--nproc-per-node", "2", "--", "t.py"],
    ["--nproc-per-node", "--", "2", "t.py"],
    ["-m", "pkg.train", "-m"],
    ["-mr3", "pkg", "-t"],
    ["-mt", "1", "pkg"],
    ["-r=3", "t.py"],
    ["-r3", "t.py", "-r1"],
    ["-r", "0:1,1:3", "-t", "2", "t.py"],
    ["--standalone", "true"],
    ["--redirects", "1", "--redirects", "2", "t.py"],
    ["-", "x"],
    ["-1", "x"],
    ["-.5", "x"],
    ["a b", "-m"],
    ["-x y", "t.py"],
    ["--x y", "t.py"],
    ["", "t.py"],
    ["--nproc-per-node"],
    ["--nproc-per-node", "--standalone", "t.py"],
    ["--nproc-per-node", "-m", "t.py"],
    ["--standalone"],
    [],
    ["--unknown", "t.py"],
    ["-q", "t.py"],
    ["-mq", "t.py"],
]


def ours(argv: list[str]) -> list[object] | None:
    """Returns the same columns as the oracle's; None for an error of usage."""
    try:
        line = read_command_line(argv)
    except InvalidRequestError:
        return None
    if not line.command:
        return None

    def shown(name: str, default: object) -> object:
        one = line.given.get(name)
        return default if one is None else one.value if one.setting.is_switch else one.setting.kind.show(one.value)

    return [
        line.command[0], list(line.command[1:]), shown("nproc_per_node", "1"), shown("module", False),
        shown("redirects", "0"), shown("tee", "0"), shown("standalone", False),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def torchrun_says() -> dict[str, list[object] | None]:
    command = [sys.executable, "-c", ORACLE]
    asked = subprocess.run(command, input=json.dumps(LINES), capture_output=True, text=True, check=True, timeout=100)
    return {json.dumps(argv): answer for argv, answer in zip(LINES, json.loads(asked.stdout), strict=True)}


@pytest.mark.peers
@pytest.mark.parametrize("argv", LINES, ids=" ".join)
def test_as_torchrun(argv: list[str], torchrun_says: dict[str, list[object] | None]) -> None:
    assert ours(argv) == torchrun_says[json.dumps(argv)]


@given(st.lists(st.text(max_size=8), max_size=6), st.sampled_from(["t.py", "-", "a b"]))
def test_the_script_s_own_arguments_are_never_touched(arguments: list[str], script: str) -> None:
    expected = arguments[1:] if arguments[:1] == ["--"] else arguments
    assert read_command_line(["--nproc-per-node", "2", script, *arguments]).command == (script, *expected)


@given(
    st.lists(
        st.sampled_from(["-", "--", "-m", "-r", "-r3", "--tee", "=", "3", "--ft-log-level", "--help", "x", "é", ""])
    )
)
def test_nothing_but_usage_errors(argv: list[str]) -> None:
    try:
        read_command_line(argv)
    except InvalidRequestError as error:
        message = str(error)
        assert message.startswith("cannot use ")


def test_ft_switches_take_a_word_or_none() -> None:
    def value(*argv: str) -> tuple[object, tuple[str, ...]]:
        line = read_command_line(argv)
        return line.given["ft_install_exception_hook"].value, line.command

    flag = "--ft-install-exception-hook"
    assert value(flag, "t.py") == (True, ("t.py",))
    assert value(flag, "False", "t.py") == (False, ("t.py",))
    assert value(flag, "1", "t.py", "x") == (True, ("t.py", "x"))
    assert value(flag + "=no", "t.py") == (False, ("t.py",))
    assert value(flag, "./train", "x") == (True, ("./train", "x"))
    assert value(flag, "-m", "pkg") == (True, ("pkg",))
    assert value(flag, "train") == (True, ("train",))


def test_help_is_wanted_before_the_script_only() -> None:
    assert read_command_line(["-m", "--help", "t.py"]).help_wanted
    assert read_command_line(["-h"]).help_wanted
    assert not read_command_line(["t.py", "--help"]).help_wanted


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["--nproc", "2"], "nproc_per_node"),
        (["--nproc_per=2"], "nproc_per_node"),
        (["--max-rest", "2"], "max_restarts"),
    ],
)
def test_a_flag_may_be_cut_short_where_it_can_mean_nothing_else(argv: list[str], name: str) -> None:
    line = read_command_line([*argv, "train.py"])
    assert (list(line.given), line.command) == ([name], ("train.py",))
