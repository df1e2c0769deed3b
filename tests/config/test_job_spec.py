"""Which jobs does a supervisor that comes back go on with?"""

from __future__ import annotations

from msgspec.structs import replace

from supervisor.config.job_spec import KEPT_NODES_MAX, JobSpec, Nodes


def test_a_job_is_taken_back_unless_its_leader_is_elected_or_its_nodes_are_too_many() -> None:
    nodes = Nodes(2, 4, "127.0.0.1", 1, "a")
    spec = JobSpec("j", ("t.py",))
    assert spec.may_come_back
    assert replace(spec, nodes=nodes).may_come_back
    assert replace(spec, nodes=replace(nodes, max_nodes=KEPT_NODES_MAX)).may_come_back
    assert not replace(spec, nodes=replace(nodes, max_nodes=KEPT_NODES_MAX + 1)).may_come_back
    assert not replace(spec, nodes=replace(nodes, backend="etcd")).may_come_back
