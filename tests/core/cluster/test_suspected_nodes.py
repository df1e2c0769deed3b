"""Which nodes are suspected, by examples and by a slow twin; and what is remembered of thousands of faults."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.cluster.suspected_nodes import (
    SUSPECT_FAULTS,
    SUSPECT_NODES_MAX,
    SUSPECT_WINDOW_S,
    NodeFaults,
    note_fault,
)
from tests.core import dumb


def warnings_of(*happened: tuple[str, float]) -> list[str | None]:
    faults: NodeFaults = {}
    before_s = 0.0
    told: list[str | None] = []
    for node, at_s in happened:
        told.append(note_fault(faults, node, before_s=before_s, now_s=at_s))
        before_s = at_s
    return told


def test_a_node_that_fails_again_and_again_is_named_once() -> None:
    told = warnings_of(("a", 0), ("b", 10), ("a", 20), ("a", 30), ("a", 40), ("b", 50))
    (named,) = [each for each in told if each is not None]
    assert named.startswith("node a failed 3 times within 10 min")


def test_suspicion_is_forgotten_after_a_quiet_time() -> None:
    told = warnings_of(("a", 0), ("a", 300), ("a", 599.9), ("a", 10_000), ("a", 10_100), ("a", 10_200))
    assert [each is not None for each in told] == [False, False, True, False, False, True]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1, 150, 299.5, 300, 599, 600])), max_size=30))
def test_suspicion_against_its_slow_twin(gaps: list[tuple[str, float]]) -> None:
    happened: list[tuple[str, float]] = []
    for node, gap_s in gaps:
        happened.append((node, (happened[-1][1] if happened else 0.0) + gap_s))
    before: list[str] = []
    wanted = dumb.nodes_suspected(happened, often=SUSPECT_FAULTS, window_s=SUSPECT_WINDOW_S)
    for (node, _), told, suspects in zip(happened, warnings_of(*happened), wanted, strict=True):
        assert (told is not None) == (node in suspects and node not in before)
        before = suspects


def test_what_is_remembered_does_not_grow_with_the_faults() -> None:
    faults: NodeFaults = {}
    sizes: list[int] = []
    for number in range(5_000):
        note_fault(faults, f"n{number % 4}", before_s=number * 0.01, now_s=number * 0.01)
        sizes.append(sum(len(times) for times in faults.values()))
    assert max(sizes) == 4 * SUSPECT_FAULTS
    for number in range(3 * SUSPECT_NODES_MAX):
        note_fault(faults, f"m{number}", before_s=60.0, now_s=60.0)
    assert len(faults) == SUSPECT_NODES_MAX
    note_fault(faults, "last", before_s=60.0, now_s=1_000.0)
    assert faults == {"last": (1_000.0,)}
