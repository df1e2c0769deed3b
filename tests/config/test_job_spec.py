"""Which jobs does a returning supervisor continue?"""

from __future__ import annotations

from msgspec.structs import replace

from supervisor.config.job_spec import KEPT_NODES_MAX, JobSpec, Nodes


def test_a_job_is_taken_back_unless_this_node_leads_too_many_nodes() -> None:
    nodes = Nodes(2, 4, "127.0.0.1", 1, "a")
    spec = JobSpec("j", ("t.py",))
    assert spec.may_come_back
    assert replace(spec, nodes=nodes).may_come_back
    assert replace(spec, nodes=replace(nodes, max_nodes=KEPT_NODES_MAX, leads=True)).may_come_back
    many = replace(nodes, max_nodes=KEPT_NODES_MAX + 1)
    assert replace(spec, nodes=many).may_come_back
    assert not replace(spec, nodes=replace(many, leads=True)).may_come_back
