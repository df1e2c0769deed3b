"""Are all descendants found, through any number of parents and sessions, also where the kernel lists no children?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.worker_client.spawner.rig import until
from worker_client.spawner import process_tree

# A child, its child in a session of its own, and that one's child.
SCRIPT = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("up", flush=True)
    time.sleep(60)
time.sleep(60)
"""


def _is_absent(_path: str) -> bool:
    return False


@pytest.fixture
def root() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        for pid in reversed(process_tree.descendants([process.pid], process_tree.children_reader())):
            process_tree.send(pid, signal.SIGKILL)


@pytest.mark.parametrize("has_file", [True, False])
def test_parents_come_before_their_children(root: int, has_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_file:  # CONFIG_PROC_CHILDREN is not set
        monkeypatch.setattr(os.path, "exists", _is_absent)
    found = process_tree.descendants([root], process_tree.children_reader())
    assert len(found) == 3
    assert found[0] == root
    assert [process_tree.session_of(pid) == found[1] for pid in found] == [False, True, True]


def test_a_process_that_ended_is_told_from_one_that_runs() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)
        os._exit(0)
    before = process_tree.ticks_now()
    started = process_tree.start_ticks(pid)
    assert started is not None
    assert before - 100 <= started <= process_tree.ticks_now()
    assert not process_tree.is_zombie(pid)
    os.write(writer, b".")
    until(lambda: process_tree.is_zombie(pid), what="its end")
    assert process_tree.start_ticks(pid) == started, "it waits to be reaped"
    os.waitpid(pid, 0)
    assert process_tree.is_zombie(pid)
    assert process_tree.start_ticks(pid) is None
    assert process_tree.session_of(pid) is None
    process_tree.send(pid, signal.SIGKILL)  # nobody is there: no error
    os.close(reader)
    os.close(writer)


def test_a_name_with_parentheses_hides_no_field() -> None:
    script = "printf ') Z (' > /proc/self/comm; echo up; read _"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert not process_tree.is_zombie(process.pid)
        assert process_tree.start_ticks(process.pid) is not None
        process.communicate(b"\n")
