"""Is a Gloo group dropped only when its threads rest?"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref

import pytest

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


REAL = """
import ctypes, os, threading
import torch, torch.distributed as dist
from worker_client.inprocess.releasing import gloo_groups
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
def until(wanted):
    for _ in range(10_000):
        if gloo_groups.threads_rest() is wanted:
            return True
        threading.Event().wait(0.001)
    return False
named = [t for t in os.listdir("/proc/self/task") if open(f"/proc/self/task/{t}/comm").read() == "pt_gloo_runloop\\n"]
print(len(named) > 0, until(True))
big = torch.ones(1 << 22)
works = [dist.all_reduce(big, async_op=True) for _ in range(64)]
print(gloo_groups.threads_rest())
[work.wait() for work in works]
print(until(True))
"""


def test_threads_of_a_real_group_rest_and_work():
    done = subprocess.run(
        [sys.executable, "-c", REAL], check=True, capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert done.stdout.split() == ["True", "True", "False", "True"]
