"""What do commands show if a supervisor is silent, or is just replaced? Real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from supervisor.edges.workers.spawner import return_places
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
            assert f"cannot ask the supervisor at {stuck_at}/control.sock: no answer within 5 s" in done.err
            assert f"its process {pid} is stopped (state T); kill -CONT {pid} continues it" in done.err
        nodes = home.holdfast("nodes")
        assert (nodes.code, nodes.out.count("\n")) == (75, 2)
        assert home.holdfast("status", "mine").code == 0
        unknown = home.holdfast("stop", "stuck")
        assert (unknown.code, unknown.out) == (75, "")
        assert f"cannot stop job stuck: the supervisor at {stuck_at}/control.sock, which may know more" in unknown.err


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
    place, spawner = return_places.open_place(folder / "spawners")
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
