"""How often does the leader of many nodes collect garbage?"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from supervisor.edges.peers.transport import gc_tuning


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_a_leader_of_many_nodes_seldom_looks_at_all_of_them() -> None:
    gc.set_threshold(700, 10, 10)
    gc_tuning.collect_seldom(10_240)
    assert gc.get_threshold() == (gc_tuning.YOUNG_OBJECTS, 10, gc_tuning.FULL_COLLECTIONS_EACH)


def test_few_nodes_change_nothing() -> None:
    gc.set_threshold(700, 10, 10)
    gc_tuning.collect_seldom(gc_tuning.NODES_MIN - 1)
    assert gc.get_threshold() == (700, 10, 10)


def test_who_looks_more_seldom_still_keeps_their_pace() -> None:
    gc.set_threshold(100_000, 10, 1000)
    gc_tuning.collect_seldom(10_240)
    assert gc.get_threshold() == (100_000, 10, 1000)
    gc.set_threshold(0, 10, 10)
    gc_tuning.collect_seldom(10_240)
    assert gc.get_threshold() == (0, 10, 10)
