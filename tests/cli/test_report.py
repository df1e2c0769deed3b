"""Does `holdfast report` show a job's life from a supervisor and from the journal, on the terminal and in files?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.cli.report import write_file
from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal import Journal
from supervisor.errors import InvalidRequestError
from supervisor.ports.reports import JobReport
from tests.cli.supervised import Home, widest
from tests.edges.operators.fake_job_service import running
from tests.report.timeline.jobs import Told, killed_and_hung

LIVE = "train-7f3a"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


def recorded(home: Home, job: Told) -> JobReport:
    """Writes the job to the journal as a supervisor does, with output of rank 2 in cycle 1."""
    logs = home.root / "logs"
    folder = logs / "cycle_1" / "rank_2"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("step 1\n")
    (folder / "stderr.log").write_text("\x1b[31mold\rWARNING </script> HF_TOKEN=hf_verysecret123\n")
    report = job.report(JobState.SUCCEEDED, log_dir=str(logs))
    journal = Journal(home.state, on_alarm=print)
    journal.start()
    journal.save(report)
    for event in job.events:
        journal.record(event)
    assert journal.close(10)
    return report


def test_of_a_job_that_has_ended(home: Home) -> None:
    recorded(home, killed_and_hung())
    done = home.holdfast("report", "job")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("job job succeeded after 30 s: 2 incidents, 2 of 5 restarts used\n")
    assert "WARNING </script> HF_TOKEN=***" in done.out
    told = home.holdfast("report", "job", "-o", "json")
    document = json.loads(told.out)
    assert [each["kind"] for each in document["incidents"]] == ["failed process", "hang"]
    assert document["incidents"][0]["last_words"][0]["note"].startswith("its output can't be read: cannot show output")
    assert document["incidents"][1]["last_words"][0]["lines"] == ["WARNING </script> HF_TOKEN=***"]


@pytest.mark.parametrize(("name", "begins"), [("r.html", "<!DOCTYPE html>"), ("r.svg", "<svg"), ("r.json", "{")])
def test_into_a_file(home: Home, name: str, begins: str) -> None:
    recorded(home, killed_and_hung())
    path = home.root / name
    path.write_text("an older one")
    done = home.holdfast("report", "job", "-o", str(path))
    assert (done.code, done.out, done.err) == (0, "", f"holdfast: wrote {path}\n")
    text = path.read_text()
    assert text.startswith(begins)
    assert "verysecret" not in text
    assert [each.name for each in home.root.glob(".r.*")] == []


def test_of_a_job_that_runs(home: Home) -> None:
    with home.supervisor(running()):
        done = home.holdfast("report", LIVE)
        page = home.root / "live.html"
        assert home.holdfast("report", LIVE, "-o", str(page)).code == 0
    assert done.code == 0, done.err
    assert done.out.startswith(f"job {LIVE} has been running for ")
    assert "still runs; the report shows it so far" in page.read_text()
    assert "hunter2" not in page.read_text() + done.out


def test_on_a_narrow_terminal(home: Home) -> None:
    recorded(home, killed_and_hung())
    assert widest(home.on_terminal(60, "report", "job").splitlines()) <= 60


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("report", "other"), 1, "cannot report on job other: there is no such job"),
        (("report", "job", "-o", "r.pdf"), 2, "'r.pdf' is not an output; give text, json, or a file that ends in"),
        (("report", "job", "-o", "/nowhere/r.html"), 2, "cannot write /nowhere/r.html: No such file or directory"),
    ],
)  # fmt: skip
def test_what_can_not_be_done_is_said(home: Home, arguments: tuple[str, ...], code: int, why: str) -> None:
    recorded(home, killed_and_hung())
    done = home.holdfast(*arguments)
    assert (done.code, done.out) == (code, "")
    assert why in done.err


def test_a_file_for_a_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidRequestError, match=r"cannot write r\.html: the current folder was removed; go to one"):
        write_file(Path("r.html"), "page")
