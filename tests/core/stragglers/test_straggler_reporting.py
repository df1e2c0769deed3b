"""Who is named, for how long, and is a slow node told from its ranks? Nodes of a simulated job tell what they see."""

from __future__ import annotations

import random

import pytest

from supervisor.core.stragglers import straggler_reporting
from supervisor.core.stragglers.straggler_messages import RankSections, SectionsTold, Straggler, Tell
from supervisor.core.stragglers.straggler_reporting import CROWD_MIN, FOUND, GONE, NAMED_MAX

LOOK_S = 5.0
STEP_S = 0.5


class _Job:
    """Nodes of equal size whose ranks do one step after the other; each node tells every LOOK_S, none at the same time.

    A section `step` has a collective at its end, so all ranks take as long in it as the slowest.
    """

    def __init__(self, nodes: int, ranks_each: int, *, sigma: float = 0.05, seed: int = 1, loss: float = 0.0) -> None:
        self.nodes, self.ranks_each = nodes, ranks_each
        self.slow: dict[int, float] = {}
        self.cycle = 0
        self.names = ("forward", "step")
        self.state = straggler_reporting.initial_state()
        self.told: list[Tell] = []
        self._random = random.Random(seed)
        self._sigma, self._loss = sigma, loss
        self._now_s = 0.0
        self._phase = [self._random.uniform(0, LOOK_S) for _ in range(nodes)]
        self._told_at = list(self._phase)
        self.restart()

    def restart(self) -> None:
        ranks = self.nodes * self.ranks_each
        self._times = 0
        self._forward_s, self._step_s = [0.0] * ranks, 0.0

    def run(self, for_s: float) -> list[str]:
        """Returns the kinds of events."""
        before, until_s = len(self.told), self._now_s + for_s
        while self._now_s < until_s:
            took_s = [
                STEP_S * self.slow.get(rank, 1.0) * max(0.1, self._random.gauss(1, self._sigma))
                for rank in range(len(self._forward_s))
            ]
            self._now_s += max(took_s)
            self._times += 1
            self._step_s += max(took_s)
            self._forward_s = [a + b for a, b in zip(self._forward_s, took_s, strict=True)]
            for node in range(self.nodes):
                if self._now_s >= self._told_at[node]:
                    self._told_at[node] += LOOK_S
                    if self._random.random() >= self._loss:
                        self.tell(node)
        return [each.event.kind for each in self.told[before:]]

    def tell(self, node: int) -> None:
        first = node * self.ranks_each
        ranks = tuple(
            RankSections(rank, (self._times, self._times), (self._forward_s[rank], self._step_s))
            for rank in range(first, first + self.ranks_each)
        )
        told = SectionsTold(f"n{node}", self.cycle, self.names, ranks)
        self.state, actions = straggler_reporting.step(self.state, told, now_s=self._now_s, patience_s=60.0)
        self.told += actions

    @property
    def named(self) -> list[Straggler]:
        return list(straggler_reporting.named(self.state))


def test_a_slow_rank_is_named_where_it_computes_and_not_where_it_is_waited_for():
    job = _Job(2, 4)
    job.slow = {5: 1.5}
    assert job.run(60.0) == [FOUND]
    (tell,) = job.told
    assert tell.event.rank == 5
    details = dict(tell.event.details)
    assert (details["section"], details["straggler_node"], details["ranks"]) == ("forward", "n1", "5")
    assert float(details["ratio"]) == pytest.approx(1.5, rel=0.1)
    assert tell.event.reason.startswith("rank 5 on node n1 is slow in section 'forward': ")
    (named,) = job.named
    assert (named.section, named.ranks, named.is_node, named.of_ranks) == ("forward", (5,), False, 8)
    job.slow = {}
    assert job.run(60.0) == [GONE]
    assert job.named == []
    assert "no longer slow in section 'forward': " in job.told[-1].event.reason


def test_a_job_in_which_nobody_is_slow_hears_nothing():
    assert _Job(4, 8, sigma=0.2).run(600.0) == []


def test_a_slow_node_is_named_as_one():
    job = _Job(4, 4)
    job.slow = dict.fromkeys(range(8, 12), 1.5)
    job.run(90.0)
    (named,) = job.named
    assert (named.node, named.ranks, named.is_node) == ("n2", (8, 9, 10, 11), True)
    assert named.reason.startswith("node n2 (ranks 8-11) is slow")
    assert job.told[-1].event.kind == FOUND
    assert job.told[-1].event.rank is None
    assert GONE not in [each.event.kind for each in job.told], "a rank that is named with its node is not well"


def test_two_nodes_of_which_one_is_slow():
    job = _Job(2, 2)
    job.slow = {2: 1.5, 3: 1.5}
    job.run(120.0)
    assert [(each.node, each.ranks) for each in job.named] == [("n1", (2, 3))]


def test_one_of_two_ranks():
    job = _Job(1, 2)
    job.slow = {1: 1.2}
    assert job.run(200.0) == [], "a small difference between two may be that one is fast"
    job.slow = {1: 1.6}
    assert job.run(200.0) == [FOUND]
    assert "times the other rank" in job.named[0].reason


def test_words_that_are_lost_only_take_time():
    job = _Job(4, 2, loss=0.4)
    job.slow = {3: 1.5}
    assert job.run(300.0) == [FOUND]
    assert [each.ranks for each in job.named] == [(3,)]


def test_a_new_cycle_compares_again():
    job = _Job(2, 4)
    job.slow = {1: 1.5}
    job.run(60.0)
    job.cycle, job.slow = 1, {}
    job.restart()
    assert job.run(10.0) == [GONE]
    assert job.told[-1].event.reason.endswith("the ranks have been restarted, and are compared again")
    assert job.run(60.0) == []
    job.cycle = 0
    job.tell(0)
    assert job.state.cycle == 1, "a late word of the cycle before changes nothing"


def test_ranks_that_do_different_work_are_not_named():
    """Two stages of a pipeline: half of the ranks take twice as long."""
    job = _Job(4, 4)
    assert CROWD_MIN <= 4 * 4
    job.slow = {rank: 2.0 for rank in range(16) if rank % 2}
    job.run(200.0)
    assert job.named == []


def test_a_lost_node_is_let_go():
    job = _Job(2, 2)
    job.slow = {3: 1.6}
    assert job.run(100.0) == [FOUND]
    tell, job.tell = job.tell, lambda node: None if node == 1 else tell(node)  # type: ignore[method-assign]
    job.run(600.0)
    assert job.named == []
    assert job.told[-1].event.reason.endswith("it no longer runs the section")


def test_what_a_rank_says_is_bounded():
    job = _Job(1, 2)
    state = job.state
    wild = RankSections(-1, (5,), (1.0,)), RankSections(1 << 30, (5,), (1.0,)), RankSections(0, (), ())
    state, actions = straggler_reporting.step(
        state, SectionsTold("n0", 0, ("a", "b"), wild), now_s=1.0, patience_s=60.0
    )
    assert (actions, state.sections, state.node_of) == ((), {}, {0: "n0"})


def test_many_names_are_bounded():
    job = _Job(1, 200)
    job.slow = dict.fromkeys(range(50), 3.0)
    job.run(200.0)
    assert 0 < len(job.named) <= NAMED_MAX


def test_of_too_many_slow_ranks_the_same_ones_stay_named():
    job = _Job(1, 200)
    job.slow = {rank: 2.0 + rank / 100 for rank in range(45)}
    job.run(200.0)
    named = {each.ranks for each in job.named}
    assert len(named) == NAMED_MAX
    job.slow = {rank: 3.0 - rank / 100 for rank in range(45)}
    assert job.run(200.0) == []
    assert {each.ranks for each in job.named} == named


def test_nothing_has_to_be_waited_for():
    assert straggler_reporting.next_deadline_s(_Job(1, 1).state) is None


def test_sections_of_a_large_job_are_compared_one_after_the_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(straggler_reporting, "COMPARED_AT_ONCE_MAX", 3)
    job = _Job(4, 2)
    job.slow = {5: 1.5}
    assert job.run(90.0) == [FOUND]
    assert [each.ranks for each in job.named] == [(5,)]
