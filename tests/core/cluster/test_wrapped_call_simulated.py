"""Do calls survive all faults, in any order? Many seeds of simulated calls each have their own mix of faults."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.simulated_call import SimulatedCall
from tests.core.simulated_rank import Odds

ODDS = {
    "usual": Odds(),
    "healthy but for connections": Odds(fails=0.1, dies=0.02, leaves=0.02, hangs=0.02, disconnects=0.4),
    "deadly": Odds(fails=0.1, dies=0.3, leaves=0.1, disconnects=0.2, late=0.4),
    "late": Odds(fails=0.4, dies=0.15, leaves=0.02, disconnects=0.1, late=0.8),
    "leaving": Odds(fails=0.1, leaves=0.3, discarded=0.1, disconnects=0.2),
    "unfit": Odds(fails=0.1, dies=0.02, leaves=0.3, unfit=0.8, ends_well=0.1, disconnects=0.1, late=0.4),
    "unfit, and nodes are lost": Odds(dies=0.02, leaves=0.3, unfit=0.8, nodes_lost=0.7, disconnects=0.05),
    "unfit, and supervisors start again": Odds(leaves=0.3, unfit=0.8, forgets=1.0, disconnects=0.0),
    "nodes are lost": Odds(nodes_lost=0.7, disconnects=0.05),
    "nodes are lost, and little else happens": Odds(0.05, 0.02, 0.0, 0.0, 0.0, nodes_lost=1.0, spawn_fails=0.0),
    "supervisors start again": Odds(forgets=1.0, disconnects=0.0),
    "nodes are lost, and supervisors start again": Odds(0.05, 0.02, 0.0, nodes_lost=0.7, forgets=1.0, disconnects=0.0),
    "supervisors start again, and not all come back": Odds(forgets=1.0, disconnects=0.0, silent=0.3),
    "supervisors end with a decision": Odds(forgets_decision=True, disconnects=0.0),
    "supervisors end with a decision, and not all come back": Odds(forgets_decision=True, disconnects=0.0, silent=0.3),
}


@pytest.mark.parametrize("name", ODDS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), nodes=st.sampled_from([1, 2, 3]), per_node=st.sampled_from([1, 2, 4]))
@example(seed=303547, nodes=3, per_node=2)  # a new process was ordered from a lost node that was not given up yet
@example(seed=166959, nodes=3, per_node=4)
@example(seed=308173, nodes=3, per_node=4)
@example(seed=484367, nodes=3, per_node=4)  # a new process was lost with its node, offered elsewhere, and started twice
@example(seed=681, nodes=3, per_node=2)  # a new process came to a call that was over, and was told that it was late
@example(seed=1104925521, nodes=1, per_node=2)  # a new process waited for values of an iteration that was over
@example(seed=5370, nodes=3, per_node=1)  # the end of a call was taken for that of the next one, in which a rank was
def test_whatever_happens(name: str, seed: int, nodes: int, per_node: int) -> None:
    """There are never two world sizes; each iteration has one decision and one interruption; no wait is endless."""
    world = SimulatedCall(seed, nodes=nodes, per_node=per_node, odds=ODDS[name], units=seed % 4).run()
    assert world.complaints == []
