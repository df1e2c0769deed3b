"""What does a worker stamp while its script computes, waits or is held up?"""

from __future__ import annotations

import _thread
import json
import os
import sys
import time
from collections.abc import Generator

import pytest
from holdfast_wire import auto_heartbeat_slots, page_layout
from holdfast_wire.spawner_settings import SpawnerSettings

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, until, worker
from worker_client.spawner.auto_heartbeat import AutoHeartbeat

INTERVAL_S = 0.02  # of the ticks, for a limit of 1 s
SILENT_S = 0.5

BESIDE_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
NATIVE_THREAD = (
    "import ctypes, threading\nc = ctypes.CDLL(None)\n"
    "c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.cast(c.pause, ctypes.c_void_p), None)\n"
)
WAITS = {
    "event of a thread of C++": NATIVE_THREAD + "threading.Event().wait()",
    "event without a descriptor": BESIDE_A_THREAD + "import resource\nlimit = resource.RLIMIT_NOFILE\n"
    "resource.setrlimit(limit, (0, resource.getrlimit(limit)[1]))\nthreading.Event().wait()",
    "child": "import subprocess\nsubprocess.run(['sleep', '60'])",
    "process": "import multiprocessing, time\np = multiprocessing.get_context('fork').Process(target=time.sleep, "
    "args=(60,))\np.start()\np.join()",
    "queue": BESIDE_A_THREAD + "import queue\nqueue.Queue().get()",
    "full queue": BESIDE_A_THREAD + "import queue\nq = queue.Queue(1)\nq.put(1)\nq.put(2)",
    "event": BESIDE_A_THREAD + "import threading\nthreading.Event().wait()",
    "condition": BESIDE_A_THREAD + "import threading\nc = threading.Condition()\nwith c:\n    c.wait()",
    "semaphore": BESIDE_A_THREAD + "import threading\nthreading.Semaphore(0).acquire()",
    "future": "import concurrent.futures, time\nwith concurrent.futures.ThreadPoolExecutor() as threads:\n"
    "    threads.submit(time.sleep, 60).result()",
    "pool": "import multiprocessing.pool, time\nmultiprocessing.pool.ThreadPool(1).apply(time.sleep, (60,))",
    "thread": "import threading, time\nt = threading.Thread(target=time.sleep, args=(60,))\nt.start()\nt.join()",
}
HELD_UP = {
    "sleep": "import time\ntime.sleep(60)",
    "lock": "import threading\nlock = threading.Lock()\nlock.acquire()\nwith lock: pass",
    "call": "import ctypes\nctypes.CDLL(None).pause()",
    "gil": "import ctypes\nctypes.PyDLL(None).sleep(60)",
    "queue that nobody fills": "import queue\nqueue.Queue().get()",
    "event that nobody sets": "import threading\nthreading.Event().wait()",
    "signal handler during a wait": BESIDE_A_THREAD + "import ctypes, queue, signal\n"
    "signal.signal(signal.SIGALRM, lambda *_: ctypes.CDLL(None).pause())\nsignal.alarm(1)\nqueue.Queue().get()",
    "stop": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.fixture
def watch_fd() -> Generator[int]:
    fd = os.memfd_create("main-threads")
    os.ftruncate(fd, auto_heartbeat_slots.file_bytes(2))
    yield fd
    os.close(fd)


def words(fd: int, local_rank: int) -> list[int]:
    content = os.pread(fd, page_layout.PAGE_BYTES, auto_heartbeat_slots.page_offset(local_rank))
    return memoryview(content).cast("q").tolist()


def silent_s(fd: int, local_rank: int = 1) -> float:
    """Returns for how long the main thread of the worker has executed nothing."""
    of_rank = words(fd, local_rank)
    since_ns = of_rank[page_layout.WORD_PENDING_SINCE_NS] or of_rank[page_layout.WORD_TICK_NS]
    return (time.monotonic_ns() - since_ns) / 1e9 if since_ns else 0.0


def rig(script: str, fd: int) -> Rig:
    return Rig(script, watch_fd=fd, watch_limit_s=1.0)


@pytest.mark.parametrize("how", HELD_UP)
def test_a_main_thread_that_is_held_up_is_silent(script: Script, watch_fd: int, how: str) -> None:
    with rig(script(HELD_UP[how]), watch_fd) as held:
        held.spawn(worker(1))
        until(lambda: silent_s(watch_fd) > SILENT_S, what="the silence")
        assert auto_heartbeat_slots.is_held(watch_fd, 1)
        assert not auto_heartbeat_slots.is_held(watch_fd, 0)


@pytest.mark.parametrize("how", WAITS)
def test_who_waits_for_its_own_children_or_threads_is_not_silent(script: Script, watch_fd: int, how: str) -> None:
    with rig(script(WAITS[how]), watch_fd) as waiting:
        waiting.spawn(worker(1))
        until(lambda: words(watch_fd, 1)[page_layout.WORD_TICK_NS], what="the first tick")
        longest_s, until_s = 0.0, time.monotonic() + 2 * SILENT_S
        while time.monotonic() < until_s:
            longest_s = max(longest_s, silent_s(watch_fd))
            time.sleep(INTERVAL_S)
        assert longest_s < SILENT_S


def test_a_worker_without_a_thread_for_the_ticks_runs_and_is_not_watched(
    watch_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    settings = SpawnerSettings(job_id="j", command=("x",), python=sys.executable, watch_fd=watch_fd, watch_limit_s=1.0)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    AutoHeartbeat(settings).begin(1)
    assert words(watch_fd, 1)[page_layout.WORD_WATCH] != page_layout.WATCH_ON


def test_a_worker_whose_ticks_have_ended_is_watched_no_more(script: Script, watch_fd: int) -> None:
    breaks = "import time\ntime.sleep(0.5)\ntime.monotonic_ns = None\ntime.sleep(60)"
    with rig(script(breaks), watch_fd) as breaking:
        breaking.spawn(worker(1))
        for watch in (page_layout.WATCH_ON, page_layout.WATCH_OFF):
            until(lambda watch=watch: words(watch_fd, 1)[page_layout.WORD_WATCH] == watch, what="the watch word")


def test_the_longest_silence_that_is_over_is_reported_with_the_end(script: Script, watch_fd: int) -> None:
    pauses = "import time\nfor for_s in (0.1, 0.6, 0.2):\n    time.sleep(for_s)\n    until = time.monotonic() + 0.2\n"
    with rig(script(pauses + "    while time.monotonic() < until: pass"), watch_fd) as pausing:
        pausing.spawn(worker(1))
        exited = pausing.exited(1)
    assert exited.silence_longest_s is not None
    assert 0.6 - 2 * INTERVAL_S < exited.silence_longest_s < 0.6 + SILENT_S


def test_a_worker_that_computes_ticks_and_one_that_executes_another_program_has_no_page(
    script: Script, watch_fd: int
) -> None:
    busy = "import os, sys\nfor _ in range(10_000_000): pass\nos.execvp('sleep', ['sleep', '60'])"
    with rig(script(busy), watch_fd) as computing:
        computing.spawn(worker(1))
        until(lambda: auto_heartbeat_slots.is_held(watch_fd, 1), what="the page to be held")
        until(lambda: words(watch_fd, 1)[page_layout.WORD_WATCH] == page_layout.WATCH_ON, what="the ticks")
        assert words(watch_fd, 1)[page_layout.WORD_LAYOUT] == page_layout.LAYOUT_VERSION
        assert silent_s(watch_fd) < SILENT_S
        until(lambda: not auto_heartbeat_slots.is_held(watch_fd, 1), what="the other program")


def test_the_script_sees_no_thread_and_its_forks_hold_nothing(script: Script, watch_fd: int) -> None:
    told = script(
        "import json, os, signal, threading\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.closerange(3, 1000)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(json.dumps([threading.active_count(), len(threading.enumerate())]), flush=True)\n"
        "signal.pause()"
    )
    with rig(told, watch_fd) as forking:
        forking.spawn(worker(1))
        assert forking.process.stdout is not None
        assert json.loads(forking.process.stdout.readline()) == [1, 1]
        assert auto_heartbeat_slots.is_held(watch_fd, 1)


def test_what_an_earlier_worker_has_stamped_is_cleared(script: Script, watch_fd: int) -> None:
    offset = auto_heartbeat_slots.page_offset(1)
    os.pwrite(watch_fd, (1).to_bytes(8, "little"), offset + 8 * page_layout.WORD_PENDING_SINCE_NS)
    with rig(script("for _ in iter(int, 1): pass"), watch_fd) as second:
        second.spawn(worker(1))
        until(lambda: words(watch_fd, 1)[page_layout.WORD_WATCH], what="the first stamps")
        assert silent_s(watch_fd) < SILENT_S
