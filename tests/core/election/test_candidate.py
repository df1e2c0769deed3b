"""A node follows who leads, asks to lead while nobody does, and gives up only after its time."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import (
    JobOpened,
    LeadershipLost,
    LeadershipTaken,
    MemberState,
    NodeCordoned,
    NodeDown,
    NodeStands,
    NodeStopped,
    StopAsked,
)
from supervisor.core.election import candidate, first_start, node_fence
from supervisor.core.election.candidate import (
    AGAIN_S,
    JITTER_S,
    KEPT_S,
    STANDS_AGAIN_S,
    AskForLead,
    AskWhoLeads,
    BackendRefused,
    Coordinate,
    DeadlineReached,
    Event,
    Follow,
    Following,
    Lead,
    LeaderAnswered,
    LeaderSeen,
    LeadLost,
    LeadNotWon,
    LeadWon,
    Left,
    LinkLost,
    Obey,
    Opened,
    Over,
    Report,
    Said,
    State,
    Unable,
    Unfollow,
    Waiting,
    WriteAgain,
)
from supervisor.core.election.leader import Leader
from supervisor.core.election.leader_heartbeats import HeardLeader
from supervisor.core.election.node_fence import MoveFence, NobodyElse
from supervisor.core.facts import JobRules, JobState, Verdict
from supervisor.core.fence_times import FENCE_S, HEARD_S, led_at_s
from supervisor.core.leader_ledger import Ledger, after_all_know
from supervisor.core.term_numbers import ERA
from tests.core.playbook import Playbook

RULES = JobRules("j", 1)
OPENED = JobOpened("a", RULES)
STANDS = NodeStands("a", RULES, MemberState.RUNNING, 3)
STOPPED = NodeStopped("a", all_succeeded=False)
JOIN_S = 30.0
B, C = Leader(3, "b", "10.0.0.2:1", 2.0), Leader(4, "c", "10.0.0.3:1", 2.0)
INTRODUCE = Obey(orders.Introduce())


def node(**known: object) -> Playbook[State]:
    state = candidate.initial_state("j", "a", "p1", join_timeout_s=JOIN_S, now_s=0.0)
    return Playbook(candidate.step, msgspec.structs.replace(state, **known), jitter=0.5)


def following() -> Playbook[State]:
    play = node()
    play >> LeaderSeen(B) << ()
    return play >> Said(OPENED)


def leading() -> Playbook[State]:
    play = node()
    play >> Said(OPENED)
    play.at(JITTER_S) >> DeadlineReached() >> LeadWon(3, Ledger(4))
    return play


def test_nothing_happens_before_the_node_has_a_job() -> None:
    play = node()
    assert candidate.next_deadline_s(play.state) is None
    play.at(100.0) >> DeadlineReached() << ()


def test_a_node_that_sees_nobody_asks_to_lead_and_begins_with_the_ledger() -> None:
    play = node()
    play >> Said(OPENED) << MoveFence(FENCE_S)
    assert candidate.next_deadline_s(play.state) == JITTER_S / 2
    play.at(JITTER_S / 2) >> DeadlineReached() << AskForLead()
    play >> LeadWon(3, Ledger(4))
    play << (Lead(3, Ledger(4), None), Coordinate(LeadershipTaken(3, Ledger(4), None)), INTRODUCE)
    play >> Said(STOPPED) << Coordinate(STOPPED)


def test_a_node_follows_the_leader_that_it_sees_and_reports_to_it() -> None:
    play = following()
    play.has(Follow(B), INTRODUCE)
    play >> Said(STANDS) >> Said(NodeDown("a", 3)) << Report(NodeDown("a", 3))


def test_a_leader_hears_first_how_the_node_stands_which_includes_earlier_reports() -> None:
    play = following()
    play >> Said(NodeDown("a", 3)) << ()
    stop = StopAsked("by kim", 0)
    play >> Said(stop) << ()
    play >> Said(STANDS)
    said = [each.report for each in play.of(Report)]
    assert [type(each) for each in said] == [NodeStands, StopAsked]
    play >> Said(NodeDown("a", 3)) << Report(NodeDown("a", 3))


def test_another_leader_is_followed_once_the_first_is_left() -> None:
    play = following()
    play >> LeaderSeen(C) << Unfollow()
    play.at(1.0) >> LinkLost("", said_at_s=0.75, was_heard=True) << (Follow(C), INTRODUCE)
    play >> Said(STANDS)
    ((report),) = play.of(Report)
    assert (report.report.left_ago_s, report.report.met_term, report.report.rules.facts.process) == (0.25, 3, "p1")


def test_an_earlier_leader_is_news_that_comes_too_late() -> None:
    play = following()
    play >> LeaderSeen(C) >> LinkLost("", None, was_heard=False)
    play >> LeaderSeen(B) << ()
    assert play.state.phase == Following(C, is_new=True)


def test_a_leader_that_is_no_longer_heard_is_tried_again_or_another_one() -> None:
    play = following()
    play >> LinkLost("gone", 0.0, was_heard=True) << ()
    assert play.state.phase == Waiting(AGAIN_S)
    play.at(AGAIN_S / 2) >> LeaderSeen(C) << (Follow(C), INTRODUCE)
    play >> LinkLost("gone", 0.0, was_heard=True)
    play.at(2 * AGAIN_S) >> DeadlineReached()
    play.has(Follow(C))


def test_another_node_won_meanwhile_and_is_followed_at_once() -> None:
    play = node()
    play >> Said(OPENED)
    play.at(JITTER_S) >> DeadlineReached() >> LeaderSeen(B) << ()
    play >> LeadNotWon() << (Follow(B), INTRODUCE)


def test_an_ask_without_an_answer_is_repeated() -> None:
    play = node()
    play >> Said(OPENED)
    play.at(JITTER_S) >> DeadlineReached() >> LeadNotWon() << ()
    play.at(JITTER_S + AGAIN_S) >> DeadlineReached()
    assert candidate.next_deadline_s(play.state) == pytest.approx(JITTER_S * 1.5 + AGAIN_S)


def test_a_lost_lead_is_left_before_the_node_goes_on() -> None:
    play = leading()
    play.at(5.0) >> LeadLost("its lease has ended") << Coordinate(LeadershipLost("its lease has ended"))
    play >> LeaderSeen(C) << ()
    play >> Left() << (Follow(C), INTRODUCE)
    play.at(6.0) >> Said(STANDS)
    ((report),) = play.of(Report)
    assert (report.report.left_ago_s, report.report.met_term) == (1.0, 3)


def test_wishes_are_said_again_to_a_leader_that_comes_in_time() -> None:
    play = following()
    (
        play
        >> Said(StopAsked("a person", 0))
        >> Said(NodeCordoned("a", "a loud fan"))
        >> LeaderSeen(C)
        >> LinkLost("", 0.0, was_heard=True)
    )
    play.at(KEPT_S / 2) >> Said(STANDS)
    again = StopAsked("a person", 0)
    assert [each.report for each in play.of(Report)][1:] == [again], "a cordon is a part of NodeStands"
    play.at(KEPT_S) >> Said(STANDS)
    assert [each.report for each in play.of(Report)][1:] == []


def test_the_backend_is_asked_who_leads_only_while_no_leader_is_heard() -> None:
    play = following()
    due_s = FENCE_S - (FENCE_S - HEARD_S)
    play.at(1.0) >> DeadlineReached()
    play.lacks(AskWhoLeads)
    play.at(due_s) >> DeadlineReached()
    play.has(AskWhoLeads())
    play >> LeaderAnswered(B, due_s) << ()
    play.at(due_s + 0.1) >> NobodyElse(due_s)
    play.at(due_s + AGAIN_S) >> DeadlineReached()
    play.lacks(AskWhoLeads)


def test_a_node_is_safe_while_the_backend_says_that_nobody_leads() -> None:
    play = following()
    play.at(2.5) >> DeadlineReached() >> LeaderAnswered(None, 2.0)
    play.has(MoveFence(2.0 + FENCE_S), Unfollow())
    play >> LinkLost("", 0.0, was_heard=True)
    play.at(5.9) >> DeadlineReached()
    assert not any(isinstance(each.order, orders.StandBack) for each in play.of(Obey))
    play.at(6.1) >> LeaderAnswered() >> DeadlineReached()
    assert any(isinstance(each.order, orders.StandBack) for each in play.of(Obey))


def test_a_node_that_led_last_is_safe_for_less_while_nobody_leads() -> None:
    play = leading()
    play.at(5.0) >> LeadLost("its lease has ended")
    until_s = play.state.fence.until_s
    play >> LeaderAnswered(None, 5.0)
    assert play.state.fence.until_s == max(until_s, led_at_s(5.0) + FENCE_S)


def test_a_node_tells_when_it_heard_the_leader_that_it_has_left() -> None:
    play = following()
    play >> LeaderSeen(C)
    play.at(1.0) >> LinkLost("", said_at_s=0.75, was_heard=True, heard_leader=HeardLeader(4, 0.5))
    play >> Said(STANDS)
    ((report),) = play.of(Report)
    assert (report.report.left_term, report.report.heard_cycle, report.report.heard_ago_s) == (B.term, 4, 0.5)
    play >> LeaderSeen(B)
    play.at(2.0) >> LinkLost("", said_at_s=1.75, was_heard=True)
    play >> LeaderSeen(msgspec.structs.replace(C, term=C.term + 1)) >> Said(STANDS)
    ((report),) = play.of(Report)
    assert (report.report.left_term, report.report.heard_cycle) == (C.term, -1)


def test_it_gives_up_after_its_time_and_says_how_the_job_ends_once_it_has_stopped() -> None:
    play = node()
    play >> Said(OPENED)
    play.at(JITTER_S) >> DeadlineReached() >> LeadNotWon()
    play.at(JOIN_S + 1.0) >> DeadlineReached()
    why = f"no leader of job j was found for {JOIN_S:g} s"
    play.has(Obey(orders.WindDown(why, at_once=True)))
    assert play.state.over == why
    play >> Said(STOPPED) << Obey(orders.Conclude(Verdict(JobState.FAILED, 1, why)))
    assert candidate.next_deadline_s(play.state) is None
    play >> LeaderSeen(B) >> LinkLost("", None, was_heard=False) >> Left() >> LeadWon(3, Ledger()) << ()


def test_time_counts_only_while_nothing_runs() -> None:
    play = following()
    play >> LinkLost("gone", 0.0, was_heard=True)
    play.at(AGAIN_S) >> LeaderSeen(None)
    assert play.state.waits_since_s is None
    play.at(FENCE_S + 1.0) >> DeadlineReached() >> LeadNotWon()
    play.at(FENCE_S + 2.0) >> DeadlineReached()
    assert play.state.waits_since_s is not None
    assert not play.state.over


def test_a_node_that_is_refused_gives_up_unless_it_may_still_train() -> None:
    refused = LinkLost("another one is called a", 0.0, was_heard=False, is_refused=True)
    play = following()
    play >> refused << Obey(orders.WindDown("another one is called a", at_once=True))
    play = following()
    play >> LinkLost("gone", 0.0, was_heard=True)
    play.at(AGAIN_S) >> DeadlineReached() >> refused << ()
    assert isinstance(play.state.phase, Waiting)


def test_a_wrong_configuration_ends_only_a_job_that_has_not_begun() -> None:
    play = node()
    play >> Said(OPENED) >> BackendRefused("wrong password")
    play << Obey(orders.WindDown("cannot elect a leader of job j: wrong password; check --rdzv-conf", at_once=True))
    play = following()
    play >> BackendRefused("wrong password") << ()
    play = node()
    play >> Said(OPENED)
    play.at(JITTER_S) >> DeadlineReached() >> Unable("no such address")
    assert play.state.phase == Over("no such address")
    play = following()
    play >> LinkLost("gone", 0.0, was_heard=True) >> LeaderSeen(None)
    play.at(JITTER_S) >> DeadlineReached() >> Unable("no such address") << ()
    assert play.state.phase == Waiting(JITTER_S + AGAIN_S)


def test_a_node_that_goes_on_keeps_its_connection_and_is_not_introduced_again() -> None:
    play = node(met_term=2)
    play >> Opened(B) << (MoveFence(FENCE_S), Follow(B))
    play >> Opened(C) << ()


EVENTS = st.one_of(
    st.builds(LeaderSeen, st.sampled_from([None, B, C, Leader(5, "a", "", 2.0)])),
    st.builds(Said, st.sampled_from([STANDS, STOPPED, NodeDown("a", 3), StopAsked("a person", 0)])),
    st.sampled_from([DeadlineReached(), BackendRefused("no"), LeaderAnswered()]),
    st.builds(NobodyElse, st.floats(0, 50)),
)


@given(st.lists(st.tuples(st.floats(0, 4), EVENTS), max_size=40), st.data())
def test_whatever_happens_it_has_one_connection_or_one_lead_or_neither(
    told: list[tuple[float, Event]], data: st.DataObject
) -> None:
    """The edge answers each action once, and the machine never orders a second link, ask or lead beside the first."""
    state = candidate.initial_state("j", "a", "p1", join_timeout_s=JOIN_S, now_s=0.0)
    state, _ = candidate.step(state, Said(OPENED), now_s=0.0)
    now_s, under_way = 0.0, ""
    for after_s, event in told:
        now_s += after_s
        answers: list[Event] = []
        if under_way == "ask":
            answers = [LeadWon(9, Ledger()), LeadNotWon()]
        elif under_way in ("link", "ending"):
            refused = LinkLost("gone", None, was_heard=False, is_refused=True)
            answers = [LinkLost("gone", now_s, was_heard=True), refused]
        elif under_way == "lead":
            answers = [LeadLost("")]
        elif under_way == "left":
            answers = [Left()]
        chosen = data.draw(st.sampled_from(answers)) if answers and data.draw(st.booleans()) else event
        if chosen is not event:
            under_way = "left" if isinstance(chosen, LeadLost) else ""
        state, actions = candidate.step(state, chosen, now_s=now_s, jitter=0.5)
        for action in actions:
            match action:
                case AskForLead() | Follow() | Lead():
                    assert under_way == ""
                    under_way = {AskForLead: "ask", Follow: "link", Lead: "lead"}[type(action)]
                case Unfollow():
                    assert under_way == "link"
                    under_way = "ending"
                case Report():
                    assert under_way == "link"
                case _:
                    pass
        if state.over:
            assert candidate.next_deadline_s(state) is None
            return
        if isinstance(chosen, DeadlineReached):
            due_s = candidate.next_deadline_s(state)
            assert due_s is not None
            assert due_s > now_s or under_way == "", "it rings again and again"
        assert state.fence.until_s >= node_fence.FENCE_S


def test_a_leader_that_has_resigned_lets_others_lead_for_a_while() -> None:
    play = leading()
    play >> LeadLost("it hears too few", has_resigned=True)
    play << (Coordinate(LeadershipLost("it hears too few")), Obey(orders.Resign("it hears too few")))
    play >> Left() << ()
    assert play.state.phase == Waiting(JITTER_S + STANDS_AGAIN_S)
    play >> LeaderSeen(C) >> LinkLost("", None, was_heard=False)
    play.at(play.now_s + AGAIN_S) >> DeadlineReached()
    assert play.state.phase == Following(C, is_new=True), "tried again"
    play >> LeaderSeen(None) >> LinkLost("", None, was_heard=False)
    assert isinstance(play.state.phase, Waiting)
    play.at(JITTER_S + STANDS_AGAIN_S) >> DeadlineReached()
    play.at(play.now_s + JITTER_S) >> DeadlineReached()
    play.has(AskForLead(above=4))


def test_a_leader_of_an_earlier_term_is_followed_once_it_is_sure_that_it_leads() -> None:
    """The backend has lost its data: its terms begin again, and this node knows a later one."""
    play = following()
    early = Leader(1, "c", "10.0.0.3:1", 2.0)
    play.at(0.1) >> LeaderSeen(early) << ()
    assert candidate.next_deadline_s(play.state) == 0.1
    play >> DeadlineReached()
    play.has(AskWhoLeads())
    play.at(0.2) >> LeaderAnswered(early, asked_at_s=0.1) << Unfollow()
    play >> LinkLost("", 0.1, was_heard=True) << (Follow(early), INTRODUCE)
    play >> Said(STANDS)
    ((report),) = play.of(Report)
    assert report.report.newest_term == B.term
    # It gives up the lead, and this node's term is later than all that were seen.
    play >> LeaderSeen(None) >> LinkLost("", 0.1, was_heard=True)
    play.at(1.0) >> DeadlineReached()
    play.has(AskForLead(above=B.term))


VERDICT = Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0")


@pytest.mark.parametrize(
    ("found", "begins_with"),
    [
        (after_all_know(Ledger(0, verdict=VERDICT, term=20), 20), None),  # this node has missed the end
        (Ledger(0, term=20), None),
        (after_all_know(Ledger(9, verdict=VERDICT, term=10), 10), Ledger(4, term=19)),  # of the run before: a backup
        (Ledger(), Ledger(4, term=19)),
    ],
)
def test_a_leader_that_the_backend_elected_after_a_loss_writes_what_is_newer_whatever_its_term(
    found: Ledger, begins_with: Ledger | None
) -> None:
    """This node has led, and sees one that never hears it, with an earlier term."""
    play = node()
    play >> Said(OPENED)
    play.at(JITTER_S) >> DeadlineReached() >> LeadWon(30, Ledger())
    play >> LeadLost("its lease has ended", ledger=Ledger(4, term=30)) >> Left()
    play.at(0.5) >> LeaderAnswered(Leader(20, "c", "10.0.0.3:1", 2.0), asked_at_s=0.5)
    play.at(1.0) >> DeadlineReached() >> LeadNotWon() >> LinkLost("it can't be reached", None, was_heard=False)
    play >> LeaderSeen(None)
    play.at(2.0) >> DeadlineReached()
    play.has(AskForLead(above=30))
    play >> LeadWon(ERA + 21, found)
    play.has(Lead(ERA + 21, found if begins_with is None else begins_with, None))


def test_an_answer_that_was_asked_for_before_the_lead_was_won_is_no_news() -> None:
    play = leading()
    play >> LeaderAnswered(Leader(1, "c", "10.0.0.3:1", 2.0), asked_at_s=0.1) << ()
    assert play.state.seen is None


def test_an_answer_that_was_asked_for_before_the_last_news_is_no_news() -> None:
    play = node()
    play.at(1.0) >> LeaderSeen(C) >> Said(OPENED)
    play.at(2.0) >> LeaderAnswered(B, asked_at_s=0.5)
    assert play.state.seen == C


def test_the_last_leader_knows_the_ledger_that_the_backend_has_lost() -> None:
    play = leading()
    kept = Ledger(5, term=3)
    play >> LeadLost("its lease has ended", ledger=kept) >> Left()
    play.at(1.0) >> DeadlineReached()
    play >> LeadWon(4, Ledger())
    play.has(Lead(4, kept, None))
    play >> LeadLost("its lease has ended", ledger=Ledger(6, term=4)) >> Left()
    play.at(2.0) >> DeadlineReached()
    play >> LeadWon(5, kept)
    play.has(Lead(5, Ledger(6, term=4), None))


def test_a_leader_counts_on_the_witnesses_that_the_backend_names_and_on_none_if_its_data_is_lost() -> None:
    kept = Ledger(5, witnesses=("b", "c"), term=3)
    for found, witnesses in ((kept, ("b", "c")), (Ledger(), ())):
        play = leading()
        play >> LeadLost("its lease has ended", ledger=kept) >> Left()
        play.at(1.0) >> DeadlineReached()
        play >> LeadWon(4, found)
        play.has(Lead(4, kept, None, witnesses))


def test_the_age_of_the_backends_data_tells_the_coordinator_whether_others_may_train() -> None:
    for held_for_s in (first_start.HELD_S - 1.0, first_start.HELD_S):
        play = node()
        play >> Said(OPENED)
        play.at(JITTER_S) >> DeadlineReached() >> LeadWon(3, Ledger(), held_for_s)
        play.has(Coordinate(LeadershipTaken(3, Ledger(), None, held_for_s < first_start.HELD_S)))


def test_a_leader_writes_its_ledger_again_as_the_watch_begins_again() -> None:
    play = leading()
    own = Leader(3, "a", "10.0.0.1:1", 2.0)
    play >> LeaderSeen(own) << ()
    play >> LeaderSeen(own) << WriteAgain()
