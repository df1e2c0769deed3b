"""A history on a disk that does not answer costs its reader an error, not for ever."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from supervisor.cli import main
from supervisor.cli.history import History
from supervisor.edges.machine.folders import private_registry, socket_dir
from supervisor.edges.machine.journal import journal, timed_reads
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.timed_reads import SilentDiskError, TimedReads
from supervisor.errors import ExhaustedError
from tests.soak.places import Unanswering, served_alone

SOON_S = 0.05
LIMIT_S = 60.0


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Unanswering]:
    monkeypatch.setattr(timed_reads, "READ_S", SOON_S)
    monkeypatch.setattr(journal, "LIST_S", SOON_S)
    with served_alone(tmp_path / "silent") as files:
        if files is None:
            pytest.skip("needs root, mount namespaces and /dev/fuse")
        files.fail()
        yield files


def none_in(_: str | None) -> tuple[socket_dir.Candidate, ...]:
    return ()


def test_a_read_returns_and_raises_what_its_work_does() -> None:
    reads = TimedReads(stuck_max=1)
    for _ in range(3):
        assert reads.read(lambda: "found", place="/state", within_s=LIMIT_S) == "found"
        with pytest.raises(ZeroDivisionError):
            reads.read(lambda: 1 // 0, place="/state", within_s=LIMIT_S)


def test_a_read_that_does_not_end_is_an_error_and_the_next_one_does_not_begin() -> None:
    reads, answers, begun = TimedReads(stuck_max=1), threading.Event(), list[threading.Thread]()

    def read() -> None:
        begun.append(threading.current_thread())
        answers.wait(LIMIT_S)

    for within_s in (SOON_S, LIMIT_S):
        with pytest.raises(SilentDiskError, match="cannot read the history: /state does not answer; check its disk"):
            reads.read(read, place="/state", within_s=within_s)
    (thread,) = begun
    answers.set()
    thread.join(LIMIT_S)
    assert reads.read(lambda: "found", place="/state", within_s=LIMIT_S) == "found"


def test_a_journal_on_a_silent_disk_lists_what_memory_has_and_refuses_the_rest(silent: Unanswering) -> None:
    recorded = Journal(silent.folder / "state", on_alarm=print)
    assert list(recorded.jobs()) == []
    for read in (lambda: recorded.job("j"), lambda: recorded.events("j", limit=10)):
        with pytest.raises(ExhaustedError, match=f"{silent.folder}/state does not answer"):
            read()


def test_a_command_says_that_the_disk_does_not_answer(
    silent: Unanswering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("supervisor.cli.history._READS", TimedReads(stuck_max=1))
    monkeypatch.setattr(socket_dir, "candidates", none_in)
    monkeypatch.setattr(
        private_registry, "registered", tuple[private_registry.RegisteredSupervisor, ...]
    )  # none of other tests
    for command in (("jobs",), ("events", "j"), ("report", "j")):
        assert main([*command, "--state-dir", str(silent.folder)]) == ExhaustedError.exit_code
        said = capsys.readouterr().err
        assert f"cannot read the history: {silent.folder} does not answer; check its disk" in said
    assert History(str(silent.folder)).folder == silent.folder
