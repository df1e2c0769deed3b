"""Which ranks share a branch? Compared with a slow definition."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from worker_client.inprocess.rank_assignment.tree_topology import Topology

KEYS = st.integers(1, 4).flatmap(
    lambda layers: st.lists(
        st.tuples(*[st.just("root"), *[st.sampled_from("abc")] * (layers - 1)]), min_size=1, max_size=20
    ).map(lambda keys: (keys, layers))
)


def test_leaves_stand_in_the_order_of_the_tree():
    hosts = [("root", host) for host in ("a", "b", "a", "c", "b")]
    tree = Topology(hosts, 2)
    assert tree.leaf_of == [0, 2, 1, 4, 3]
    assert tree.branch_of == [[0] * 5, [0, 0, 1, 1, 2]]
    assert tree.counts(1, [0, 1, 4]) == Counter({0: 2, 2: 1})


@given(KEYS)
def test_ranks_share_a_branch_if_their_keys_agree_down_to_it(drawn: tuple[list[tuple[str, ...]], int]):
    keys, layers = drawn
    tree = Topology(keys, layers)
    assert tree.size == len(keys)
    assert sorted(tree.leaf_of) == list(range(len(keys)))
    for layer in range(layers):
        branches = [tree.branch_of[layer][leaf] for leaf in tree.leaf_of]
        for mine, key in zip(branches, keys, strict=True):
            shared = [other == mine for other in branches]
            assert shared == [other[: layer + 1] == key[: layer + 1] for other in keys]
        assert list(dict.fromkeys(branches)) == list(range(len(set(branches)))), "in the order of first appearance"
        runs = [branch for branch, _ in groupby(tree.branch_of[layer])]
        assert len(runs) == len(set(runs)), "each branch is a range of leaves"
