"""Does the command line find its commands, report errors, and end with the documented codes?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import supervisor
from supervisor import cli
from supervisor.cli.commands import COMMANDS, LATER
from tests.cli.supervised import Home
from tests.edges.operators.fake_job_service import running


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {supervisor.__version__}\n"
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    assert not any(summary in out for summary in LATER.values())
    assert cli.main(["--help-all"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*COMMANDS, *LATER))
    assert cli.main([]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["statsu"], "cannot run holdfast statsu: there is no such command, did you mean status; see holdfast --help"),
        (["web", "--listen", "nowhere"], "cannot listen at 'nowhere': it is not an address; write such as"),
        (["status", "--colour"], "there is no flag --colour, did you mean --no-color; see holdfast status --help"),
        (["logs", "job", "--tial=5"], "there is no flag --tial, did you mean --tail; see holdfast logs --help"),
        (["status", "--xyz"], "there is no flag --xyz; see holdfast status --help"),
        (["status", "one", "two"], "unrecognized arguments: two"),
        (["stop", "job", "--signal", "SIGFOO"], "there is no signal 'SIGFOO'"),
        (["logs"], "the following arguments are required: JOB"),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("@",),
        ("status", "@"),
        ("status", "two", "@"),
        ("status", "--socket-dir", "/@"),
        ("report", "job", "-o", "@"),
        ("run", "--ft-cfg-path", "@", "train.py"),
        ("daemon", "--@"),
    ],
)
def test_a_refusal_is_one_line_that_controls_no_terminal(arguments: tuple[str, ...], tmp_path: Path) -> None:
    refused = Home(tmp_path).holdfast(*(each.replace("@", "esc\x1b[31m\nholdfast: fake") for each in arguments))
    assert refused.code != 0
    (line,) = refused.err.splitlines()
    assert line.startswith("holdfast: cannot ")
    assert r"esc\x1b[31m" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["healthd", "--config", "x"], "cannot run holdfast healthd: the current folder was removed"),
        (
            ["attribution", "--app-log-dir", ".", "--listen", "127.0.0.1:0"],
            "cannot run holdfast attribution: the current folder was removed",
        ),
        (["daemon", "--socket-dir", "rel"], "cannot run holdfast daemon: the current folder was removed"),
        (
            ["run", "--log-dir", "rel", "--no-python", "true"],
            "cannot keep logs in rel: the current folder was removed",
        ),
    ],
)
def test_a_relative_path_in_a_folder_that_was_removed_is_a_usage_error(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(arguments) == 2
    assert capfd.readouterr().err == f"holdfast: {message}; go to one that exists\n"


def test_a_broken_journal_is_a_configuration_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.state / "journal.db").write_bytes(b"this is no database" * 100)
    done = home.holdfast("jobs")
    assert done.code == 78
    assert "cannot read journal" in done.err


def test_stop_restart_and_cordon_act_and_say_so(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.supervisor(running()):
        restarted = home.holdfast("restart", "train", "--reason", "new data")
        assert (restarted.code, restarted.out) == (0, "")
        assert restarted.err == "holdfast: job train-7f3a restarts: cycle 3 comes next\n"
        assert home.holdfast("cordon", "n0", "--reason", "disk is slow").code == 0
        assert "cordoned" in home.holdfast("nodes").out
        assert "disk is slow" in home.holdfast("nodes").out
        again = home.holdfast("cordon", "n0")
        assert (again.code, again.err) == (1, "holdfast: cannot cordon n0: it is cordoned\n")
        assert home.holdfast("cordon", "n7").err == (
            "holdfast: cannot cordon node n7: it is not among the nodes known here; choose one of n0\n"
        )
        assert home.holdfast("uncordon", "n0").code == 0
        home.holdfast("cordon", "n0")
        here = home.holdfast("uncordon")
        assert (here.code, here.err) == (0, "holdfast: node n0 takes jobs again\n")
        stopped = home.holdfast("stop", "train", "--wait", "--reason", "enough")
        assert stopped.code == 0
        assert stopped.err.endswith("holdfast: job train-7f3a has ended: enough\n")
        assert '"state": "stopped"' in home.holdfast("status", "train", "-o", "json").out


def test_a_reason_or_a_name_that_is_not_utf_8_is_taken_as_text(tmp_path: Path) -> None:
    home, reason = Home(tmp_path), os.fsdecode(b"caf\xe9")
    with home.supervisor(running()):
        for command in (("restart", "train"), ("stop", "train"), ("drain",)):
            done = home.holdfast(*command, "--reason", reason)
            assert done.code == 0, done.err
        assert r"caf\udce9" in home.holdfast("jobs").out
        unknown = home.holdfast("drain", "--node", reason)
        assert (unknown.code, "choose one of n0" in unknown.err) == (1, True), unknown.err


@pytest.mark.parametrize("command", [("drain", "--node", ""), ("uncordon", ""), ("cordon", "")])
def test_a_shell_variable_that_is_not_set_means_no_node(command: tuple[str, ...], tmp_path: Path) -> None:
    refused = Home(tmp_path).holdfast(*command)
    assert refused.code == 2
    assert "an empty text names no node; give a name that holdfast nodes shows" in refused.err


def test_where_no_daemon_runs_no_node_is_uncordoned_without_its_name(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.supervisor(running(), place=home.root / "private", private=True):
        refused = home.holdfast("uncordon")
        assert refused.code == 69
        assert "cannot uncordon this node: no holdfast daemon runs here, so nothing keeps jobs away" in refused.err


def test_a_cordon_that_nothing_keeps_is_told_as_such(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.supervisor(running()) as supervisor:
        assert home.holdfast("cordon", "n0").err == (
            "holdfast: node n0 takes no new jobs; undo this with holdfast uncordon n0\n"
        )
        home.holdfast("uncordon", "n0")
        supervisor.tell("forget")
        assert home.holdfast("cordon", "n0").err == (
            "holdfast: node n0 takes part in no later cycle of train-7f3a; no holdfast daemon keeps later jobs away "
            "from it; undo this with holdfast uncordon n0\n"
        )


def test_drain_takes_no_new_jobs_and_returns_once_there_are_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.supervisor(running()):
        drained = home.holdfast("drain", "--stop-jobs", "--reason", "new cable")
        assert drained.code == 0, drained.err
        assert "waiting for job train-7f3a (running)" in drained.err
        assert drained.err.endswith(
            "this node has no jobs and takes none: its service may stop; holdfast uncordon undoes this\n"
        )
        assert "new cable" in home.holdfast("nodes").out
        assert '"state": "stopped"' in home.holdfast("status", "train", "-o", "json").out
    assert home.holdfast("drain").code == 69


def test_a_job_that_ends_before_its_turn_to_be_stopped_is_no_fault_of_the_drain(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.supervisor(running("one"), running("two")) as supervisor:
        supervisor.tell("together")
        drained = home.holdfast("drain", "--stop-jobs")
    assert drained.code == 0, drained.err
    assert "this node has no jobs and takes none" in drained.err
