"""What do commands show if a supervisor is silent, or is just replaced? Real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import msgspec
import pytest

from supervisor.cli import main, supervisor_discovery
from supervisor.cli.supervisor_discovery import OWN_LIST_S, Answering, Supervisors
from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal_reader import report_to_json
from supervisor.edges.operators import control_decoding
from supervisor.edges.operators.control_client import ControlClient
from supervisor.edges.workers.spawner import spawner_discovery
from supervisor.errors import ExhaustedError, NotFoundError
from supervisor.ports.reports import JobNodeReport, JobReport
from tests.cli.supervised import Home
from tests.edges.operators.fake_job_service import running


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Generator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("is_private", [False, True])
def test_a_silent_supervisor_is_named_and_the_others_answer(home: Home, is_private: bool) -> None:
    places = (home.service_dir, home.root / "private")
    stuck_at, other = places[::-1] if is_private else places
    with (
        home.supervisor(running("stuck"), place=stuck_at, private=is_private) as stuck,
        home.supervisor(running("mine"), place=other, private=not is_private),
        stopped(stuck.process),
    ):
        pid = stuck.process.pid
        for command, found in (("status", {"mine"}), ("jobs", {"mine", "stuck"})):  # the journal knows of stuck
            done = home.holdfast(command, "-o", "json")
            assert (done.code, {job["job_id"] for job in json.loads(done.out)["jobs"]}) == (75, found), done
            assert (
                f"cannot ask the supervisor at {stuck_at}/control.sock: it does not answer; its process {pid} is"
                in done.err
            )
            assert f"{pid} is stopped (state T); kill -CONT {pid} continues it" in done.err
        asked_at_s = time.monotonic()
        assert home.holdfast("status", "stuck").code == 75  # the state that it recorded
        assert time.monotonic() - asked_at_s < OWN_LIST_S, "nobody waits for what cannot answer"
        nodes = home.holdfast("nodes")
        assert (nodes.code, nodes.out.count("\n")) == (75, 2)
        assert home.holdfast("status", "mine").code == 0
        unknown = home.holdfast("stop", "stuck")
        assert (unknown.code, unknown.out) == (75, "")
        assert f"cannot stop job stuck: the supervisor at {stuck_at}/control.sock, which may know more" in unknown.err


def test_a_supervisor_that_runs_and_does_not_answer_is_waited_for(home: Home) -> None:
    folder = home.service_dir
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control.sock"))
        listener.listen()
        done = home.holdfast("jobs")
    assert (done.code, done.out) == (75, "")
    assert f"cannot ask the supervisor at {folder}/control.sock: no answer within 5 s; its process" in done.err


def test_a_silent_supervisor_may_have_the_job_of_which_a_journal_knows_an_earlier_run(home: Home) -> None:
    with home.supervisor(running("again")) as ended:
        ended.tell("end again")
    with home.supervisor() as stuck, stopped(stuck.process):
        done = home.holdfast("stop", "again")
        assert done.code == 75
        assert "it has ended" not in done.err


@pytest.mark.parametrize("names_it", [False, True])
def test_a_supervisor_whose_queue_is_full_is_silent_too(home: Home, names_it: bool) -> None:
    folder = home.service_dir
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(folder / "control.sock"))
        listener.listen(0)
        waiting.connect(str(folder / "control.sock"))
        place = ("--socket-dir", str(folder)) if names_it else ()
        for command in (("jobs",), ("status",), ("nodes",), ("drain",), ("stop", "x")):
            done = home.holdfast(*command, *place)
            assert (done.code, done.out) == (75, ""), done
            assert f"cannot ask the supervisor at {folder}/control.sock: it does not accept within 1 s" in done.err
            assert "no job" not in done.err


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_supervisor_that_ends_while_it_is_asked_is_replaced_by_the_next(home: Home, comes_back: bool) -> None:
    """As by a restart of its service: the last one still accepts the connection and answers nothing."""
    folder = home.service_dir
    folder.mkdir(mode=0o700)
    place, spawner = spawner_discovery.create_files(folder / "spawners")
    spawner.close()
    place.note("train", os.getpid())
    with socket.socket(socket.AF_UNIX) as last:
        last.bind(str(folder / "control.sock"))
        last.listen()
        command = home.start("jobs", "-o", "json")
        for _ in range(2):  # the first look, then the question
            last.accept()[0].close()
    (folder / "control.sock").unlink()
    with home.supervisor(running("train")) if comes_back else nullcontext():
        out, err = command.communicate(timeout=60)
    assert "its jobs run on; waiting up to 10 s for the next one" in err
    names = [job["job_id"] for job in json.loads(out)["jobs"]]
    assert (command.returncode, names) == ((0, ["train"]) if comes_back else (75, [])), err
    assert ("no supervisor has come back for them" in err) is not comes_back


def test_a_job_that_cannot_be_read_costs_only_itself(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_decoding, "JOB_PARTS_MAX", 100)
    told: list[str] = []
    place = Namespace(socket_dir=str(home.service_dir), state_dir=None)
    with (
        home.supervisor(running("small"), running("large", ranks=100)),
        Supervisors(place, say=told.append) as supervisors,
    ):
        assert [job.name for job in supervisors.jobs(include_ended=True)] == ["small"]
        assert supervisors.find("small", verb="stop").is_live
        with pytest.raises(
            NotFoundError, match=r"no such job; .*\(cannot read job large: the supervisor names more than"
        ):
            supervisors.find("large", verb="stop")
        assert told == []
        supervisors.tell_refusals()
    assert len(told) == 1


# --- a history that takes longer to list than a command waits


def test_a_long_history_hides_no_live_job(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor_discovery, "OWN_LIST_S", 2.0)  # a fast machine would list all in 5 s
    place = f"--socket-dir={home.service_dir}"
    with home.supervisor(running("train", submitted_at_ns=10**9), running("bert", submitted_at_ns=10**9)):
        keep_ended(home.state / "journal.db", jobs=1_000, ranks=256)
        assert main(["jobs", "--state=running", "-o", "json", place]) == 75
        out, err = capsys.readouterr()
        assert {job["job_id"] for job in json.loads(out)["jobs"]} == {"train", "bert"}
        missing = f"holdfast: ended jobs of the supervisor at {home.service_dir}/control.sock may be missing: "
        assert err == f"{missing}no answer within 2 s\n", "it was late"
        for name, job_id in (("train", "train"), ("ber", "bert")):
            assert main(["stop", name, place]) == 0
            assert capsys.readouterr().err == f"holdfast: job {job_id} is being stopped\n"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No supervisor has time to list jobs that have ended."""
    jobs = ControlClient.jobs

    def within_no_time(
        client: ControlClient, *, include_ended: bool, within_s: float, on_unreadable: Callable[[str], None]
    ) -> list[JobReport]:
        within_s = 1e-9 if include_ended else within_s
        return jobs(client, include_ended=include_ended, within_s=within_s, on_unreadable=on_unreadable)

    monkeypatch.setattr(ControlClient, "jobs", within_no_time)


@pytest.mark.usefixtures("late")
def test_a_prefix_means_no_live_job_if_a_late_supervisor_knows_the_exact_id(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"--socket-dir={home.service_dir}"
    ended = msgspec.structs.replace(running("train"), state=JobState.FAILED, ended_at_ns=2_000)
    with home.supervisor(ended, running("train-2")):
        assert main(["stop", "train", place]) == 1
        assert "cannot stop job train: it has ended (failed)" in capsys.readouterr().err
        assert main(["status", "train", place, "-o", "json"]) == 0
        assert [job["state"] for job in json.loads(capsys.readouterr().out)["jobs"]] == ["failed"]
        assert main(["stop", "\udcff", place]) == 1, "a byte that is no UTF-8"
        assert main(["stop", "night", place]) == 1
        assert "there is no such job; see holdfast jobs (ended jobs of " in capsys.readouterr().err
        assert main(["status", "night", place]) == 75
        assert "; type the whole id" in capsys.readouterr().err

        def job(client: ControlClient, job_id: str, *, within_s: float | None = None) -> JobReport:
            raise ExhaustedError(f"cannot ask the supervisor at {client.socket_path}: no answer within 5 s; try again")

        with monkeypatch.context() as silent:
            silent.setattr(ControlClient, "job", job)
            assert main(["stop", "train", place]) == 75
        assert "cannot stop job train: the supervisor at " in capsys.readouterr().err
        assert _states(home, "status") == ["running"], "train-2 runs on"


@pytest.mark.usefixtures("late")
def test_commands_say_once_that_ended_jobs_may_be_missing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"--socket-dir={home.service_dir}"
    with home.supervisor(running("train"), running("bert")):
        for more in ([], [f"--state-dir={home.state}"]):  # a journal shows both as running?
            assert main(["jobs", place, *more]) == 75
            out, err = capsys.readouterr()
            assert [line.split()[:2] for line in out.splitlines()[1:]] == [["train", "running"], ["bert", "running"]]
            assert err.count("\n") == err.count("may be missing: no answer within ") == 1, err
        assert main(["stop", "ber", place]) == 0
        assert capsys.readouterr().err == "holdfast: job bert is being stopped\n"


@pytest.mark.usefixtures("late")
def test_the_parts_of_a_late_supervisor_are_known(home: Home) -> None:
    places = [home.root / "first", home.root / "second"]
    with home.supervisor(_part(1, 1, 2), place=places[0]), home.supervisor(_part(2, 1, 2), place=places[1]):
        supervisors = Supervisors(Namespace(socket_dir=str(places[0]), state_dir=None))
        with supervisors, ControlClient(places[1] / "control.sock") as second:
            supervisors.answering.append(Answering(second, is_private=True, uid=os.geteuid()))
            found = supervisors.find("nigh", verb="stop", live_only=True)
            assert len(supervisors.live_parts(found)) == 2
            supervisors.jobs(include_ended=True)
            assert len(supervisors.live_parts(found)) == 2


def keep_ended(journal: Path, *, jobs: int, ranks: int) -> None:
    """Writes rows of ended jobs, old-1 and so on."""
    ended = msgspec.structs.replace(running("old", ranks=ranks), state=JobState.SUCCEEDED, ended_at_ns=2_000)
    text = report_to_json(ended)
    rows = (
        (f"old-{number}", number, text.replace(':"old"', f':"old-{number}"', 1).replace(":1000", f":{number}", 1))
        for number in range(1, jobs + 1)
    )
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.executemany(
            "INSERT INTO jobs (job_id, submitted_at_ns, ended_at_ns, updated_at_s, state, report) "
            "VALUES (?, ?, 2000, 0, 'succeeded', ?)",
            rows,
        )


# --- several nodes of one job on this machine


def _part(number: int, *nodes: int, **changes: object) -> JobReport:
    """The job as its part number `number` knows it; each node logs in a folder of its own."""
    known = tuple(JobNodeReport(f"n{each}", "ready", each, log_dir=f"/logs/{each}") for each in nodes)
    part = running("night", submitted_at_ns=1_000 + number, log_dir=f"/logs/{number}")
    return msgspec.structs.replace(part, nodes=known, **changes)


def _states(home: Home, *command: str) -> list[str]:
    done = home.holdfast(*command, "-o", "json")
    assert done.code == 0, done
    return [job["state"] for job in json.loads(done.out)["jobs"]]


@pytest.mark.parametrize("is_answering", [True, False])
def test_a_part_that_has_left_does_not_stand_for_a_job_that_goes_on(home: Home, is_answering: bool) -> None:
    left = _part(1, 1, 2, 3, state=JobState.STOPPED, exit_code=0, reason="node n1 has left the job")
    first = home.supervisor(left, place=home.root / "first", private=True)
    with first as gone, home.supervisor(_part(2, 2, 3), place=home.root / "second", private=True):
        if not is_answering:
            gone.end()
        assert _states(home, "status", "night") == ["running"]
        assert _states(home, "jobs") == ["running"]
        stopped_it = home.holdfast("stop", "night")
        assert (stopped_it.code, stopped_it.err) == (0, "holdfast: job night is being stopped\n")
        assert _states(home, "jobs") == ["stopped"]


def test_parts_that_have_not_found_each_other_are_one_job(home: Home) -> None:
    with (
        home.supervisor(_part(1, 1), place=home.root / "first", private=True),
        home.supervisor(_part(2, 2), place=home.root / "second", private=True),
    ):
        assert _states(home, "status") == ["running"]
        assert _states(home, "status", "night") == ["running"]
        assert home.holdfast("stop", "night").code == 0
        assert _states(home, "status") == []


def test_two_scripts_of_one_id_are_two_jobs(home: Home) -> None:
    with (
        home.supervisor(_part(1, 1), place=home.root / "first", private=True),
        home.supervisor(_part(2, 2, command=("other.py",)), place=home.root / "second", private=True),
    ):
        refused = home.holdfast("stop", "night")
        assert refused.code != 0
        assert "cannot stop job night: 2 supervisors have one of that id; choose with --socket-dir" in refused.err
