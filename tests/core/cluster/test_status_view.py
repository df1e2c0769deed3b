"""What do people read of a job on several nodes while its coordinator goes through its states?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec

from supervisor.core import fence_times
from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    Event,
    JobOpened,
    MemberState,
    NodeCordoned,
    NodeFailed,
    NodeJoined,
    NodeLost,
    StopAsked,
    VerdictTaken,
)
from supervisor.core.cluster.status_view import Roster, roster
from supervisor.core.facts import JobRules, JobState, RendezvousRules, RestartPolicyName, RestartRules
from supervisor.core.leader_ledger import Ledger
from tests.core.new_leader import new_leader, stands

RULES = JobRules("j", 2, restart=RestartRules(min_nodes=2, max_restarts=3))


class Job:
    def __init__(self) -> None:
        self.state = coordinator.initial_state("j")
        self.said: list[str] = []
        self.now_s = 0.0

    def take(self, *events: Event) -> Roster:
        for event in events:
            self.now_s += 1.0
            self.state, actions = coordinator.step(self.state, event, now_s=self.now_s, jitter=0.0)
            self.said += [each.event.reason for each in actions if hasattr(each, "event")]  # pyright: ignore
        return roster(self.state)


def opened(*nodes: str) -> list[Event]:
    return [JobOpened(node, RULES) for node in nodes]


def joined(*nodes: str, cycle: int = -1) -> list[Event]:
    return [NodeJoined(node, cycle) for node in nodes]


def states(shown: Roster) -> dict[str, str]:
    return {each.name: each.state for each in shown.nodes}


def test_from_nothing_to_a_running_cycle_with_a_spare():
    job = Job()
    assert job.take().state is JobState.PENDING
    shown = job.take(*opened("a", "b"), *joined("a"))
    assert (shown.state, shown.reason) == (
        JobState.RENDEZVOUS, "first start; 1 of 2 nodes have joined for cycle 0",
    )  # fmt: skip
    assert states(shown) == {"a": "ready", "b": "starting"}
    shown = job.take(*joined("b"), *opened("c"), *joined("c"))
    assert (shown.state, shown.cycle) == (JobState.RUNNING, 0)
    assert states(shown) == {"a": "active", "b": "active", "c": "spare"}
    assert [each.group_rank for each in shown.nodes] == [0, 1, None]


def test_a_lost_node_stays_in_the_list_and_the_rest_restarts():
    job = Job()
    job.take(*opened("a", "b"), *joined("a", "b"))
    shown = job.take(NodeLost("b", "node b is lost: silence"))
    assert shown.state is JobState.RESTARTING
    assert "node b is lost: silence" in shown.reason
    assert states(shown) == {"a": "stopping", "b": "lost"}


def test_a_node_that_the_cycle_goes_on_without_has_no_part_in_it():
    job = Job()
    restart = RestartRules(max_restarts=3, policy=RestartPolicyName.MIN_HEALTHY)
    rules = JobRules("j", 2, restart=restart, rendezvous=RendezvousRules(max_nodes=2, elastic=True))
    job.take(*(JobOpened(node, rules) for node in "ab"), *joined("a", "b"))
    for event, shown in (
        (NodeFailed("b", 0, "its store failed"), "stopping"),
        (NodeJoined("b", 0), "spare"),
        (VerdictTaken("b"), "refused"),
    ):
        a, b = job.take(event).nodes
        assert (a.state, a.group_rank) == ("active", 0)
        assert (b.state, b.group_rank) == (shown, None)


def test_a_cordoned_node_finishes_its_cycle_and_takes_part_in_no_later_one():
    job = Job()
    job.take(*opened("a", "b", "c"), *joined("a", "b", "c"))
    shown = job.take(NodeCordoned("b", "bad memory"))
    assert states(shown) == {"a": "active", "b": "active", "c": "spare"}
    assert [each.reason for each in shown.nodes] == ["", "takes part in no later cycle: bad memory", ""]
    shown = job.take(NodeLost("a", "node a is lost: silence"), *joined("b", cycle=0), *opened("d"), *joined("d"))
    assert shown.cycle == 1
    assert states(shown) == {"c": "active", "d": "active", "a": "lost", "b": "cordoned"}
    shown = job.take(NodeLost("d", "node d is lost: silence"), *joined("c", cycle=1))
    assert shown.state is JobState.RESTARTING
    shown = job.take(NodeCordoned("b", ""))
    assert (shown.cycle, states(shown)["b"]) == (2, "active")
    assert "node b takes part in later cycles again" in job.said


def test_a_node_without_a_part_says_why_it_has_none():
    """One ended by itself, after a defect; one has other settings."""
    job = Job()
    shown = job.take(*opened("a", "b", "d"), *joined("a", "b", "d"), VerdictTaken("d"))
    assert [(each.state, each.reason) for each in shown.nodes][2:] == [("refused", "it has ended its part by itself")]
    shown = job.take(JobOpened("e", msgspec.structs.replace(RULES, local_world_size=3)))
    assert [each.reason for each in shown.nodes][3:] == [
        "node e has --nproc-per-node 3, and the other nodes of the job have 2; start it with the same"
    ]


def test_a_first_start_that_waits_for_nodes_unknown_to_etcd_says_so():
    """After a restart of etcd, new jobs began five seconds later, and nothing said why."""
    play = new_leader(Ledger())
    play >> stands("b", None, MemberState.JOINED) >> stands("a", None, MemberState.JOINED)
    shown = roster(play.state)
    assert shown.state is JobState.RENDEZVOUS
    assert "; a first start waits a few seconds for nodes that may train unknown to etcd, because " in shown.reason
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert roster(play.state).reason == ""


def test_a_stop_and_its_end():
    job = Job()
    job.take(*opened("a", "b"), *joined("a", "b"))
    shown = job.take(StopAsked("enough", 0))
    assert (shown.state, shown.reason) == (JobState.STOPPING, "enough")


def test_a_cordoned_node_does_not_count_as_one_that_has_joined():
    job = Job()
    shown = job.take(*opened("a", "b"), *joined("a"), NodeCordoned("b", "disk"), *joined("b"))
    assert shown.reason == "first start; 1 of 2 nodes have joined for cycle 0, and cordoned: b"


def test_a_new_leader_that_waits_for_the_nodes_of_the_job_says_for_which():
    play = new_leader(Ledger(4, 4, 1, parts=("a", "b"), witnesses=("a", "b")))
    play >> stands("c", None, MemberState.JOINED)
    shown = roster(play.state)
    assert (shown.state, shown.reason) == (
        JobState.RUNNING, "another node leads the job now, and asks all others for their state"
    )  # fmt: skip
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert roster(play.state).reason == (
        "another node leads the job now, and asks all others for their state; "
        "it waits for one of the nodes that the job had: a, b"
    )
