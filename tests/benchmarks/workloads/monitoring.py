"""How does a rank tell each launcher "I am alive" and "this part has begun, and ended"? By one interface."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any, Protocol


class Monitoring(Protocol):
    def send_heartbeat(self) -> None: ...
    def start_section(self, section: str) -> None: ...
    def end_section(self, section: str) -> None: ...


class FileTimers:
    """A countdown that the rank renews; torchrun has no heartbeats, and nothing nearer to them."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        timers = importlib.import_module("torch.distributed.elastic.timer")
        self._client: Any = timers.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])

    def send_heartbeat(self) -> None:
        self._client.acquire("heartbeat", time.time() + self._limit_s)

    def start_section(self, section: str) -> None:
        self._client.acquire(section, time.time() + self._limit_s)

    def end_section(self, section: str) -> None:
        self._client.release(section)


def connect(*, limit_s: float = 3600) -> Monitoring:
    """Returns the client that BENCH_CLIENT names, connected. `limit_s` is for timers: their ranks set it."""
    name = os.environ["BENCH_CLIENT"]
    if name == "file timers":
        return FileTimers(limit_s)
    client: Any = importlib.import_module(name).RankMonitorClient()
    client.init_workload_monitoring()
    return client
