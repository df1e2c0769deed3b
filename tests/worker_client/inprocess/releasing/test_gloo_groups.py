"""Is a Gloo group dropped only when its threads rest?"""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from pathlib import Path

import pytest

from tests.fork_server import fork_server
from worker_client.inprocess.releasing import gloo_groups
from worker_client.inprocess.releasing.gloo_groups import KeptGroups, threads_rest


class Group:
    pass


def test_groups_are_dropped_once_the_threads_rest(monkeypatch: pytest.MonkeyPatch):
    looks = iter([False, False, True])
    monkeypatch.setattr(gloo_groups, "threads_rest", lambda: next(looks))
    kept, group = KeptGroups(), Group()
    dropped = threading.Event()
    weakref.finalize(group, dropped.set)
    kept.keep([group])
    del group
    gc.collect()
    assert not dropped.is_set()
    kept.let_go()
    assert dropped.is_set()
    assert next(looks, None) is None, "all looks were needed"


def test_groups_whose_threads_stay_busy_are_kept_for_good(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, logger="holdfast")
    monkeypatch.setattr(gloo_groups, "threads_rest", lambda: False)
    monkeypatch.setattr(gloo_groups, "IDLE_TIMEOUT_S", 0.02)
    monkeypatch.setattr(gloo_groups, "_busy", [])
    kept, group = KeptGroups(), Group()
    seen = weakref.ref(group)
    kept.keep([group])
    del group
    kept.let_go()
    gc.collect()
    assert seen() is not None
    assert "busy 0.02 s after the abort" in caplog.text


def test_nothing_is_looked_at_without_groups(monkeypatch: pytest.MonkeyPatch):
    def never() -> bool:
        raise AssertionError

    monkeypatch.setattr(gloo_groups, "threads_rest", never)
    KeptGroups().let_go()


def test_threads_of_others_do_not_count():
    assert threads_rest()


ABORTED = """
import faulthandler, os, threading, traceback
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from worker_client.inprocess.abort import AbortTorchDistributed, clear_after
from worker_client.inprocess.releasing import gloo_groups
from worker_client.inprocess.state import State

faulthandler.dump_traceback_later(60, exit=True)
torch.set_num_threads(1)

def function():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    model(torch.ones(8, 64)).sum().backward()
    for size in (1, 1 << 14):
        dist.all_reduce(torch.ones(size), async_op=True)
    raise ValueError

def until(wanted):
    for _ in range(10_000):
        if gloo_groups.threads_rest() is wanted:
            return True
        threading.Event().wait(0.001)
    return False

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
named = [t for t in os.listdir("/proc/self/task") if open(f"/proc/self/task/{t}/comm").read() == "pt_gloo_runloop\\n"]
print("named" if named else "not named", "at rest" if until(True) else "busy")
tensor, works, seen_busy = torch.ones(1 << 16), [], False
while not seen_busy and len(works) < 20_000:
    works.append(dist.all_reduce(tensor, async_op=True))
    seen_busy = not gloo_groups.threads_rest()
print("then busy" if seen_busy else "then at rest")
for work in works:
    work.wait()
until(True)
dist.destroy_process_group()

abort = AbortTorchDistributed()
for _ in range(60):
    try:
        function()
    except ValueError as error:
        found = error.__traceback__
    abort(State(0, 1).freeze())
    traceback.clear_frames(found)  # the last that holds the model, and with it the group
    clear_after(abort)
print("through")
"""


def test_a_function_that_ends_in_the_middle_of_a_collective_does_not_stop_its_process():
    """If the groups were not kept, this would hang within some dozen rounds, and only a signal would end it.

    First: threads of a real group are known by their name, and are seen to rest and to work.
    """
    torch = fork_server("torch.distributed")
    done = torch.ran(ABORTED, environment=os.environ, folder=Path.cwd(), timeout_s=110)
    assert done.stdout.splitlines() == ["named at rest", "then busy", "through"], done.stderr
