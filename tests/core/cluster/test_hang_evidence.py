"""Stacks of all nodes at once, within one budget; the nodes that asked act afterwards."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

from supervisor.core.cluster import hang_evidence
from supervisor.core.cluster.cluster_messages import DeadlineReached, Publish, Send, StacksTaken, StacksWanted
from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.orders import ActOnHang, TakeStacks
from supervisor.core.process_facts import Frame, ProcessFacts, ProcessState, RankFacts
from tests.core.playbook import Playbook

IN_REDUCE, IN_LOAD = "ddp.py:2 in reduce", "data.py:8 in load"
NOTICED = "rank 1 sent no heartbeat for 5.0 s (limit 5.0 s)"
WAITING = StackGroup(
    (0, 2), IN_REDUCE, (Frame("/app/t.py", "train", 3), Frame("/x/torch/distributed/distributed_c10d.py", "barrier", 9))
)


def asked(*nodes: str) -> Playbook[hang_evidence.State]:
    play = Playbook(hang_evidence.step, hang_evidence.initial_state(), cycle=3, nodes=nodes)
    play >> StacksWanted(nodes[0], 3, (1,), 0.25, NOTICED)
    assert play.last == tuple(Send(node, TakeStacks(3, (1,), 0.25)) for node in nodes)
    return play


def taken(node: str, *groups: StackGroup, notes: tuple[str, ...] = ()) -> StacksTaken:
    return StacksTaken(node, 3, Evidence(groups, notes, "py-spy", 0.1))


def test_the_node_that_asked_acts_once_all_stacks_are_in() -> None:
    play = asked("a", "b")
    play >> taken("a", StackGroup((0,), IN_REDUCE), StackGroup((1,), IN_LOAD)) << ()
    play >> taken("b", StackGroup((2, 3), IN_REDUCE), notes=("no stack of rank 4",))
    assert [each.event.reason for each in play.of(Publish)] == [
        f"rank 1 stands in {IN_LOAD}; ranks 0, 2, 3 stand in {IN_REDUCE} (no stack of rank 4)"
    ]
    assert play.of(Send) == [Send("a", ActOnHang(3))]
    assert hang_evidence.next_deadline_s(play.state) is None


def test_a_node_that_does_not_answer_is_named_and_not_waited_for() -> None:
    play = asked("a", "b")
    play >> taken("a", StackGroup((1,), IN_LOAD))
    play.at(0.34) >> DeadlineReached() << ()
    play.at(0.36) >> DeadlineReached()
    kinds = {each.event.kind: each.event.reason for each in play.of(Publish)}
    assert kinds["stacks_missing"] == "no stacks of b came within 0.25 s; going on without"
    assert play.of(Send) == [Send("a", ActOnHang(3))]
    play >> taken("b", StackGroup((2,), IN_REDUCE))
    assert [each.event.reason for each in play.last] == [f"rank 2 stands in {IN_REDUCE}"]


def test_several_nodes_that_find_hangs_share_one_collection() -> None:
    play = asked("a", "b")
    play >> StacksWanted("b", 3, (2,), 0.25) << ()
    play >> StacksWanted("b", 3, (3,), 0.25) << ()
    play >> taken("a")
    play >> taken("b")
    assert play.of(Send) == [Send("a", ActOnHang(3)), Send("b", ActOnHang(3))]
    assert [each.event.reason for each in play.of(Publish)] == ["no stacks could be taken"]


def test_what_the_nodes_tell_leads_to_one_verdict_with_the_same_sentence_for_all() -> None:
    play = asked("a", "b")
    play >> StacksWanted("b", 3, (2,), 0.25, "rank 2 sent no heartbeat")
    stopped = RankFacts(1, ProcessFacts(ProcessState.STOPPED, stop_signal="SIGSTOP"))
    play >> StacksTaken("a", 3, Evidence((WAITING,), facts=(RankFacts(0), RankFacts(2)))) << ()
    play >> StacksTaken("b", 3, Evidence(facts=(stopped,)))
    sentence = f"rank 1 is stopped (SIGSTOP); ranks 0 and 2 wait for it in barrier; first noticed: {NOTICED}"
    (explained,) = [each.event for each in play.of(Publish) if each.event.kind == "hang_explained"]
    assert (explained.reason, explained.rank, explained.cycle) == (sentence, 1, 3)
    assert dict(explained.details) == {"pattern": "stopped", "culprits": "1", "waiters": "0, 2"}
    assert play.of(Send) == [Send("a", ActOnHang(3, sentence)), Send("b", ActOnHang(3, sentence))]


def test_a_verdict_does_not_repeat_what_was_noticed() -> None:
    noticed = "rank 0 is stopped (SIGSTOP) for 3.0 s"
    play = Playbook(hang_evidence.step, hang_evidence.initial_state(), cycle=3, nodes=("a",))
    play >> StacksWanted("a", 3, (0,), 0.25, noticed)
    stopped = RankFacts(0, ProcessFacts(ProcessState.STOPPED, stop_signal="SIGSTOP"))
    play >> StacksTaken("a", 3, Evidence(facts=(stopped,)))
    assert play.of(Send) == [Send("a", ActOnHang(3, noticed))]


def test_answers_that_nodes_still_owe_are_counted_over_all_questions() -> None:
    """A question of another kind has to wait for them, since nothing says which question an answer belongs to."""
    play = asked("a", "b") >> taken("a")
    play.at(0.36) >> DeadlineReached()
    assert play.state == hang_evidence.Quiet(late=("b",))
    play >> StacksWanted("a", 3, (2,), 0.25) >> taken("b") >> taken("a")
    assert play.state == hang_evidence.Quiet(late=("b",)), "it was asked twice"
    play >> taken("b")
    assert play.state == hang_evidence.Quiet()


def test_a_verdict_without_the_word_of_a_node_says_so() -> None:
    play = asked("a", "b")
    play >> StacksTaken("a", 3, Evidence((WAITING,), facts=(RankFacts(0), RankFacts(2)))) << ()
    play.at(0.36) >> DeadlineReached()
    ((order,),) = [(each.order,) for each in play.of(Send)]
    assert "; of the ranks of b nothing is known; first noticed: " in order.verdict
