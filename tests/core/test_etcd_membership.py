"""Which nodes are members of the job's own etcd, and what is to be done so that three are?"""

from __future__ import annotations

import pytest

from supervisor.core import etcd_membership
from supervisor.core.etcd_membership import GRACE_S, STEADY_S, Member, Published, Seat


def seats(*numbers: int) -> tuple[Seat, ...]:
    return tuple(Seat(number, f"n{number}", f"p{number}", at_endpoint=number == 0) for number in numbers)


def members(voters: str, learners: str = "") -> tuple[Member, ...]:
    return tuple(
        Member(int(each) + 100, f"p{each}", f"https://h{each}:1", is_learner=each in learners)
        for each in voters + learners
    )


def test_nodes_are_told_the_voters_that_have_started_and_whether_one_is_at_the_endpoint():
    starting = Member(109, "p9")
    told = etcd_membership.published(7, seats(2, 0), (*members("10", "2"), starting))
    assert told == Published(7, ("h0:1", "h1:1"), ("n0", "n2"), has_endpoint=True)
    assert told.has_free_seat
    without = etcd_membership.published(7, seats(0, 1, 2), members("12"))
    assert (without.has_endpoint, without.has_free_seat) == (False, False)


@pytest.mark.parametrize(("taken", "free"), [((), 0), ((0,), 1), ((0, 2), 1), ((2, 1), 0), ((0, 1, 2), None)])
def test_a_node_takes_the_first_free_seat(taken: tuple[int, ...], free: int | None):
    assert etcd_membership.free_seat(seats(*taken)) == free


def test_a_member_has_no_seat_unless_its_node_took_or_left_one_at_this_moment():
    there = members("012")
    assert etcd_membership.unseated(seats(0, 1, 2), there, seats(0, 1, 2)) == []
    assert etcd_membership.unseated(seats(0, 1), there, seats(0, 1)) == [there[2]]
    assert etcd_membership.unseated(seats(0, 1), there, seats(0, 1, 2)) == []
    assert etcd_membership.unseated(seats(0, 1, 2), there, seats(0, 1)) == []


def test_a_node_that_was_only_slow_may_take_its_seat_again():
    first, second, _ = members("012")
    since_s = {first.id: 10.0, second.id: 10.1}
    assert etcd_membership.lost([first, second], since_s, now_s=10.0 + GRACE_S) == [first]


@pytest.mark.parametrize(
    ("taken", "voters", "joined_for_s", "may"),
    [
        ((0, 1), "0", 60.0, False),  # The job would depend on two nodes.
        ((0, 1, 2), "0", STEADY_S - 0.1, False),  # etcd would not take the third member yet.
        ((0, 1, 2), "0", STEADY_S, True),
        ((0, 1, 2), "01", 0.0, True),
        ((0, 1), "01", 60.0, False),
    ],
)
def test_a_second_vote_comes_only_with_a_third(taken: tuple[int, ...], voters: str, joined_for_s: float, *, may: bool):
    assert etcd_membership.may_vote(seats(*taken), members(voters, "5"), joined_for_s=joined_for_s) is may


def test_the_last_voter_is_the_one_with_which_etcd_ends():
    assert etcd_membership.is_last(100, members("0", "1"))
    assert not etcd_membership.is_last(101, members("0", "1"))
    assert not etcd_membership.is_last(100, members("01"))


def test_another_member_leads_etcd_than_the_one_of_the_jobs_leader():
    there = members("12", "0")
    assert etcd_membership.transfer_targets(101, 101, there, leads_job=True) == [there[1]]
    assert etcd_membership.transfer_targets(101, 101, there, leads_job=False) == []
    assert etcd_membership.transfer_targets(101, 102, there, leads_job=True) == []
    assert etcd_membership.transfer_targets(101, 101, members("1", "0"), leads_job=True) == []
