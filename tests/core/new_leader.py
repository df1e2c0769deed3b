"""How do tests make a new leader, which finds a ledger and gets the nodes' states?"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster import coordinator, leader_takeover
from supervisor.core.cluster.cluster_messages import LeadershipTaken, MemberState, NodeStands, Publish, Record, Send
from supervisor.core.facts import Assignment, JobRules, NodeFacts, RestartRules
from supervisor.core.leader_ledger import Former, Ledger
from tests.core.playbook import Playbook

RULES = JobRules("job", 2, restart=RestartRules(max_restarts=3, min_nodes=2))
IN_CYCLE_4 = Ledger(cycle=4, opened=4, restarts_used=1)


def new_leader(
    ledger: Ledger = IN_CYCLE_4,
    leader: str = "a",
    former: Former | None = None,
    *,
    term: int = 7,
    others_may_train: bool = True,
    previous_term: int = 0,
) -> Playbook[coordinator.State]:
    taken = LeadershipTaken(term, ledger, former, others_may_train, previous_term)
    state = leader_takeover.initial_state("job", taken, leader=leader, now_s=0.0)
    return Playbook(coordinator.step, state, jitter=0.0)


def stands(
    node: str,
    group_rank: int | None,
    state: MemberState = MemberState.RUNNING,
    *,
    cycle: int = 4,
    process: str = "",
    **more: object,
) -> NodeStands:
    """Returns a node of the cycle; `group_rank` None: a spare or new node. `process` "": the node's first."""
    rules = msgspec.structs.replace(RULES, facts=NodeFacts(process=process or f"{node}1"))
    if group_rank is None:
        return NodeStands(node, rules, state, -1, **more)  # pyright: ignore
    part = Assignment(cycle, group_rank, 2, 4, 2 * group_rank)
    return NodeStands(node, rules, state, cycle, part, **({"restarts_used": 1, "met_term": 6} | more))  # pyright: ignore


def of_nodes(ledger: Ledger, *nodes: str) -> Ledger:
    """Returns a ledger: the newest cycle was ordered from each node's first process, and all were heard."""
    processes = tuple(f"{node}1" for node in nodes)
    return msgspec.structs.replace(ledger, parts=nodes, processes=processes, witnesses=nodes)


def orders_to(play: Playbook[coordinator.State], kind: type) -> list[str]:
    return sorted(each.node for each in play.of(Send) if isinstance(each.order, kind))


def recorded(play: Playbook[coordinator.State]) -> list[Ledger]:
    """Returns the ledgers without the names of nodes and the leader's name and term."""
    unnamed = {"parts": (), "processes": (), "witnesses": (), "term": 0, "leader": ""}
    return [msgspec.structs.replace(each.ledger, **unnamed) for each in play.of(Record)]  # pyright: ignore


def kinds(play: Playbook[coordinator.State]) -> list[str]:
    return [each.event.kind for each in play.of(Publish)]
