"""A node ends its workers before its leader may replace it, and not while the leader answers."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.election import leader_loss_detection
from supervisor.core.election.leader_loss_detection import (
    MISSED_S,
    Answered,
    Begun,
    DeadlineReached,
    EndLink,
    GiveUp,
    LinkLost,
    LinkUp,
    MoveFence,
    NotReached,
    Say,
    SendHeartbeat,
    State,
)
from supervisor.core.election.link_silence import ALIVE_S, LATE_S, SILENCE_S
from supervisor.core.fence_times import FENCE_S
from tests.core.playbook import Playbook


def link(known_at_s: float | None = None) -> Playbook[State]:
    return Playbook(leader_loss_detection.step, State("h:1", known_at_s))


def connected() -> Playbook[State]:
    play = link()
    play >> Begun(10.0) >> LinkUp(0.0)
    return play


def test_a_leader_that_was_never_reached_is_waited_for_as_long_as_the_user_says() -> None:
    play = link()
    play.at(5.0) >> Begun(10.0) << ()
    assert leader_loss_detection.next_deadline_s(play.state) == 15.0
    play >> NotReached("connection refused") << ()
    play.at(14.9) >> DeadlineReached() << ()
    play.at(15.0) >> DeadlineReached() << GiveUp("the leader at h:1 is lost: connection refused")
    assert leader_loss_detection.next_deadline_s(play.state) is None
    play >> DeadlineReached() << ()


def test_people_learn_of_a_leader_that_has_never_answered_once_it_is_late() -> None:
    play = link()
    play.at(1.0) >> Begun(600.0)
    play.at(1.0 + MISSED_S - 0.1) >> NotReached("name or service not known") << ()
    (
        play.at(1.0 + MISSED_S)
        >> NotReached("name or service not known")
        << Say(
            "the leader at h:1 is looked for: name or service not known; if it has not answered in another "
            "595 s, the job ends here (join_timeout)"
        )
    )
    play.at(60.0) >> NotReached("refused") << ()
    play.at(61.0) >> LinkUp(61.0) << (
        MoveFence(61.0 + FENCE_S), SendHeartbeat(), Say("the leader at h:1 answers")
    )  # fmt: skip


def test_a_node_waits_for_a_relay_unless_it_was_connected_or_has_little_time_left() -> None:
    play = link()
    play >> Begun(FENCE_S)
    assert leader_loss_detection.may_wait_for_relay(play.state, FENCE_S - leader_loss_detection.DIRECTLY_S - 0.01)
    assert not leader_loss_detection.may_wait_for_relay(play.state, FENCE_S - leader_loss_detection.DIRECTLY_S)
    play >> LinkUp(0.0) >> LinkLost("reset")
    assert not leader_loss_detection.may_wait_for_relay(play.state, 0.0)


def test_a_node_whose_ranks_soon_end_without_their_leader_waits_for_no_relay() -> None:
    play = link()
    play >> Begun(FENCE_S, ranks_until_s=2.5)
    assert leader_loss_detection.may_wait_for_relay(play.state, 0.49)
    assert not leader_loss_detection.may_wait_for_relay(play.state, 0.5)
    play >> Begun(FENCE_S, ranks_until_s=0.0)  # No rank runs any more.
    assert leader_loss_detection.may_wait_for_relay(play.state, 0.5)


def test_without_an_attempt_the_reason_is_that_it_was_never_reached() -> None:
    play = link(known_at_s=-FENCE_S)
    (
        play
        >> Begun(10.0)
        >> DeadlineReached()
        << GiveUp("the leader at h:1 is lost: it was never reached", may_return=True)
    )


def test_heartbeats_go_out_while_there_is_a_connection_and_their_answers_move_the_fence() -> None:
    play = link()
    play.at(1.0) >> Begun(10.0) >> LinkUp(0.5) << (MoveFence(0.5 + FENCE_S), SendHeartbeat())
    assert leader_loss_detection.next_deadline_s(play.state) == 1.0 + ALIVE_S
    play.at(1.1) >> Answered(1.0) << MoveFence(1.0 + FENCE_S)
    play >> Answered(0.7) << MoveFence(1.0 + FENCE_S), "an older answer"
    play >> Answered(9.0) << MoveFence(1.1 + FENCE_S), "never ahead of now"
    play.at(2.0) >> DeadlineReached(heard_at_s=1.1) << SendHeartbeat()


def test_a_silent_connection_is_ended_in_time_for_another_one_and_the_loss_tells_the_whole_silence() -> None:
    play = connected()
    for at_s in (1.0, 2.0):
        play.at(at_s) >> DeadlineReached(heard_at_s=0.0) << SendHeartbeat()
    assert leader_loss_detection.next_deadline_s(play.state) == SILENCE_S
    play.at(SILENCE_S) >> DeadlineReached(heard_at_s=0.0) << EndLink("nothing was heard for 2.5 s")
    assert leader_loss_detection.next_deadline_s(play.state) is None, "its end is awaited"
    play >> LinkLost("nothing was heard for 2.5 s")
    play.has(Say("the leader at h:1 is looked for: nothing was heard for 2.5 s"))
    (
        play.at(FENCE_S)
        >> DeadlineReached()
        << GiveUp("the leader at h:1 is lost: nothing was heard for 4.0 s", may_return=True)
    )


def test_what_the_last_attempt_says_is_newer_than_the_silence() -> None:
    play = connected()
    play.at(SILENCE_S) >> DeadlineReached(heard_at_s=0.0) >> LinkLost("nothing was heard for 2.5 s")
    play >> NotReached("connection reset")
    play.at(FENCE_S) >> DeadlineReached() << GiveUp("the leader at h:1 is lost: connection reset", may_return=True)


def test_a_leader_that_listens_no_more_does_not_return() -> None:
    play = connected()
    play.at(1.0) >> LinkLost("the other side has closed the connection") >> NotReached("refused", is_gone=True)
    play.at(FENCE_S) >> DeadlineReached() << GiveUp("the leader at h:1 is lost: refused")
    play = connected()
    play.at(1.0) >> LinkLost("reset") >> NotReached("refused", is_gone=True) >> NotReached("it does not answer in time")
    lost = "the leader at h:1 is lost: it does not answer in time"
    play.at(FENCE_S) >> DeadlineReached() << GiveUp(lost, may_return=True)


def test_a_node_that_seeks_its_leader_again_gives_up_soon_after_nobody_listens() -> None:
    play = link()
    play >> Begun(600.0, again=True) >> NotReached("no route")
    assert leader_loss_detection.next_deadline_s(play.state) == leader_loss_detection.RETURNS_S
    play.at(20.0) >> NotReached("refused", is_gone=True)
    play.at(21.0) >> NotReached("refused", is_gone=True)
    assert leader_loss_detection.next_deadline_s(play.state) == 20.0 + FENCE_S
    play.at(20.0 + FENCE_S) >> DeadlineReached() << GiveUp("the leader at h:1 is lost: refused")
    play = link()
    play >> Begun(15.0, again=True)
    assert leader_loss_detection.next_deadline_s(play.state) == 15.0, (
        "no longer than it would wait for its first leader"
    )
    play = link()
    play >> Begun(600.0) >> NotReached("refused", is_gone=True)
    assert leader_loss_detection.next_deadline_s(play.state) == 600.0, "it may start later than this node"


def test_a_leader_that_speaks_but_answers_nothing_is_lost() -> None:
    """It does not hear this node, and will replace it."""
    play = connected()
    for at_s in (1.0, 2.0, 3.0):
        play.at(at_s) >> DeadlineReached(heard_at_s=at_s) << SendHeartbeat()
    why = "it has not answered for 4.0 s"
    play.at(FENCE_S) >> DeadlineReached(heard_at_s=FENCE_S) << EndLink(why)
    play >> LinkLost(why) >> DeadlineReached() << GiveUp(f"the leader at h:1 is lost: {why}", may_return=True)


def test_after_a_stall_what_was_received_is_handled_before_the_silence_is_judged() -> None:
    play = connected()
    play.at(3.0) >> DeadlineReached(heard_at_s=0.0) << SendHeartbeat()
    assert leader_loss_detection.next_deadline_s(play.state) == 3.0 + LATE_S
    play.at(3.0 + LATE_S) >> DeadlineReached(heard_at_s=0.0) << EndLink("nothing was heard for 3.1 s")


def test_an_order_that_is_heard_too_late_is_not_obeyed() -> None:
    play = connected()
    assert leader_loss_detection.is_obeyed(play.state, FENCE_S - 0.01)
    assert not leader_loss_detection.is_obeyed(play.state, FENCE_S)
    assert leader_loss_detection.is_obeyed(State("h:1"), 1e9), "the first message of a leader"


def test_a_connection_made_too_late_is_not_kept() -> None:
    play = link()
    play.at(FENCE_S + 1.0) >> Begun(10.0) >> LinkUp(1.0)
    play << (MoveFence(1.0 + FENCE_S), EndLink("it has not answered for 4.0 s"))


@given(st.lists(st.tuples(st.floats(0, 6), st.sampled_from(["answer", "break", "up", "fail"])), max_size=40))
def test_the_leader_is_lost_at_the_fence_exactly_and_never_before(script: list[tuple[float, str]]) -> None:
    """Each pair: how long after the one before something happens. Deadlines are kept; the leader is heard, too."""
    state, now_s = State("h:1", 0.0), 0.0
    state, _ = leader_loss_detection.step(state, Begun(60.0), now_s=now_s)
    for after_s, what in script:
        until_s = now_s + after_s
        while (due_s := leader_loss_detection.next_deadline_s(state)) is not None and due_s <= until_s:
            now_s = max(now_s, due_s)
            state, actions = leader_loss_detection.step(state, DeadlineReached(heard_at_s=now_s), now_s=now_s)
            assert state.known_at_s is not None
            fence_s = state.known_at_s + FENCE_S
            for action in actions:
                match action:
                    case GiveUp():
                        assert now_s >= fence_s
                        return
                    case EndLink(why):
                        assert now_s >= fence_s
                        state, _ = leader_loss_detection.step(state, LinkLost(why), now_s=now_s)
                    case _:
                        assert now_s < fence_s
        now_s = until_s
        match what:
            case "answer" if state.is_up:
                state, _ = leader_loss_detection.step(state, Answered(now_s), now_s=now_s)
            case "break" if state.is_up:
                state, _ = leader_loss_detection.step(state, LinkLost("it broke"), now_s=now_s)
            case "up" if not state.is_up:
                state, _ = leader_loss_detection.step(state, LinkUp(now_s), now_s=now_s)
            case "fail" if not state.is_up:
                state, _ = leader_loss_detection.step(state, NotReached("refused"), now_s=now_s)
            case _:
                pass
        deadline_s = leader_loss_detection.next_deadline_s(state)
        assert state.known_at_s is not None
        assert deadline_s is not None
        assert deadline_s <= state.known_at_s + FENCE_S, "no moment at which the fence could be missed"


def test_people_read_at_once_that_a_leader_is_looked_for_and_once_that_it_is_back() -> None:
    play = connected()
    play.at(1.0) >> LinkLost("reset") << ()  # Most often, the next attempt succeeds.
    play.at(1.1) >> NotReached("connection refused")
    play.has(Say("the leader at h:1 is looked for: connection refused"))
    play.at(1.3) >> NotReached("connection refused") << ()
    play.at(1.5) >> LinkUp(1.4)
    play.has(Say("the leader at h:1 answers again"))
    play.at(1.6) >> LinkLost("reset") << ()
    play.at(1.7) >> LinkUp(1.65)
    assert not play.of(Say)


def test_a_leader_that_was_never_reached_is_waited_for_without_a_word() -> None:
    play = link()
    play >> Begun(10.0) >> NotReached("connection refused") << ()
