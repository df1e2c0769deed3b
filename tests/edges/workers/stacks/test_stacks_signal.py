"""A worker that holds the GIL shows its stacks by signal; nothing but its own memfd is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from supervisor.edges.workers.stacks import stacks_signal
from supervisor.edges.workers.stacks.stack_text import from_faulthandler, main_thread_first
from supervisor.edges.workers.stacks.stacks_signal import ask_by_signal

# Prints where its memfd is, then holds the GIL in C with a thread beside it.
HOLDER = """
import faulthandler, os, signal, sys, threading, time
fd = os.memfd_create("holdfast-stacks")
os.set_blocking(fd, True)
import fcntl; fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
faulthandler.register(signal.SIGURG, file=fd, all_threads=True, chain=False)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
plain = open(sys.argv[1], "r+")
def hold():
    print(fd, plain.fileno(), flush=True)
    sum(range(10**12))
hold()
"""


@pytest.fixture
def holder(tmp_path: Path):
    (tmp_path / "plain").write_text("precious")
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "plain")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    memfd, plain = map(int, process.stdout.readline().split())
    yield process.pid, memfd, plain
    process.kill()
    process.communicate()


async def test_a_gil_holder_shows_where_it_stands_again_and_again(holder: tuple[int, int, int]):
    pid, memfd, _ = holder
    for _ in range(3):
        with anyio.fail_after(20):
            text = await ask_by_signal(pid, signal.SIGURG, memfd)
        assert text is not None
        assert text.count("most recent call first") == 2  # the previous dump is gone
        stack = from_faulthandler(main_thread_first(text))
        assert stack is not None
        assert [frame.name for frame in stack] == ["<module>", "hold"]


# 120 threads, then holds the GIL; faulthandler prints 100 of them.
CROWDED = """
import faulthandler, fcntl, os, signal, threading
fd = os.memfd_create("holdfast-stacks")
fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
faulthandler.register(signal.SIGURG, file=fd, all_threads=True, chain=False)
for _ in range(120):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(fd, flush=True)
sum(range(10**12))
"""


async def test_a_dump_that_is_cut_says_nothing_of_the_main_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacks_signal, "QUIET_LOOKS_CUT", 10**9)  # nothing more is awaited
    with subprocess.Popen([sys.executable, "-c", CROWDED], stdout=subprocess.PIPE) as process:  # noqa: ASYNC220  # waits for nothing
        try:
            assert process.stdout is not None
            with anyio.fail_after(20):
                text = await ask_by_signal(process.pid, signal.SIGURG, int(process.stdout.readline()))
        finally:
            process.kill()
    assert text is not None
    assert text.count("most recent call first") == 100
    assert from_faulthandler(main_thread_first(text)) is None


@pytest.mark.parametrize("what", ["signal", "descriptor", "file", "pid", "gone"])
async def test_what_a_worker_told_is_not_trusted(holder: tuple[int, int, int], tmp_path: Path, what: str):
    pid, memfd, plain = holder
    asks: dict[str, Callable[[], tuple[int, int, int]]] = {
        "signal": lambda: (pid, signal.SIGKILL, memfd),
        "descriptor": lambda: (pid, signal.SIGURG, 9999),
        "file": lambda: (pid, signal.SIGURG, plain),
        "pid": lambda: (0, signal.SIGURG, memfd),
        "gone": lambda: (2**22 - 3, signal.SIGURG, memfd),
    }
    with anyio.fail_after(20):
        assert await ask_by_signal(*asks[what]()) is None
    assert (tmp_path / "plain").read_text() == "precious"
    os.kill(pid, 0)


# As faulthandler on a busy machine: it writes in pieces, with a pause in the middle of a frame.
SLOW_WRITER = """
import os, signal, time
fd = os.memfd_create("holdfast-stacks")
def write(number, frame):
    os.write(fd, b"Thread 0x1 (most recent call first):\\n  File ")
    time.sleep(0.05)
    os.write(fd, b'"late.py", line 1 in waits\\n')
signal.signal(signal.SIGURG, write)
print(fd, flush=True)
while True:
    signal.pause()
"""


async def test_a_dump_that_pauses_within_a_frame_is_awaited():
    with subprocess.Popen([sys.executable, "-c", SLOW_WRITER], stdout=subprocess.PIPE) as process:  # noqa: ASYNC220  # waits for nothing
        try:
            assert process.stdout is not None
            with anyio.fail_after(20):
                text = await ask_by_signal(process.pid, signal.SIGURG, int(process.stdout.readline()))
        finally:
            process.kill()
    assert text == 'Thread 0x1 (most recent call first):\n  File "late.py", line 1 in waits\n'
