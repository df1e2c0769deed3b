"""Which flags of a Tree's layers does no search reach?"""

from __future__ import annotations

import pytest

from worker_client.inprocess.rank_assignment import Layer, LayerFlag, Tree
from worker_client.inprocess.rank_assignment.tree_layers import idle_flags

R = LayerFlag.RESERVE


B = LayerFlag.BACKFILL


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((R, None), ["LayerFlag.RESERVE of layer 0 has no effect: layer 1 below has none"]),
        ((R, R | B, B), ["LayerFlag.RESERVE of layer 0, 1 has no effect: layer 2 below has none"]),
        ((B, None, R | B), ["LayerFlag.BACKFILL of layer 0 has no effect: layer 1 below has none"]),
        ((None, R), []),
        ((R | B, R | B), []),
        ((R,), []),
    ],
)
def test_a_flag_that_no_search_reaches_is_told(flags: tuple[LayerFlag | None, ...], told: list[str]):
    sentences = idle_flags([Layer(flag=flag) for flag in flags])
    assert [sentence.partition(", and the search")[0] for sentence in sentences] == told


def test_a_tree_warns_of_it():
    with pytest.warns(UserWarning, match=r"LayerFlag\.RESERVE of layer 0 has no effect.*give layers 0 to 1 the flag"):
        Tree([Layer(flag=R), Layer()])


def test_a_layer_has_the_flags_that_it_was_given():
    both = Layer(flag=R | B)
    assert both.has(R)
    assert both.has(B)
    assert not Layer(flag=R).has(B)
    assert not Layer().has(R)


def test_rules_differ_where_ranks_would_build_different_trees():
    layers = [Layer(), Layer(2), Layer(max_ranks=3), Layer(flag=R), Layer(flag=R | B)]
    assert len({layer.rules() for layer in layers}) == len(layers)
    assert Layer(key_or_fn="a").rules() == Layer(key_or_fn="b").rules(), "each rank has its own key"
    assert Layer(2).rules() == "2 to any ranks, None"
