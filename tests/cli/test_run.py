"""Does a dry run say which supervisor would get the job?"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from supervisor.cli import run
from supervisor.config.resolve import parse_run
from supervisor.core.facts import JobState
from supervisor.edges.machine.folders import socket_dir
from supervisor.errors import NoSupervisorError
from supervisor.ports.reports import JobReport

MALLORY = 47114


@pytest.mark.parametrize("nodes", [(), ("--nnodes", "2", "--rdzv-id", "a", "--rdzv-endpoint", "127.0.0.1:7")])
def test_a_dry_run_says_that_nobody_serves_the_folder(
    nodes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """On several nodes, too: a node's supervisor also takes such jobs."""
    assert run.execute_argv(["--dry-run", "--socket-dir", str(tmp_path), *nodes, "train.py"]) == 0
    assert f"exit code 69: cannot reach a supervisor in {tmp_path}: nobody answers" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")
def test_the_supervisor_of_another_user_gets_no_byte(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Where it was named, the command refuses; where it was only found, as by `sudo -E`, the job runs without it."""
    hers = tmp_path / "holdfast"
    hers.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(hers / "control.sock"))
        listener.listen()
        os.chown(hers, MALLORY, MALLORY)
        with pytest.raises(NoSupervisorError, match=f"belongs to user id {MALLORY}, not root"):
            run.execute_argv(["--socket-dir", str(hers), "--no-python", "true"])
        assert run.execute_argv(["--dry-run", "--socket-dir", str(hers), "--no-python", "true"]) == 0
        assert f"exit code 69: cannot use the supervisor in {hers}: " in capfd.readouterr().out
        monkeypatch.delenv("HOLDFAST_SOCKET_DIR", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.setattr(socket_dir, "SYSTEM_DIR", tmp_path / "none")
        assert run.execute_argv(["--dry-run", "--no-python", "true"]) == 0
        shown = capfd.readouterr()
        assert "private: this command itself" in shown.out
        assert f"holdfast: warning: cannot use the supervisor in {hers}: " in shown.err
        listener.setblocking(False)
        for _ in range(3):  # Each command has looked once whether anybody answers.
            with listener.accept()[0] as client:
                assert client.recv(1) == b""
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("command", [["none.py"], ["wrong.py"], ["-m", "no_such_module"], ["--no-python", "no-such"]])
def test_before_an_error_about_the_command_nothing_else_is_said(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Not even which variable is set for its workers: that concerns nobody then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "wrong.py").write_text("def x(:\n")
    assert run.execute_argv(["--nproc-per-node", "2", *command]) != 0
    assert capfd.readouterr().err.startswith("holdfast: error: cannot run ")


def test_a_failure_is_told_if_the_installation_was_replaced_meanwhile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "supervisor.cli.run_failure_message", None)  # It can no longer be imported.
    request = parse_run(["--job-id", "j", "--no-python", "false"], environ={}, cwd=str(tmp_path))
    report = JobReport("j", JobState.FAILED, 1, reason="rank 0 exited with 1", exit_code=1)
    run._tell_failure(report, request)  # pyright: ignore[reportPrivateUsage]
    told = capfd.readouterr().err
    assert told.startswith(
        "holdfast: error: rank 0 exited with 1; its last lines cannot be shown: the installation was"
    )
    assert told.endswith("; see holdfast logs j\n")


def test_a_warning_before_the_log_is_open_is_a_line_of_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOLDFAST_CLAIM_DIR", str(folder := tmp_path / "open\x1b[31m"))
    folder.mkdir()
    folder.chmod(0o777)
    assert run.execute_argv(["--no-python", "no-such"]) != 0
    told = capfd.readouterr().err
    assert told.startswith("holdfast: warning: cannot claim the id of job ")
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("arguments", "variables", "is_told"),
    [
        (["train.py"], {"VIRTUAL_ENV": "/envs/u/env"}, True),
        (["-m", "train"], {"CONDA_PREFIX": "/envs/u/conda"}, True),
        (["--python", "python3", "train.py"], {"VIRTUAL_ENV": "/envs/u/env"}, False),
        (["train.py"], {"VIRTUAL_ENV": "/envs/u/env", "PYTHON_EXEC": "python3"}, False),
        (["--no-python", "train"], {"VIRTUAL_ENV": "/envs/u/env"}, False),
        (["train.py"], {"VIRTUAL_ENV": sys.prefix}, False),
        (["train.py"], {}, False),
    ],
)
def test_ranks_without_torch_beside_an_active_environment_are_announced(
    arguments: list[str],
    variables: dict[str, str],
    is_told: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """As with the command of the Debian package, or of /opt/holdfast."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert run.execute_argv(["--dry-run", *arguments]) == 0
    told = f"the ranks run in {sys.executable}, which has no torch" in capsys.readouterr().err
    assert told == is_told
