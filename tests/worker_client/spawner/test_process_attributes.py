"""What do ps and the kernel know about a spawner and its workers?"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker
from worker_client.spawner import process_attributes


def test_the_spawner_shows_itself_and_its_workers_do_not(script: Script, tmp_path: Path) -> None:
    path = script("import time; print('up', flush=True); time.sleep(60)")
    with Rig(path) as rig:
        (spawned,) = rig.spawn(worker())
        assert rig.process.stdout is not None
        assert rig.process.stdout.readline() == b"up\n"
        shown = Path(f"/proc/{rig.process.pid}/cmdline").read_bytes().rstrip(b"\0")
        assert b"holdfast spawner job-1".startswith(shown)
        assert len(shown) > 10
        assert Path(f"/proc/{rig.process.pid}/comm").read_text() == "hf-spawner\n"
        assert Path(f"/proc/{spawned.pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-u", os.fsencode(path)]
        assert Path(f"/proc/{spawned.pid}/comm").read_text() == Path(sys.executable).name + "\n"


def in_a_child(run: Callable[[], object]) -> int:
    """Returns 0 if `run` returned in a child of this process, or how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001 - whatever it is ends this child alone
            traceback.print_exc()
            os._exit(9)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_variable_is_shown_under_another_name_from_outside() -> None:
    def run() -> None:
        before = Path("/proc/self/environ").read_bytes()
        process_attributes.rename_variable("PATH", "THAT")
        process_attributes.rename_variable("NOT_THERE", "THERE_NOT")
        shown = Path("/proc/self/environ").read_bytes()
        assert b"\0" + shown == (b"\0" + before).replace(b"\0PATH=", b"\0THAT=")
        assert shown != before
        assert os.environ["PATH"]

    assert in_a_child(run) == 0


def test_what_is_shown_fits_the_place_and_is_restored() -> None:
    def run() -> None:
        before = [Path(f"/proc/self/{each}").read_bytes() for each in ("cmdline", "comm")]
        title = process_attributes.Title()
        title.show("a-very-long-name-of-a-process", "x" * 10_000)
        shown = Path("/proc/self/cmdline").read_bytes()
        assert len(shown) == len(before[0])
        assert set(shown) == {ord("x"), 0}
        assert shown.endswith(b"\0")
        assert Path("/proc/self/comm").read_bytes() == b"a-very-long-nam\n"
        title.restore()
        assert before == [Path(f"/proc/self/{each}").read_bytes() for each in ("cmdline", "comm")]

    assert in_a_child(run) == 0


def test_a_child_of_a_child_that_dies_is_adopted() -> None:
    def run() -> None:
        process_attributes.adopt_orphans()
        reader, writer = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.write(writer, b"%d" % os.getpid())
                os.close(writer)
                os.read(0, 1)
            os._exit(0)
        ended = [os.wait()[0] for _ in range(2)]
        assert int(os.read(reader, 20)) in ended

    assert in_a_child(run) == 0


def test_a_process_ends_with_the_other_end_of_its_link_until_it_outlives_it() -> None:
    def loads(*, outlives: bool) -> int:
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            process_attributes.die_with_link(theirs.fileno())
            if outlives:
                process_attributes.outlive_link(theirs.fileno())
            os.write(writer, b".")
            while not (outlives and theirs.recv(1) == b""):
                signal.pause()
            os._exit(7)
        theirs.close()
        os.read(reader, 1)
        ours.close()
        for fd in (reader, writer):
            os.close(fd)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert loads(outlives=False) == 1
    assert loads(outlives=True) == 7


def test_a_link_with_messages_ends_nobody_and_they_stay_unread() -> None:
    def run() -> None:
        ours, theirs = socket.socketpair()
        ours.send(b"message")
        process_attributes.die_with_link(theirs.fileno())
        assert theirs.recv(100) == b"message"
        ours.close()
        os._exit(5)  # not reached: the end of the link is noticed at once

    assert in_a_child(run) == 1


def test_variables_that_python_does_not_know_of_are_seen() -> None:
    def run() -> None:
        os.putenv("SET_BY_A_LIBRARY", "1")
        assert "SET_BY_A_LIBRARY" not in os.environ
        assert process_attributes.variables()[b"SET_BY_A_LIBRARY"] == b"1"

    assert in_a_child(run) == 0
