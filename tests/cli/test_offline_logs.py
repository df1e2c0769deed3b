"""Is the output of a job on several nodes read where it can be, and is it said where the rest lies?"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.cli import offline_logs
from supervisor.core.facts import JobState
from supervisor.edges.operators.log_follower import LogChoice
from supervisor.errors import NotFoundError
from supervisor.ports.reports import JobNodeReport, JobReport
from tests.edges.operators.fake_job_service import running


def ended(root: Path, *, seen: tuple[str, ...]) -> JobReport:
    """A job of rank 0 on n0, rank 1 on n1, which led it from n0; the logs of the nodes in `seen` are seen here."""
    for rank, name in enumerate(("n0", "n1")):
        if name in seen:
            folder = root / name / "cycle_2" / f"rank_{rank}"
            folder.mkdir(parents=True)
            (folder / "stdout.log").write_text(f"said by rank {rank}\n")
    job = running(ranks=2, log_dir=str(root / "n0"))
    return replace(
        job,
        state=JobState.FAILED,
        nodes=tuple(JobNodeReport(name, "stopped", log_dir=str(root / name)) for name in ("n0", "n1")),
        ranks=(job.ranks[0], replace(job.ranks[1], node="n1")),
    )


def read(report: JobReport, choice: LogChoice) -> tuple[bytes, list[str]]:
    notes: list[str] = []
    data = b"".join(piece.data for piece in offline_logs.read(report, choice, on_note=notes.append))
    return data, notes


def test_logs_on_a_shared_file_system_are_read(tmp_path: Path) -> None:
    report = ended(tmp_path, seen=("n0", "n1"))
    assert read(report, LogChoice()) == (b"said by rank 0\nsaid by rank 1\n", [])
    assert read(report, LogChoice(rank=1, cycle=2, tail_lines=5)) == (b"said by rank 1\n", [])


def test_where_the_logs_of_another_node_lie_is_said(tmp_path: Path) -> None:
    report = ended(tmp_path, seen=("n0",))
    place = f"n1 (in {tmp_path}/n1)"
    data, notes = read(report, LogChoice())
    assert data == b"said by rank 0\n"
    assert notes == [f"the output of the ranks on {place} is not shown; run holdfast logs train-7f3a there"]
    for cycle in (None, 1, 2):
        with pytest.raises(NotFoundError) as refused:
            read(report, LogChoice(rank=1, cycle=cycle))
        assert str(refused.value) == (
            f"cannot show the output of rank 1 of job train-7f3a: it lies on {place}; "
            "run holdfast logs train-7f3a there"
        )
    assert read(report, LogChoice(rank=0, cycle=2)) == (b"said by rank 0\n", [])
    assert read(report, LogChoice(rank=0, tail_lines=5)) == (b"said by rank 0\n", [])


def test_where_the_cycles_of_a_rank_may_lie_that_are_not_seen_here_is_said(tmp_path: Path) -> None:
    report = ended(tmp_path, seen=("n0",))
    place = f"n1 (in {tmp_path}/n1)"
    more = [f"rank 0 may have printed more on {place}; run holdfast logs train-7f3a there"]
    assert read(report, LogChoice(rank=0)) == (b"said by rank 0\n", more), "cycles 0 and 1"
    for cycle in (0, 1):
        (tmp_path / "n0" / f"cycle_{cycle}" / "rank_0").mkdir(parents=True)
    assert read(report, LogChoice(rank=0)) == (b"said by rank 0\n", [])
    (tmp_path / "n0" / "cycle_0" / "rank_1").mkdir()
    (tmp_path / "n0" / "cycle_0" / "rank_1" / "stdout.log").write_text("here\n")
    assert read(report, LogChoice(rank=1)) == (b"here\n", [more[0].replace("rank 0", "rank 1")])


def test_each_node_is_named_on_which_a_rank_may_have_run_in_an_earlier_cycle(tmp_path: Path) -> None:
    report = ended(tmp_path, seen=("n0",))
    report = replace(report, nodes=(*report.nodes, JobNodeReport("n2", "stopped", log_dir=str(tmp_path / "n2"))))
    folder = tmp_path / "n0" / "cycle_2" / "rank_1"
    folder.mkdir()
    (folder / "stdout.log").write_text("here\n")
    first, second = (f"n{number} (in {tmp_path}/n{number})" for number in (1, 2))
    more = f"rank 1 may have printed more on {first}, {second}; run holdfast logs train-7f3a there"
    assert read(report, LogChoice(rank=1)) == (b"here\n", [more])
    assert read(report, LogChoice(rank=1, tail_lines=5)) == (b"here\n", [])


def test_what_nobody_has_is_said_as_on_one_node(tmp_path: Path) -> None:
    report = ended(tmp_path, seen=("n0", "n1"))
    with pytest.raises(NotFoundError, match="holds nothing of cycle 1 of rank 0; the workers have not started yet, or"):
        read(report, LogChoice(rank=0, cycle=1))
