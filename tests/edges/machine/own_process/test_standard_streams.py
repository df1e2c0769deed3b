"""Closed, full, stuck and broken streams: nothing blocks for long, raises, or writes to the wrong file."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from supervisor.edges.machine.own_process import standard_streams

START = "from supervisor.edges.machine.own_process import standard_streams as s; s.open_missing(); "


def run(code: str, *, closed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, START + code],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_what_is_closed_goes_to_nowhere_and_no_file_takes_its_number(closed: str, tmp_path: Path):
    told = tmp_path / "told"
    code = (
        f"import os, sys; f = open({str(told)!r}, 'w'); "
        "f.write(f'{f.fileno() > 2} {sys.stdout.fileno()} {sys.stderr.fileno()} {sys.stdin.fileno()}'); "
        "print('out', flush=True); s.say('err'); os.system('echo child')"
    )
    done = run(code, closed=closed)
    assert done.returncode == 0, done
    assert told.read_text() == "True 1 2 0"
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "out\nchild\n")
    assert done.stderr == ("" if "2>&-" in closed else "err\n")


def test_a_full_pipe_costs_half_a_second_and_the_line():
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as unread, os.fdopen(writer, "w") as stream:
        os.set_blocking(writer, False)
        while True:
            try:
                os.write(writer, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(writer, True)
        began_s = time.monotonic()
        assert not standard_streams.write(stream, "lost\n", wait_s=0.2)
        assert 0.1 < time.monotonic() - began_s < 5
        while unread.read1(65536) and standard_streams.write(stream, "", wait_s=0) and not _ready(writer):
            pass
        assert standard_streams.write(stream, "told\n" * 2000, wait_s=0.2)


def _ready(descriptor: int) -> bool:
    return standard_streams._is_ready(descriptor, 0)  # pyright: ignore[reportPrivateUsage]


def test_a_full_disk_a_reader_that_has_gone_and_a_closed_stream_are_not_errors():
    with open("/dev/full", "w") as full:
        assert not standard_streams.write(full, "x\n")
    assert not standard_streams.write(full, "x\n")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        assert not standard_streams.write(stream, "x\n")
    memory = io.StringIO()
    assert standard_streams.write(memory, "x\n")
    assert memory.getvalue() == "x\n"


def test_a_stdout_that_takes_nothing_is_told_and_does_not_spoil_the_end():
    done = run("print('x' * 9); w = s.stdout_is_broken(); s.say(w); raise SystemExit(3)", closed="> /dev/full")
    assert (done.returncode, done.stderr) == (3, "No space left on device\n")
    done = run("print('x'); s.say('-' + s.stdout_is_broken())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "-\n")


@pytest.mark.parametrize("closed", ["> /dev/full", "2> /dev/full", "> /dev/full 2> /dev/full", ">&-", "2>&-"])
def test_what_can_not_be_written_at_the_end_does_not_change_the_exit_code(closed: str):
    done = run(
        "sys = __import__('sys'); sys.stdout.write('x'); sys.stderr.write('x'); s.settle(); sys.exit(3)", closed=closed
    )
    assert done.returncode == 3, done
    of_command = (
        "import sys; sys.stderr.write('x'); from supervisor.cli import main; sys.exit(main(['nodes', '--no-such']))"
    )
    assert run(of_command, closed=closed).returncode == 2


LONG = "holdfast: warning: rank 1 is in load_batch (hang.py:2) while ranks 0, 2 and 3 wait in all_reduce; first noticed"
TO_COPY = "  holdfast run --nnodes 6:8 --rdzv-endpoint HOST:29400 --rdzv-id NAME --rdzv-conf token_file=job.token …"


@pytest.mark.parametrize(("columns", "folds"), [(80, True), (200, False), (20, False), (0, False)])
def test_a_long_line_is_folded_at_words_on_a_terminal(columns: int, folds: bool):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as terminal:
        assert standard_streams.write(terminal, f"{LONG}\n{TO_COPY}\n")
        first, *rest = os.read(ours, 4096).decode().replace("\r", "").splitlines()
    os.close(ours)
    if folds:
        assert first == LONG[: len(first)]
        assert len(first) <= columns
        assert rest == [f"  {LONG[len(first) + 1 :]}", TO_COPY]
    else:
        assert [first, *rest] == [LONG, TO_COPY]


def test_a_long_line_in_a_file_stays_one(tmp_path: Path):
    with (tmp_path / "log").open("w") as file:
        assert standard_streams.write(file, f"{LONG}\n")
    assert (tmp_path / "log").read_text() == f"{LONG}\n"


@pytest.mark.parametrize(
    ("command", "given", "expected"),
    [
        ('"$@" < file; true', "", True), ("sh -c '\"$@\"; true' sh \"$@\" < file", "", True),
        ('"$@" < empty; true', "", False), ('"$@" < /dev/null; true', "", False), ('"$@" <&-; true', "", False),
        ('exec "$@"', "data", True), ('"$@"; true', "data", False), ('exec "$@"', "", False),
        ("sh -c 'read line; \"$@\"; true' sh \"$@\" < file", "", False),
    ],
)  # fmt: skip
def test_stdin_has_data_if_it_is_meant_for_this_command(
    tmp_path: Path, command: str, given: str, expected: bool
) -> None:
    (tmp_path / "file").write_text("one\ntwo\n")
    (tmp_path / "empty").touch()
    program = [sys.executable, "-c", START + "print(s.stdin_has_data())"]
    reader, writer = os.pipe()  # which stays open
    os.write(writer, given.encode())
    done = subprocess.run(
        ["sh", "-c", command, "sh", *program],
        stdin=reader, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    os.close(reader)
    os.close(writer)
    assert done.stdout == f"{expected}\n", done
