"""Which stamps of a main thread are believed, and whose?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from holdfast_wire import auto_heartbeat_slots as layout
from holdfast_wire import page_layout

from supervisor.edges.workers.auto_heartbeat_pages import AutoHeartbeatPages, MainThreads

NOW_S = 100.0
# Holds the page of local rank 1 as a worker does, says so, and waits for its stdin to end. "exec": as another program.
HOLDER = """
import os, sys
from holdfast_wire import auto_heartbeat_slots
descriptor = int(sys.argv[1])
os.set_inheritable(descriptor, False)
auto_heartbeat_slots.hold(descriptor, 1)
if sys.argv[2] == "exec":
    os.execv(sys.executable, [sys.executable, "-c", "print('held', flush=True); input()"])
if sys.argv[2] == "fork" and os.fork() == 0:
    os.close(descriptor)
    os._exit(0)
print("held", flush=True)
input()
"""


@pytest.fixture
def pages() -> Generator[AutoHeartbeatPages]:
    made = AutoHeartbeatPages(3)
    yield made
    made.close()


def stamp(pages: AutoHeartbeatPages, local_rank: int, **words: float) -> None:
    for name, value in words.items():
        number = getattr(page_layout, f"WORD_{name.upper()}")
        at = layout.page_offset(local_rank) + 8 * number
        os.pwrite(pages.fd, int(value).to_bytes(8, sys.byteorder, signed=True), at)


def executed_at_s(pages: AutoHeartbeatPages, how: str = "hold") -> float | None:
    """Returns what is read of local rank 1 while a process holds its page."""
    command = [sys.executable, "-c", HOLDER, str(pages.fd), how]
    with subprocess.Popen(command, pass_fds=(pages.fd,), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        found = pages.executed_at_s(1, NOW_S)
        holder.communicate(b"\n", timeout=20)
    return found


def test_a_main_thread_was_active_until_its_next_tick_is_due_or_since_when_it_is_silent(pages: AutoHeartbeatPages):
    stamp(pages, 1, watch=page_layout.WATCH_ON, tick_ns=98e9, tick_interval_ns=1e9)
    assert executed_at_s(pages) == pytest.approx(99.0, abs=0.1)
    stamp(pages, 1, pending_since_ns=90e9)
    assert executed_at_s(pages) == 90.0
    assert executed_at_s(pages, "fork") == 90.0


@pytest.mark.parametrize(("layout_version", "is_known"), [(0, True), (page_layout.LAYOUT_VERSION, True), (2, False)])
def test_a_page_of_another_layout_judges_nobody(pages: AutoHeartbeatPages, layout_version: int, is_known: bool):
    """0: of a worker from before there was a version."""
    stamp(pages, 1, watch=page_layout.WATCH_ON, tick_ns=98e9, tick_interval_ns=1e9, layout=layout_version)
    assert (executed_at_s(pages) is not None) == is_known


def test_nobody_is_judged_by_a_page_to_which_nobody_writes(pages: AutoHeartbeatPages):
    assert executed_at_s(pages) is None
    stamp(pages, 1, watch=page_layout.WATCH_ON, tick_ns=98e9, tick_interval_ns=1e9)
    assert pages.executed_at_s(1, NOW_S) is None
    assert executed_at_s(pages, "exec") is None


@pytest.mark.parametrize(
    "words",
    [{"tick_ns": 102e9}, {"tick_ns": -1}, {"pending_since_ns": 102e9}, {"pending_since_ns": -5},
     {"tick_interval_ns": 61e9}, {"tick_interval_ns": -1}, {"watch": 7}],
    ids=str,
)  # fmt: skip
def test_a_stamp_that_cannot_be_true_is_no_reason(pages: AutoHeartbeatPages, words: dict[str, float]):
    stamp(pages, 1, **{"watch": page_layout.WATCH_ON, "tick_ns": 98e9, "tick_interval_ns": 1e9} | words)
    assert executed_at_s(pages) is None


def test_another_supervisor_takes_the_file_over_and_nothing_else(pages: AutoHeartbeatPages, tmp_path: Path):
    stamp(pages, 1, watch=page_layout.WATCH_ON, tick_ns=98e9, tick_interval_ns=1e9)
    later = AutoHeartbeatPages(descriptor=os.dup(pages.fd))
    assert executed_at_s(later) == pytest.approx(99.0, abs=0.1)
    assert later.executed_at_s(3, NOW_S) is None
    later.close()
    later.close()
    assert later.executed_at_s(1, NOW_S) is None
    unsealed = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    with pytest.raises(ValueError, match="not sealed"):
        AutoHeartbeatPages(descriptor=unsealed)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Invalid argument"):
        AutoHeartbeatPages(descriptor=os.open(tmp_path / "file", os.O_RDWR))


def test_a_rank_is_judged_by_the_spawner_that_has_started_it(pages: AutoHeartbeatPages):
    threads, other = MainThreads(), AutoHeartbeatPages(3)
    assert threads.executed_at_s("job", 0, 1, NOW_S) is None
    threads.note("job", 0, 1, pages)
    threads.note("job", 1, 1, other)
    threads.forget_all(pages)
    threads.forget("job", 1, 1)
    assert threads.executed_at_s("job", 1, 1, NOW_S) is None
    other.close()
