"""Agents must agree on everything but how long each of them waits."""

from __future__ import annotations

import msgspec

from supervisor.core.elastic.elastic_agreement import disagreement
from supervisor.core.elastic.elastic_messages import ElasticRules

RULES = ElasticRules(2, 3, 10.0, 5.0)


def test_how_long_an_agent_waits_is_its_own_affair() -> None:
    assert disagreement(RULES, RULES) == ""
    assert disagreement(msgspec.structs.replace(RULES, join_timeout_s=99.0), RULES) == ""


def test_all_that_differs_is_named_with_the_remedy() -> None:
    text = disagreement(msgspec.structs.replace(RULES, max_nodes=4, min_nodes=1), RULES)
    assert text == (
        "min_nodes is 1 here and 2 on the other nodes; max_nodes is 4 here and 3 on the other nodes; "
        "start all nodes with the same --nnodes and --rdzv-conf"
    )
