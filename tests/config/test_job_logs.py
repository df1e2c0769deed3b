"""Where do the logs of a whole job go?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.config.job_logs import LOG_PATH, absolute, cycle_log_path, parse_folder, parse_log_path, rank_prefix
from supervisor.config.values import ValueProblem
from tests.config.runs import CWD, request


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("/lustre/job/train.log", "/lustre/job/train_cycle3.log"),
        ("/lustre/job/train", "/lustre/job/train_cycle3.log"),
        ("/lustre/v1.2/train", "/lustre/v1.2/train_cycle3.log"),
        ("/lustre/train.out.txt", "/lustre/train.out_cycle3.txt"),
        ("/lustre/train.v2", "/lustre/train_cycle3.v2"),
        ("/lustre/llama-3.1", "/lustre/llama-3.1_cycle3.log"),
        ("/lustre/qwen2.5-7b", "/lustre/qwen2.5-7b_cycle3.log"),
        ("/lustre/llama-3.1.log", "/lustre/llama-3.1_cycle3.log"),
        ("/lustre/train.4711", "/lustre/train.4711_cycle3.log"),
        ("/lustre/train.job_42", "/lustre/train.job_42_cycle3.log"),
    ],
)
def test_the_cycle_stands_before_the_extension(prefix: str, path: str) -> None:
    assert cycle_log_path(prefix, 3) == path


def test_the_numbers_of_ranks_are_aligned() -> None:
    assert [rank_prefix(rank, 128) for rank in (0, 64, 127)] == ["  0: ", " 64: ", "127: "]
    assert rank_prefix(0, 1) == "0: "
    assert rank_prefix(9, 10) == "9: "


@pytest.mark.parametrize("text", ["logs/", "/lustre/", "/a\0b", "/" + "x" * 250, "/x" * 2100, "/\ud800"])
def test_what_can_be_no_log(text: str) -> None:
    with pytest.raises(ValueProblem):
        parse_log_path(text)


@pytest.mark.parametrize("parse", [parse_log_path, parse_folder])
def test_what_is_nested_too_deeply_can_be_no_log(parse: Callable[[str], str]) -> None:
    """A process that makes its folders would end."""
    assert parse("/x" * 500)
    with pytest.raises(ValueProblem, match="it is more than 500 folders deep"):
        parse("/x" * 501)


def test_nothing_is_not_wanted() -> None:
    assert parse_log_path("") == ""
    assert parse_folder("") == ""
    assert parse_folder("/lustre/cycles/") == "/lustre/cycles/"


def test_paths_are_taken_from_the_working_folder() -> None:
    flags = (
        "--ft-per-cycle-applog-prefix",
        "./train.log",
        "--ft-nvrx-logfile",
        "a/../s.log",
        "--ft-cycle-info-dir",
        "c",
    )
    logs = request(*flags, "t.py").spec.logs
    assert (logs.cycle_prefix, logs.supervisor_log, logs.cycle_info_dir) == (
        f"{CWD}/train.log",
        f"{CWD}/s.log",
        f"{CWD}/c",
    )
    assert (
        request("--ft-per-cycle-applog-prefix", "/l/../train.log", "t.py").spec.logs.cycle_prefix == "/l/../train.log"
    )


def test_a_path_that_would_be_too_long_from_here_is_refused_and_so_is_one_without_a_folder() -> None:
    for folder in ("/" + "x" * 4000, ""):
        with pytest.raises(ValueProblem):
            absolute(LOG_PATH, "y" * 100, folder)


def test_what_the_file_of_a_cycle_takes_the_place_of_is_told() -> None:
    run = request("--ft-per-cycle-applog-prefix", "/l/train.log", "--redirects", "3", "--tee", "0:1", "t.py")
    told = "has no effect beside --ft-per-cycle-applog-prefix: all output goes to the cycle's file"
    assert run.warnings == (f"--redirects 3 {told}", f"--tee 0:1 {told}")
