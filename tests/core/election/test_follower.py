"""A node whose leader is lost ends its workers at once, and says how the job ends once they have ended."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

from supervisor.core.cluster.cluster_messages import NodeDown, NodeFailed, NodeStopped
from supervisor.core.election import follower
from supervisor.core.election.follower import LeaderLost, Obey, Report, Said, Seek, State
from supervisor.core.facts import JobState, Verdict
from supervisor.core.orders import Conclude, Introduce, StandBack, WindDown
from tests.core.new_leader import stands
from tests.core.playbook import Playbook

STOPPED = NodeStopped("a", all_succeeded=False)
WIND_DOWN, FAILED = Obey(WindDown("gone", at_once=True)), Obey(Conclude(Verdict(JobState.FAILED, 1, "gone")))


def test_reports_go_to_the_leader_while_there_is_one() -> None:
    play = Playbook(follower.step, State())
    play >> Said(NodeDown("a", 3)) << Report(NodeDown("a", 3))
    play >> Said(STOPPED) << Report(STOPPED)
    assert follower.next_deadline_s(play.state) is None


def test_the_workers_end_first_and_then_the_job() -> None:
    play = Playbook(follower.step, State())
    play >> LeaderLost("gone") << WIND_DOWN
    play >> Said(NodeDown("a", 3)) << ()
    play >> Said(STOPPED) << FAILED


def test_a_node_that_waits_for_the_verdict_ends_at_once() -> None:
    play = Playbook(follower.step, State(has_stopped=True))
    play >> LeaderLost("gone") << (WIND_DOWN, FAILED)


def test_a_leader_is_lost_once() -> None:
    play = Playbook(follower.step, State(lost="gone"))
    play >> LeaderLost("another reason") << ()
    assert play.state.lost == "gone"


def test_a_leader_that_may_return_is_sought_and_hears_first_how_the_node_stands() -> None:
    play = Playbook(follower.step, State())
    waits = Obey(StandBack("silent; this node waits for it"))
    play >> LeaderLost("silent", may_return=True) << (waits, Seek(), Obey(Introduce()))
    play >> Said(NodeFailed("a", 3, "its workers have been ended")) << (), "this is part of how it stands"
    play >> Said(stands("a", 0)) << Report(stands("a", 0))
    play >> Said(NodeDown("a", 3)) << Report(NodeDown("a", 3))
    play >> LeaderLost("gone") << Obey(WindDown("gone", at_once=True))
    play >> Said(STOPPED) << FAILED


def test_a_node_that_has_stopped_waits_for_no_leader() -> None:
    play = Playbook(follower.step, State(has_stopped=True))
    play >> LeaderLost("gone", may_return=True) << (WIND_DOWN, FAILED)
