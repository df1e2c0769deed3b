"""How do ranks wait for each other through a store, and what ends the wait?"""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from tests.worker_client.inprocess.store_process import ran
from worker_client.inprocess.torch_stores import store_barriers
from worker_client.inprocess.torch_stores.store_barriers import BarrierOverflow, BarrierTimeout, StoreMixin


def test_each_rank_of_a_barrier_waits_for_the_others(tmp_path: Path):
    script = """
base = FileStore("shared")
def both(barrier):
    thread = threading.Thread(target=lambda: barrier([1], "both", 2, 60 * SECOND))
    thread.start()
    barrier([0], "both", 2, timedelta.max)
    thread.join()
store_a, store_b = PrefixStore("a", base), PrefixStore("b", base)
both(store_a.barrier)
both(store_b.reentrant_barrier)
assert "3 ranks came, but it is for 2" in raised(BarrierOverflow, lambda: store_a.barrier([0], "both", 2, SECOND))
store_b.reentrant_barrier([0], "both", 2, SECOND)  # once more
assert "3 ranks" in raised(BarrierOverflow, lambda: store_b.reentrant_barrier([2], "both", 2, SECOND))
base.barrier([0, 1], "for others", 2, SECOND)
base.barrier([0], "only arrives", 2, 0 * SECOND)
base.barrier([1], "only arrives", 2, 0 * SECOND)
base.barrier([], "only arrives", 2, SECOND)
print(raised(BarrierTimeout, lambda: base.barrier([0], "late", 2, 0.3 * SECOND, timeout_chunk=0.1 * SECOND)))
"""
    told = (
        "cannot pass barrier 'late': 1 of 2 ranks did not come within 0:00:00.300000; find them with holdfast stacks\n"
    )
    assert ran(script, tmp_path) == told


class Memory(StoreMixin):
    """A store of torch's kind in this process."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.changed = threading.Condition()
        self.waited_s: list[float] = []

    def set(self, key: str, value: str) -> None:
        self.add(key, int(value))

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            self.numbers[key] = self.numbers.get(key, 0) + amount
            self.changed.notify_all()
            return self.numbers[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.numbers for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.waited_s.append(timeout.total_seconds())
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("as torch says that it took too long")


LONG = timedelta(seconds=30)


def test_a_rank_that_waits_goes_on_as_soon_as_the_last_one_comes():
    store = Memory()
    thread = threading.Thread(target=store.barrier, args=([0], "both", 2, LONG))
    thread.start()
    store.barrier([1], "both", 2, LONG)
    thread.join(LONG.total_seconds())
    assert not thread.is_alive()


def test_a_rank_that_comes_twice_counts_twice_unless_the_barrier_is_reentrant():
    store = Memory()
    nothing = timedelta(0)
    for name, barrier in (("plain", store.barrier), ("again", store.reentrant_barrier)):
        for _ in range(2):
            barrier([0], name, 3, nothing)
    store.barrier([1], "plain", 3, LONG)  # the third
    with pytest.raises(BarrierTimeout, match="cannot pass barrier 'again': 1 of 3 ranks did not come"):
        store.reentrant_barrier([1], "again", 3, timedelta(milliseconds=10))
    with pytest.raises(BarrierOverflow, match="cannot pass barrier 'plain': 4 ranks came, but it is for 3"):
        store.barrier([2], "plain", 3, LONG)


@pytest.mark.parametrize(("timeout_s", "chunk_s"), [(0.1, 0.03), (0.05, 10.0)])
def test_no_wait_is_longer_than_its_chunk_or_than_the_time_left(timeout_s: float, chunk_s: float):
    store = Memory()
    with pytest.raises(BarrierTimeout):
        store.barrier([0], "late", 2, timedelta(seconds=timeout_s), timeout_chunk=timedelta(seconds=chunk_s))
    assert 0 < max(store.waited_s) <= min(timeout_s, chunk_s)


class Suspended(Memory):
    """Suspends the process for an hour in the first wait; the last rank comes in the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        del timeout
        self.waited_s.append(3600.0 if not self.waited_s else 0.1)
        self.now_s += self.waited_s[-1]
        if len(self.waited_s) == 1:
            raise RuntimeError("as torch says that it took too long")
        self.set(keys[0], "1")


def test_of_a_time_in_which_all_ranks_are_suspended_little_counts(monkeypatch: pytest.MonkeyPatch):
    store = Suspended()
    monkeypatch.setattr(store_barriers, "monotonic", lambda: store.now_s)
    store.barrier([0], "both", 2, LONG)
    assert store.waited_s == [3600.0, 0.1]
