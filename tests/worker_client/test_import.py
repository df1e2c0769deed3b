"""What does the client load into a training process, and at what cost?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import worker_client

ROOT = Path(__file__).parents[2]
IMPORT_MAX_S = 0.04  # of CPU, on a machine without other load
TRIES = 15  # the fastest one counts

# Loaded by torch itself; the cost counts on top of it.
LOADED_BY_TORCH = "dataclasses, inspect, logging, socket, threading, typing"

SCRIPT = """
import json, sys, time, {before}
sys.path[:0] = [{checkout!r}, {proto!r}]
before = time.process_time()
{statement}
took_s = time.process_time() - before
heavy = ("torch", "numpy", "grpc", "asyncio", "anyio", "yaml", "multiprocessing", "google.protobuf")
print(json.dumps([took_s, [name for name in heavy if name in sys.modules]]))
"""


def _import(statement: str, before: str = "json") -> tuple[float, list[str]]:
    script = SCRIPT.format(checkout=str(ROOT), proto=str(ROOT / "proto"), statement=statement, before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    took_s, heavy = json.loads(done.stdout)
    return took_s, heavy


@pytest.mark.parametrize(
    ("statement", "before"),
    [
        ("import worker_client", "json"),
        ("from worker_client import RankMonitorClient; RankMonitorClient()", LOADED_BY_TORCH),
    ],
)
def test_import_is_quick_and_brings_nothing_heavy(statement: str, before: str):
    quickest_s = 1e9
    for _ in range(TRIES):
        took_s, heavy = _import(statement, before)
        assert heavy == []
        quickest_s = min(quickest_s, took_s)
        if quickest_s <= IMPORT_MAX_S:
            return
    raise AssertionError(f"{statement} took {quickest_s:.3f} s at best")


def test_the_channel_brings_protobuf_and_no_more():
    assert _import("import worker_client.channel")[1] == ["google.protobuf"]


def test_the_package_has_its_names_and_no_others():
    for name in worker_client.__all__:
        assert getattr(worker_client, name).__name__ == name
        assert name in dir(worker_client)
    with pytest.raises(AttributeError, match="no attribute 'RankMonitorServer'"):
        _ = worker_client.RankMonitorServer  # pyright: ignore[reportAttributeAccessIssue]
