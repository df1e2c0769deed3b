"""Does a worker see a terminal, and is what it prints there kept as well?"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Exited, Spawn, StreamPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker
from worker_client.spawner import terminals

TEE = StreamPlan(prefix="[default0]:")


def test_a_terminal_is_handed_through(script: Script) -> None:
    path = script("import os, sys; print(sys.stdout.isatty(), os.ttyname(1), sys.stderr.isatty(), sys.stdin.isatty())")
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)
    try:
        with Rig(path, stdout=theirs, stderr=theirs, stdin=theirs) as rig:
            rig.run(worker())
            assert os.read(ours, 1000).decode() == f"True {name} True True\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_what_a_terminal_shows_is_kept_in_the_order_of_printing(script: Script, tmp_path: Path) -> None:
    text = """
        import os, sys
        print(os.get_terminal_size(1), sys.stdout.isatty(), sys.stderr.isatty())
        for at in range(200):
            print(f"{at} out")
            print(f"{at} err", end="\\r", file=sys.stderr, flush=True)
        """
    plan = StreamPlan(file=str(tmp_path / "log"), file_bytes_max=1 << 20)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 37, 93, 0, 0))
    shown = b""
    try:
        with Rig(script(text), stdout=theirs, stderr=theirs) as rig:
            rig.run(worker(stdout=plan, stderr=plan))
            while b"199 err" not in shown:
                shown += os.read(ours, 100_000)
    finally:
        os.close(ours)
        os.close(theirs)
    lines = "".join(f"{at} out\n{at} err\r" for at in range(200))
    expected = f"os.terminal_size(columns=93, lines=37) True True\n{lines}"
    assert (tmp_path / "log").read_bytes().decode() == expected
    assert shown.decode() == expected.replace("\n", "\r\n")


def test_a_terminal_that_changes_its_size_is_followed(script: Script, tmp_path: Path) -> None:
    """At the next output: no event tells a process of another session."""
    text = """
        import os, sys
        print("first")
        sys.stdin.readline()
        print("next")
        while os.get_terminal_size(1)[0] != 50: pass
        """
    plan = StreamPlan(file=str(tmp_path / "log"), file_bytes_max=1 << 20)
    ours, theirs = pty.openpty()
    reader, writer = os.pipe()
    try:
        with Rig(script(text), stdout=theirs, stderr=theirs, stdin=reader) as rig:
            rig.send(Spawn(0, (worker(stdout=plan, stderr=plan),)))
            assert os.read(ours, 5) == b"first"
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
            os.write(writer, b"go\n")
            assert rig.receive(Exited).code == 0
    finally:
        for descriptor in (ours, theirs, reader, writer):
            os.close(descriptor)


def test_a_prefix_takes_the_terminal_away(script: Script) -> None:
    ours, theirs = pty.openpty()
    try:
        with Rig(script("import sys; print(sys.stdout.isatty())"), stdout=theirs) as rig:
            rig.run(worker(stdout=TEE))
            assert os.read(ours, 1000) == b"[default0]:False\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def console() -> Iterator[int]:
    """A terminal that people watch."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 37, 93, 0, 0))
    yield theirs
    os.close(ours)
    os.close(theirs)


def size(fd: int) -> os.terminal_size:
    return os.get_terminal_size(fd)


def test_a_worker_s_terminal_has_the_size_and_adds_nothing_to_what_is_printed(console: int) -> None:
    ours, theirs = terminals.make_like(console)
    assert size(theirs) == (93, 37)
    os.write(theirs, b"a\nb\r\n")
    assert os.read(ours, 100) == b"a\nb\r\n"
    with pytest.raises(BlockingIOError):
        os.read(ours, 100)
    again = terminals.worker_side(ours)
    assert os.ttyname(again) == os.ttyname(theirs)
    for fd in (ours, theirs, again):
        os.close(fd)


def test_a_size_is_passed_on_when_it_has_changed(console: int) -> None:
    ours, theirs = terminals.make_like(console)
    known = terminals.follow_size(ours, console, b"")
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 1, 2, 0, 0))
    assert terminals.follow_size(ours, console, known) == known
    assert size(theirs) == (2, 1), "what a worker has set itself stays"
    fcntl.ioctl(console, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
    assert terminals.follow_size(ours, console, known) != known
    assert size(theirs) == (50, 20)
    for fd in (ours, theirs):
        os.close(fd)


def test_where_there_is_no_terminal_none_is_made() -> None:
    reader, writer = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Inappropriate ioctl"):
        terminals.make_like(writer)
    assert len(os.listdir("/proc/self/fd")) == before
    assert terminals.follow_size(reader, writer, b"as it was") == b"as it was"
    os.close(reader)
    os.close(writer)
