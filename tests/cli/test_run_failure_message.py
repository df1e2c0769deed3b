"""Whose last lines does a user read after a job has failed, and what should he type next?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.cli.run_failure_message import culprit, last_lines, tell_failure
from supervisor.core.facts import JobState
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import NotFoundError
from supervisor.ports.reports import JobReport
from tests.edges.operators.fake_job_service import running


def failed(reason: str = "rank 1 (pid 801) failed with exit code 1; restarts used 3 of 3") -> JobReport:
    return replace(running(log_dir="/logs/run_1"), state=JobState.FAILED, reason=reason, exit_code=1)


def test_the_rank_that_the_verdict_names_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cycle_2" / "rank_1"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("loss 0.1\n")
    (folder / "stderr.log").write_text("".join(f"line {at}\n" for at in range(30)) + "ValueError: boom\x1b[2J\n")
    tell_failure(replace(failed(), log_dir=str(tmp_path)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "holdfast: job train-7f3a failed with exit code 1",
        "holdfast: last lines of rank 1 in cycle 2:",
    ]
    assert lines[2:4] == ["holdfast:   line 21", "holdfast:   line 22"]
    assert lines[-3:] == [
        "holdfast:   ValueError: boom\\x1b[2J",
        f"holdfast: logs: {tmp_path}",
        "holdfast: next: holdfast events train-7f3a, or holdfast logs train-7f3a --rank 1",
    ]


def test_a_job_that_never_ran_or_did_not_fail_needs_none(capsys: pytest.CaptureFixture[str]) -> None:
    tell_failure(replace(failed("cannot run x.py: there is no such file"), ranks=()))
    tell_failure(replace(failed(), state=JobState.STOPPED))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("quoted", "is_shown", "is_told"), [("boom", True, False), ("boom", False, True), ("exit code 1", True, True)]
)
def test_a_person_who_has_just_read_the_error_does_not_read_it_again(
    quoted: str, is_shown: bool, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = failed(f"rank 1 (pid 801) failed with exit code 1: ValueError: {quoted}; restarts used 3 of 3")
    piece = LogPiece(1, 2, True, b"Traceback (most recent call last):\nValueError: boom\n")
    tell_failure(report, lambda _: iter([piece]), is_shown=is_shown)
    assert ("last lines" in capsys.readouterr().err) == is_told


@pytest.mark.parametrize(("module", "is_told"), [("nvidia_resiliency_ext", True), ("numpy", False)])
def test_a_script_that_imports_the_other_product_is_told_what_to_import(
    module: str, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = f"rank 1 (pid 801) failed with exit code 1: ModuleNotFoundError: No module named '{module}'"
    tell_failure(failed(reason), lambda _: iter(()))
    assert ("import worker_client" in capsys.readouterr().err) == is_told


def test_nobody_is_blamed_whom_the_verdict_does_not_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert culprit(failed("the spawner was lost: killed by SIGKILL")) is None
    assert culprit(failed("rank 12 failed")) is None  # no rank of this job
    tell_failure(failed("the spawner was lost"))
    assert "last lines" not in capsys.readouterr().err


def test_lines_of_a_process_that_has_replaced_the_culprit_are_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """After a restart inside the processes, both print to the same files."""
    asked: list[LogChoice] = []

    def read(choice: LogChoice) -> Iterator[LogPiece]:
        asked.append(choice)
        yield LogPiece(1, 2, True, b"step 1000\n")

    report = failed()
    pid = next(each.pid for each in report.ranks if each.rank == 1)
    tell_failure(replace(report, reason=f"rank 1 (pid {pid}) was killed by SIGKILL"), read)
    assert "holdfast:   step 1000" in capsys.readouterr().err
    asked.clear()
    tell_failure(replace(report, reason="rank 1 (pid 12) was killed by SIGKILL"), read)
    told = capsys.readouterr().err
    assert "rank 1 was replaced in cycle 2" in told
    assert f"holdfast logs {report.job_id} --rank 1" in told
    assert "step 1000" not in told
    assert not asked


def test_output_that_can_not_be_had_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def nothing(choice: LogChoice) -> Iterator[LogPiece]:
        raise NotFoundError(f"nothing of rank {choice.rank}")

    tell_failure(failed(), nothing)
    assert "the output of rank 1 in cycle 2 can't be read" in capsys.readouterr().err
    tell_failure(failed(), lambda _: iter(()))
    assert "rank 1 in cycle 2 has printed nothing" in capsys.readouterr().err


def test_errors_go_before_results_and_progress_bars_show_their_end() -> None:
    def piece(data: bytes, *, is_stderr: bool = False) -> LogPiece:
        return LogPiece(1, 2, is_stderr, data)

    assert last_lines([piece(b"a\nb"), piece(b"c\n\n")]) == ["a", "bc"]
    assert last_lines([piece(b"a\n"), piece(b"1/2\r2/2\nboom\n", is_stderr=True)]) == ["2/2", "boom"]
    assert last_lines([]) == []


def test_secrets_are_hidden_before_anything_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nwCAQEA7Lx2\n-----END PRIVATE KEY-----"
    text = f"{key}\nrefused: s0meV4lue\n{'x' * 280} hf_abcdefgh1jklmnopqrstuvwxyz1234\n"
    tell_failure(failed(), lambda _: iter([LogPiece(1, 2, True, text.encode())]), ("s0meV4lue",))
    told = capsys.readouterr().err
    assert "refused: ***" in told
    for part in ("s0meV4lue", "MIIE", "wCAQ", "hf_"):
        assert part not in told
