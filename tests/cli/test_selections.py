"""Do the flags that select events, jobs and ranks work, and say why nothing is left?"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.local_time import local_time
from tests.cli.supervised import Home
from tests.edges.operators.fake_job_service import running

JOB = "train-7f3a"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def kinds(home: Home, *arguments: str) -> list[str]:
    done = home.holdfast("events", JOB, "-o", "jsonl", *arguments)
    assert done.code == 0, done.err
    return [json.loads(line)["kind"] for line in done.out.splitlines()]


def test_events_are_selected_by_kind_rank_age_and_number(home: Home) -> None:
    with home.supervisor(running()) as supervisor:
        supervisor.tell(f"publish {JOB}")
        supervisor.tell(f"publish {JOB}")
        everything = ["cycle_started", "worker_exited", "worker_exited"]
        assert kinds(home) == everything
        assert kinds(home, "--tail", "1") == everything[-1:]
        assert kinds(home, "--kind", "worker_exited,job_failed", "-n", "5") == everything[1:]
        assert kinds(home, "--kind", "cycle_started", "--kind", "worker_exited") == everything
        assert kinds(home, "--rank", "1") == everything  # the fake's events are of rank 1
        assert kinds(home, "--since", "1970-01-01T00:00:02.500+00:00") == everything[2:]
        assert kinds(home, "--since", "2h") == kinds(home, "--since=-2h") == []
        nothing = home.holdfast("events", JOB, "--kind", "hang")
        assert (
            "none of the 3 events of job train-7f3a fits; their kinds are worker_exited, cycle_started" in nothing.err
        )
        follower = home.start("events", JOB, "--follow", "--tail", "1", "-o", "jsonl")
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["sequence"] == 3
        supervisor.tell(f"end {JOB}")
        out, _ = follower.communicate(timeout=20)
        assert [json.loads(line)["sequence"] for line in out.splitlines()] == [4]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("events", JOB, "--rank", "7"), 1, "of rank 7: there are none; job train-7f3a has ranks 0 to 3 as far"),
        (("logs", JOB, "--rank", "7"), 1, "holds nothing of rank 7; the workers have not started yet, or old"),
        (("logs", JOB, "--rank", "7"), 1, "; job train-7f3a has ranks 0 to 3 as far as is known here\n"),
        (("logs", JOB, "--rank", "-1"), 2, "'-1' is not a rank; ranks are numbers from 0"),
        (("stacks", JOB, "--rank", "one"), 2, "'one' is not a rank; ranks are numbers from 0"),
        (("logs", JOB, "--tail", "many"), 2, "'many' is not a whole number of 1 or more"),
        (("jobs", "-n", "0"), 2, "'0' is not a whole number of 1 or more; leave the flag out to see everything"),
        (("events", JOB, "--since", "-5m"), 2, "one that begins with - is written as --flag=VALUE"),
        (("status", ""), 2, "cannot show a job: an empty text names none; give a name that holdfast jobs shows"),
        (("stop", ""), 2, "cannot stop a job: an empty text names none; give a name that holdfast jobs shows"),
        (
            ("events", JOB, "--since", "yesterday"),
            2,
            "'yesterday' is neither an age such as 90s, 10m, 1h30m or 1d nor",
        ),
        (("jobs", "--state", "dead"), 2, "there is no state 'dead'; the states are pending, rendezvous,"),
    ],
)
def test_a_bad_selection_says_what_there_is(home: Home, arguments: tuple[str, ...], code: int, why: str) -> None:
    with home.supervisor(running()):
        done = home.holdfast(*arguments)
    assert (done.code, done.out) == (code, "")
    assert why in done.err


def test_a_rank_that_only_an_earlier_cycle_had_is_shown(home: Home) -> None:
    folder = home.root / "logs" / "cycle_0" / "rank_7"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("hello\n")

    def is_shown() -> bool:
        logs = home.holdfast("logs", JOB, "--rank", "7")
        return (logs.code, logs.out, logs.err) == (0, "hello\n", "") and kinds(home, "--rank", "7") == ["worker_exited"]

    with home.supervisor(running(log_dir=str(home.root / "logs"))) as supervisor:  # ranks 0 to 3
        supervisor.tell(f"publish {JOB} 7")
        assert is_shown()
        none_so_young = home.holdfast("events", JOB, "--rank", "7", "--since", "1h")
        assert (none_so_young.code, "none of the 2 events of job train-7f3a fits" in none_so_young.err) == (0, True)
        follower = home.start("logs", JOB, "--rank", "8", "--follow")
        assert follower.stderr is not None
        assert "has ranks 0 to 3 as far as is known here; rank 8 is waited for" in follower.stderr.readline()
        follower.kill()
        follower.communicate()
    assert is_shown(), "by what is recorded"


def test_jobs_are_selected_by_state(home: Home) -> None:
    with home.supervisor(running("old"), running("new")) as supervisor:
        supervisor.tell("end new")
        listed = json.loads(home.holdfast("jobs", "--state", "succeeded,failed", "-o", "json").out)["jobs"]
        assert [job["job_id"] for job in listed] == ["new"]
        assert "none of 2 jobs is in that state" in home.holdfast("jobs", "--state", "stopped").err
    assert "no jobs found in " in home.holdfast("jobs", HOLDFAST_STATE_DIR=str(home.root)).err


def test_empty_output_says_why(home: Home) -> None:
    folder = home.root / "logs" / JOB / "cycle_2" / "rank_0"
    folder.mkdir(parents=True)
    (folder / "stdout.log").touch()
    with home.supervisor(running(log_dir=str(home.root / "logs" / JOB))):
        done = home.holdfast("logs", JOB)
        assert (done.code, done.out) == (0, "")
        assert "the selected ranks of job train-7f3a have printed nothing (logs: " in done.err
        told = home.holdfast("logs", JOB, "--cycle", "9").err
        assert f"cannot show output of cycle 9 of job {JOB}: the newest in " in told
        assert told.endswith(" is cycle 2; choose an earlier one\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_shared_file_that_is_not_read_is_not_silence(home: Home, follow: tuple[str, ...]) -> None:
    """On an NFS with root_squash, it belongs to nobody."""
    folder = home.root / "logs" / JOB / "cycle_2" / "rank_0"
    folder.mkdir(parents=True)
    shared = home.root / "train_cycle2.log"
    shared.write_text("0: step 1\n")
    os.chown(shared, 65534, 65534)
    (folder / "cycle.log").symlink_to(shared)
    with home.supervisor(running(log_dir=str(home.root / "logs" / JOB))):
        asked = home.start("logs", JOB, *follow)
        assert asked.stderr is not None
        assert f"cannot show output in {shared}: it belongs to user id 65534, and the job " in asked.stderr.readline()
        asked.kill()
        asked.communicate()


def test_times_have_one_form(home: Home) -> None:
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?[+-]\d\d:\d\d"
    assert re.fullmatch(form, local_time(1_500_000_000_123_456_789, milliseconds=True))
    with home.supervisor(replace(running(), submitted_at_ns=1_500_000_000 * 10**9)):
        for arguments in (("status", JOB), ("jobs",), ("events", JOB), ("nodes",)):
            times = re.findall(r"\S*\d\d:\d\d:\d\d\S*", home.holdfast(*arguments, TZ="Asia/Kolkata").out)
            assert times, arguments
            assert all(re.fullmatch(form, time) and time.endswith("+05:30") for time in times), times


def test_a_reader_that_leaves_ends_what_watches_though_nothing_happens(home: Home) -> None:
    with home.supervisor(running()):
        for arguments in (("status", JOB, "--watch", "-o", "jsonl"), ("events", JOB, "--follow", "-o", "jsonl")):
            follower = home.start(*arguments)
            assert follower.stdout is not None
            assert follower.stderr is not None
            follower.stdout.readline()
            follower.stdout.close()
            assert follower.stderr.read() == ""
            assert follower.wait(20) == 141
            follower.stderr.close()
