"""Does a dry run say which supervisor would get the job?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli import run


@pytest.mark.parametrize("nodes", [(), ("--nnodes", "2", "--rdzv-id", "a", "--rdzv-endpoint", "127.0.0.1:7")])
def test_a_dry_run_says_that_nobody_serves_the_folder(
    nodes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """On several nodes, too: a node's supervisor also takes such jobs."""
    assert run.execute_argv(["--dry-run", "--socket-dir", str(tmp_path), *nodes, "train.py"]) == 0
    assert f"none: nobody answers at {tmp_path}" in capsys.readouterr().out


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


def test_a_warning_before_the_log_is_open_is_a_line_of_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOLDFAST_CLAIM_DIR", str(tmp_path / "open"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert run.execute_argv(["--no-python", "no-such"]) != 0
    assert capfd.readouterr().err.startswith("holdfast: warning: cannot claim the id of job ")
