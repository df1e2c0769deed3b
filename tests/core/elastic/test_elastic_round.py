"""Do torchrun's agents meet as torch promises: from min to max, after a last call, and never in two groups at once?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.elastic.elastic_messages import (
    AgentClosed,
    AgentJoined,
    AgentLeft,
    AgentLost,
    BeginRound,
    DeadlineReached,
    ElasticRules,
    Event,
    Refusal,
    RefuseAgent,
    RoundStoreServed,
    Send,
    ServeRoundStore,
    TellClosed,
    TellSpares,
    TellWaiting,
)
from supervisor.core.elastic.elastic_round import STORE_S, State, initial_state, next_deadline_s, step
from tests.core.elastic.slow_rendezvous import SlowRendezvous
from tests.core.playbook import Playbook

RULES = ElasticRules(min_nodes=2, max_nodes=3, join_timeout_s=600.0, last_call_timeout_s=30.0)
FIXED = ElasticRules(min_nodes=2, max_nodes=2, join_timeout_s=600.0, last_call_timeout_s=30.0)


def playbook() -> Playbook[State]:
    return Playbook(step, initial_state(0.0))


def join(node: str, rules: ElasticRules = RULES, order: int = -1) -> AgentJoined:
    return AgentJoined(node, rules, order)


def served(node: str, number: int) -> RoundStoreServed:
    return RoundStoreServed(node, number, "10.0.0.1", 4000 + number)


def begin(number: int, rank: int, world_size: int, reason: str) -> BeginRound:
    return BeginRound(number, rank, world_size, "10.0.0.1", 4000 + number, reason)


def running(*nodes: str, rules: ElasticRules = RULES) -> Playbook[State]:
    """Round 0 runs with these; the last call is over if there are fewer than the maximum."""
    play = playbook()
    for node in nodes:
        play >> join(node, rules)
    if len(nodes) < rules.max_nodes:
        play.at(30.0) >> DeadlineReached()
    return play >> served(min(nodes), 0)


def test_a_round_begins_at_once_with_the_maximum_and_ranks_go_by_name():
    play = playbook()
    play >> join("b") << ()
    play >> join("c") << ()
    play >> join("a") << Send("a", ServeRoundStore(0))
    play >> served("a", 0) << tuple(Send(node, begin(0, rank, 3, "the job starts")) for rank, node in enumerate("abc"))
    assert next_deadline_s(play.state) is None


def test_the_scheduler_s_order_goes_before_names():
    play = playbook()
    for node, order in (("a", -1), ("b", 7), ("c", 2)):
        play >> join(node, order=order)
    play << Send("c", ServeRoundStore(0))
    play >> served("c", 0)
    assert [action.node for action in play.of(Send)] == ["c", "b", "a"]


def test_with_the_minimum_the_last_call_is_waited_for_and_not_prolonged():
    play = playbook()
    play >> join("a") << ()
    play.at(5.0) >> join("b") << ()
    assert next_deadline_s(play.state) == 35.0
    play.at(20.0) >> AgentLost("a", "node a is lost") << ()
    assert next_deadline_s(play.state) == 605.0
    play.at(21.0) >> join("c") << ()
    play.at(50.9) >> DeadlineReached() << ()
    play.at(51.0) >> DeadlineReached() << Send("b", ServeRoundStore(0))


def test_a_fixed_number_of_nodes_knows_no_last_call():
    play = playbook()
    play >> join("a", FIXED) << ()
    play >> join("b", FIXED) << Send("a", ServeRoundStore(0))


def test_too_few_agents_are_refused_once_their_time_is_over_each_at_its_own():
    play = playbook()
    play.at(10.0) >> join("a", ElasticRules(3, 3, 600.0, 30.0)) << ()
    play.at(20.0) >> join("b", ElasticRules(3, 3, 600.0, 30.0)) << ()
    play.at(609.0) >> DeadlineReached() << ()
    missing = "2 of at least 3 nodes have joined (a, b) within 600 s"
    play.at(610.0) >> DeadlineReached() << Send("a", RefuseAgent(Refusal.TIMEOUT, missing))
    assert next_deadline_s(play.state) == 620.0


def test_a_member_that_joins_again_brings_the_others_and_nobody_starts_before_all_have_stopped():
    play = running("a", "b", rules=FIXED)
    play >> join("b", FIXED) << Send("a", TellWaiting(1, "node b joins again"))
    play.at(40.0) >> DeadlineReached() << ()
    play.at(50.0) >> join("a", FIXED) << Send("a", ServeRoundStore(1))
    (
        play
        >> served("a", 1)
        << (
            Send("a", begin(1, 0, 2, "node b joins again")),
            Send("b", begin(1, 1, 2, "node b joins again")),
        )
    )


def test_a_lost_member_is_told_at_once_and_the_rest_goes_on_without_a_last_call():
    play = running("a", "b", "c")
    (
        play
        >> AgentLost("b", "node b is lost: silence")
        << (
            Send("a", TellWaiting(1, "node b is lost: silence")),
            Send("c", TellWaiting(1, "node b is lost: silence")),
        )
    )
    play >> join("c") << ()
    play >> join("a") << Send("a", ServeRoundStore(1))


def test_an_agent_that_is_late_brings_a_group_with_room_to_a_new_round_and_waits_for_one_without():
    play = running("a", "b")
    play >> join("c") << tuple(Send(node, TellWaiting(1, "waiting to join: c")) for node in "ab")
    play >> join("d") << ()
    play >> AgentLeft("c", "SIGTERM") << ()
    play >> AgentLeft("d", "SIGTERM") << tuple(Send(node, TellWaiting(0, "")) for node in "ab")
    full = running("a", "b", "c")
    full >> join("d") << tuple(Send(node, TellSpares(exist=True)) for node in "abc")
    assert next_deadline_s(full.state) is None, "a spare may wait as long as the job runs"
    full >> AgentLost("b", "gone") >> join("a") >> join("c") << Send("a", ServeRoundStore(1))
    full >> served("a", 1)
    assert [action.node for action in full.of(Send)] == ["a", "c", "d"]


def test_members_know_whether_there_are_spares_from_the_beginning_and_after_each_change():
    """Where there are, a member without a leader must stop: others can form a group without it."""
    play = playbook()
    for node in "abc":
        play >> join(node, FIXED)
    play >> served("a", 0)
    play << (
        *(Send(node, begin(0, rank, 2, "the job starts")) for rank, node in enumerate("ab")),
        *(Send(node, TellSpares(exist=True)) for node in "ab"),
    )
    play >> join("d", FIXED) << ()
    play >> AgentLost("c", "gone") << ()
    play >> AgentLeft("d", "SIGTERM") << tuple(Send(node, TellSpares(exist=False)) for node in "ab")
    play >> join("e", FIXED) << tuple(Send(node, TellSpares(exist=True)) for node in "ab")
    play >> AgentLost("b", "gone") >> join("a", FIXED) >> served("a", 1)
    assert not [action for action in play.of(Send) if isinstance(action.order, TellSpares)], "the spare is a member now"


def test_members_of_the_last_round_go_before_spares():
    play = running("b", "c", rules=FIXED)
    play >> join("a", FIXED) >> join("c", FIXED) >> join("b", FIXED) << Send("b", ServeRoundStore(1))


def test_closing_tells_everybody_and_lets_a_spare_end_well():
    play = running("a", "b", rules=FIXED)
    play >> join("c", FIXED)
    why = "node a has closed the rendezvous: its workers have ended"
    play >> AgentClosed("a", "its workers have ended", failed=False)
    play << (
        *(Send(node, TellClosed(why, failed=False)) for node in "abc"),
        Send("c", RefuseAgent(Refusal.SURPLUS, why)),
    )
    play >> join("b", FIXED) << Send("b", RefuseAgent(Refusal.CLOSED, why))
    play >> AgentClosed("b", "again", failed=False) << ()
    play >> AgentLeft("a", "done") << ()


def test_an_agent_that_has_failed_for_good_brings_the_others_to_their_end():
    play = running("a", "b", rules=FIXED)
    play >> join("c", FIXED)
    why = "node a has closed the rendezvous: no restarts are left"
    play >> AgentClosed("a", "no restarts are left", failed=True)
    play << (
        *(Send(node, TellClosed(why, failed=True)) for node in "abc"),
        Send("c", RefuseAgent(Refusal.CLOSED, why)),
        *(Send(node, TellWaiting(1, why)) for node in "ab"),
    )


def test_an_agent_outside_of_the_group_that_fails_ends_nothing_but_itself():
    play = running("a", "b", rules=FIXED)
    play >> join("c", FIXED)
    play >> AgentClosed("c", "a broken spare", failed=True)
    play << tuple(Send(node, TellSpares(exist=False)) for node in "ab")
    play >> AgentClosed("stranger", "refused", failed=False) << ()
    play >> join("a", FIXED) >> AgentClosed("b", "no restarts are left", failed=True)
    assert [action.node for action in play.of(Send) if isinstance(action.order, RefuseAgent)] == ["a"]


def test_agents_that_disagree_are_refused_alone():
    play = playbook()
    play >> join("a", FIXED) << ()
    wrong = "min_nodes is 1 here and 2 on the other nodes; max_nodes is 4 here and 2 on the other nodes"
    play >> join("b", ElasticRules(1, 4, 600.0, 30.0))
    play << Send("b", RefuseAgent(Refusal.STATE, f"{wrong}; start all nodes with the same --nnodes and --rdzv-conf"))
    play >> join("c", FIXED) << Send("a", ServeRoundStore(0))


def test_how_long_an_agent_waits_is_its_own_affair():
    play = playbook()
    play >> join("a", RULES) >> join("b", ElasticRules(2, 3, 5.0, 30.0)) << ()
    play >> AgentLost("a", "gone")
    play.at(5.0) >> DeadlineReached()
    play << Send("b", RefuseAgent(Refusal.TIMEOUT, "1 of at least 2 nodes have joined (b) within 5 s"))


def test_the_first_agent_s_rules_hold_only_while_somebody_is_there():
    play = playbook()
    play >> join("a", FIXED) >> AgentLost("a", "gone")
    play >> join("b", RULES) >> join("c", RULES) >> join("d", RULES) << Send("b", ServeRoundStore(0))


@pytest.mark.parametrize("event", [AgentLost("a", "gone"), join("b", FIXED)])
def test_a_member_that_is_lost_or_comes_anew_while_the_store_opens_takes_the_round_with_it(event: Event):
    play = playbook()
    play >> join("a", FIXED) >> join("b", FIXED) << Send("a", ServeRoundStore(0))
    play >> event
    play >> served("a", 0) << ()
    play >> join("c", FIXED)
    assert not play.of(BeginRound)
    assert play.state.round == 1


def test_a_host_that_does_not_serve_its_store_is_left_out():
    play = playbook()
    play >> join("a", FIXED) >> join("b", FIXED)
    play.at(STORE_S) >> DeadlineReached()
    play << Send("a", RefuseAgent(Refusal.STATE, "it has not served the store within 30 s"))
    play >> join("c", FIXED) << Send("b", ServeRoundStore(1))


def test_words_that_come_late_change_nothing():
    play = running("a", "b", rules=FIXED)
    before = str(play.state)
    for event in (served("a", 0), served("b", 7), AgentLost("x", "never seen"), DeadlineReached()):
        play >> event << ()
    assert str(play.state) == before


# --- against the slow twin -----------------------------------------------------------------------------------------

NAMES = [f"n{number}" for number in range(6)]
Moves = list[tuple[str, int, float]]
MOVES = st.lists(
    st.tuples(st.sampled_from(["join", "join", "join", "lose", "wait"]), st.integers(0, 5), st.floats(0.0, 40.0)),
    max_size=60,
)


class Both:
    """The machine, whose store is served at once, and its twin."""

    def __init__(self, rules: ElasticRules) -> None:
        self.rules = rules
        self.state = initial_state(0.0)
        self.twin = SlowRendezvous(rules)
        self.rounds: list[tuple[str, ...]] = []
        self.refused: list[str] = []
        self.told: dict[str, bool] = {}
        self.told_spares: dict[str, bool] = {}
        self.now_s = 0.0

    def take(self, event: Event) -> None:
        self.state, actions = step(self.state, event, now_s=self.now_s)
        began: list[str] = []
        for action in actions:
            match action.order:
                case ServeRoundStore(number):
                    self.take(served(action.node, number))
                case BeginRound(_, rank, world_size):
                    assert rank == len(began)
                    began.append(action.node)
                    assert world_size <= self.rules.max_nodes
                    self.told[action.node] = self.told_spares[action.node] = False
                case TellWaiting(waiting):
                    self.told[action.node] = waiting > 0
                case TellSpares(exist):
                    self.told_spares[action.node] = exist
                case RefuseAgent(refusal):
                    assert refusal is Refusal.TIMEOUT
                    self.refused.append(action.node)
                case TellClosed():
                    raise AssertionError("nobody has closed it")
        if began:
            assert len(began) >= self.rules.min_nodes
            self.rounds.append(tuple(began))

    def pass_time(self, until_s: float) -> None:
        """Plays every deadline at its moment, on both."""
        while (deadline_s := next_deadline_s(self.state)) is not None and deadline_s <= until_s:
            self.now_s = max(self.now_s, deadline_s)
            self.take(DeadlineReached())
            assert self.twin.pass_time(self.now_s) == self.refused
            self.refused.clear()
        self.now_s = until_s

    def compare(self) -> None:
        assert self.rounds == self.twin.rounds
        assert set(self.state.busy) == {each.name for each in self.twin.agents.values() if each.is_busy}
        assert {node for node in self.state.busy if self.told[node]} == self.twin.must_come()
        if not self.twin.is_open:
            assert {self.told_spares[node] for node in self.state.busy} == {self.twin.has_spares()}


@settings(max_examples=200)
@given(st.integers(1, 3), st.integers(0, 2), st.sampled_from([0.0, 5.0, 30.0]), MOVES)
def test_the_machine_and_its_slow_twin_agree(low: int, more: int, last_call_s: float, moves: Moves):
    both = Both(ElasticRules(low, low + more, 60.0, last_call_s))
    for move, number, pause_s in moves:
        both.pass_time(both.now_s + pause_s)
        name = NAMES[number]
        if move == "join":
            timeout_s = (60.0, 60.0, 25.0)[number % 3]
            both.take(join(name, msgspec.structs.replace(both.rules, join_timeout_s=timeout_s)))
            both.twin.join(name, timeout_s, both.now_s)
        elif move == "lose":
            both.take(AgentLost(name, "gone"))
            both.twin.remove(name, both.now_s)
        both.compare()
    both.pass_time(both.now_s + 1000.0)
    both.compare()


def test_ten_thousand_agents_join_in_steps_of_one_size():
    """Only the start of the round looks at all of them."""
    dice = random.Random(3)
    nodes = [f"node{number}" for number in range(10_240)]
    dice.shuffle(nodes)
    rules = ElasticRules(10_240, 10_240, 600.0, 30.0)
    state = initial_state(0.0)
    last: list[Send] = []
    for node in nodes:
        next_deadline_s(state)
        state, actions = step(state, join(node, rules), now_s=0.0)
        last = list(actions)
    assert [action.order for action in last] == [ServeRoundStore(0)]
    state, actions = step(state, served(last[0].node, 0), now_s=0.0)
    assert len(actions) == 10_240
