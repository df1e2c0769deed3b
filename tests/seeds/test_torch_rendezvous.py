"""torch's page about rendezvous, statement by statement: for nodes of `holdfast run`, and of torchrun with our backend.

The document is one line.
"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import tomllib

import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import NodeJoined, NodeLost
from supervisor.core.elastic.elastic_messages import (
    AgentClosed,
    AgentLost,
    BeginRound,
    DeadlineReached,
    ElasticRules,
    Refusal,
    RefuseAgent,
    Send,
    ServeRoundStore,
    TellClosed,
    TellSpares,
    TellWaiting,
)
from supervisor.core.elastic.elastic_round import next_deadline_s
from tests.core.cluster.test_rendezvous_round import come, job, ordered, pass_deadline, playing
from tests.core.elastic.test_elastic_round import FIXED, RULES, join, playbook, running, served
from tests.seeds.documents import ROOT, Document, asked

PAGE = Document("torch-elastic-rendezvous")
MEET = ("--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id", "j")


@PAGE.says(1, "block until the rendezvous is considered complete - this happens when at least ``min`` total number of")
def test_a_group_needs_the_minimum():
    assert ordered(playing(job(2, 2), "a")) == ""
    assert ordered(playing(job(2, 2), "a", "b")) == "ab"
    play = playbook()
    play >> join("a", FIXED) << ()
    play >> join("b", FIXED) << Send("a", ServeRoundStore(0))


@PAGE.says(1, "This also implies the barrier is not necessarily of fixed size")
def test_a_group_may_have_any_size_in_its_range():
    for nodes in ("ab", "abc"):
        play = running(*nodes)
        assert {each.order.world_size for each in play.of(Send) if isinstance(each.order, BeginRound)} == {len(nodes)}


@PAGE.says(1, "small waiting time after reaching ``min`` number of nodes")
def test_the_last_call():
    play = playing(job(2, 4), "c", "d")
    assert (ordered(play), coordinator.next_deadline_s(play.state)) == ("", 1.0)
    assert ordered(pass_deadline(play)) == "cd"
    agents = playbook()
    agents >> join("a") >> join("b") << ()
    assert next_deadline_s(agents.state) == RULES.last_call_timeout_s


@PAGE.says(1, "If ``max`` number of nodes is gathered at the barrier, the rendezvous is completed immediately")
def test_the_maximum_completes_it_at_once():
    play = playing(job(2, 3), "c", "b", "a")
    assert (ordered(play), play.now_s) == ("ab", 0.0)
    agents = playbook()
    agents >> join("a") >> join("b") >> join("c") << Send("a", ServeRoundStore(0))


@PAGE.says(1, "overall timeout which causes the rendezvous to fail if ``min`` number of nodes is never reached")
def test_too_few_nodes_fail_after_their_time():
    play = playbook()
    play >> join("a", ElasticRules(3, 3, 600.0, 30.0)) << ()
    play.at(600.0) >> DeadlineReached()
    (refused,) = [each.order for each in play.of(Send)]
    assert isinstance(refused, RefuseAgent)
    assert refused.refusal is Refusal.TIMEOUT


@PAGE.says(1, "only one group of nodes exists at any given time (for a given job)")
def test_a_late_node_forms_no_group_of_its_own():
    play = running("a", "b", rules=FIXED)
    play >> join("c", FIXED) << tuple(Send(node, TellSpares(exist=True)) for node in "ab")
    play >> join("d", FIXED) << ()


@PAGE.says(1, 'additional "late" nodes attempting to rendezvous will only announce themselves as waiting')
def test_a_late_node_waits():
    play = running("a", "b")
    play >> join("c") << tuple(Send(node, TellWaiting(1, "waiting to join: c")) for node in "ab")
    rules = job(2, 3)
    cluster = come(playing(rules, "a", "b", "c"), rules, "d")
    assert [each for each in cluster.last if isinstance(each, Send)] == [], "no order reaches it yet"


@PAGE.says(1, "will have to wait until the (previously completed) existing rendezvous is destroyed first")
def test_the_late_node_takes_part_in_the_next_round():
    play = running("a", "b", rules=FIXED)
    play >> join("c", FIXED) >> AgentLost("b", "gone") >> join("a", FIXED) << Send("a", ServeRoundStore(1))


@PAGE.says(1, "all its members will agree on the job membership and everyone's role in it")
def test_all_get_the_same_world():
    orders = [each.order for each in running("c", "a", "b").of(Send) if isinstance(each.order, BeginRound)]
    assert sorted((each.rank, each.world_size, each.round) for each in orders) == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]


@PAGE.says(1, "represented using an integer, called rank, that is between between 0 and world size")
def test_ranks_are_consecutive():
    orders = {each.node: each.order for each in running("c", "a", "b").of(Send)}
    assert [order.rank for _, order in sorted(orders.items()) if isinstance(order, BeginRound)] == [0, 1, 2]


@PAGE.says(1, "ranks are *not stable*, in the sense that the same node can be assigned a different rank in the next")
def test_a_rank_may_change():
    play = running("a", "b", "c")
    play >> AgentLost("a", "gone") >> join("b") >> join("c") >> served("b", 1)
    ranks = {each.node: each.order.rank for each in play.of(Send) if isinstance(each.order, BeginRound)}
    assert (ranks["b"], ranks["c"]) == (0, 1)


@PAGE.says(
    1, "between joining the rendezvous and it being completed, then a re-rendezvous with remaining healthy nodes"
)
def test_a_node_lost_before_the_round_is_complete_takes_nobody_along():
    play = playbook()
    play >> join("a", FIXED) >> AgentLost("a", "gone") >> join("b", FIXED) << ()
    play >> join("c", FIXED) << Send("b", ServeRoundStore(0))
    rules = job(2, 3)
    cluster = playing(rules, "a", "b")
    cluster >> NodeLost("a", "gone")
    assert ordered(come(cluster, rules, "c", "d")) == "bc"


@PAGE.says(1, "A node can also fail *after* it has completed")
def test_a_node_lost_later_begins_another_round():
    play = running("a", "b", "c")
    play >> AgentLost("b", "node b is lost")
    play << tuple(Send(node, TellWaiting(1, "node b is lost")) for node in "ac")
    cluster = playing(job(2, 3), "a", "b", "c")
    cluster >> NodeLost("a", "gone") >> NodeJoined("b", 0)
    assert ordered(cluster) == "bc"


@PAGE.says(1, "Querying how many workers arrived late at the barrier, who can participate in *next* rendezvous")
def test_the_number_of_late_nodes_is_told():
    play = running("a", "b")
    play >> join("c")
    assert {each.order.waiting for each in play.of(Send) if isinstance(each.order, TellWaiting)} == {1}


@PAGE.says(1, "Setting the rendezvous *closed* to signal all nodes not to participate in next rendezvous")
def test_a_closed_rendezvous_takes_nobody_in():
    play = running("a", "b", rules=FIXED)
    play >> AgentClosed("a", "its workers have ended", failed=False)
    assert {each.node for each in play.of(Send) if isinstance(each.order, TellClosed)} == {"a", "b"}
    play >> join("b", FIXED)
    (refused,) = [each.order for each in play.of(Send) if isinstance(each.order, RefuseAgent)]
    assert refused.refusal is Refusal.CLOSED


@PAGE.says(1, "Torch distributed users can either implement their own backend type")
def test_ours_is_found_by_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torchrun.handlers"] == {"holdfast": "holdfast_torchrun:handler"}


@PAGE.says(1, "requires no 3rd-party dependency (such as etcd) to establish a rendezvous")
@pytest.mark.parametrize("backend", ["c10d", "static", ""])
def test_by_default_the_nodes_need_nothing_else(backend: str):
    flags = (f"--rdzv-backend={backend}",) if backend else ()
    nodes = asked("--nnodes=2", *MEET, *flags).nodes
    assert nodes is not None
    assert nodes.backend != "etcd"


@PAGE.says(1, ".EtcdRendezvousBackend`: Supersedes the legacy :py:class:`.EtcdRendezvousHandler` class")
def test_etcd_is_a_backend():
    nodes = asked("--nnodes=2", *MEET, "--rdzv-backend=etcd").nodes
    assert nodes is not None
    assert nodes.backend == "etcd"


@PAGE.says(1, 'run_id="my_run_id", store=store, backend=backend, min_nodes=2, max_nodes=4')
def test_the_examples_range_of_nodes():
    nodes = asked("--nnodes=2:4", "--rdzv-endpoint=localhost:29400", "--rdzv-id=my_run_id").nodes
    assert nodes is not None
    assert (nodes.min_nodes, nodes.max_nodes) == (2, 4)


def test_the_statements_stand_at_their_lines():
    PAGE.compare()
