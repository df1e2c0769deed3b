"""Which nodes of a job are the members of the etcd that the job brings, and what is to be done so that three are?

A node takes a seat before it becomes a member, and keeps it by a lease. A member without a seat is one whose node is
lost: it is removed, and the next node takes the seat. A member that joins does not vote before all seats are taken:
of two votes, both are needed, so the job would depend on two nodes instead of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

SEATS = 3
SEAT_TTL_S = 8  # a node that is not heard for so long loses its seat
GRACE_S = 4.0  # and its member is removed so much later
STEADY_S = 6.0  # etcd accepts no further member before all voters have been connected for 5 s


class Seat(msgspec.Struct, frozen=True):
    number: int
    node: str
    peer_url: str  # where its member meets the others
    at_endpoint: bool = False  # where nodes that know nothing look for the members


class Member(msgspec.Struct, frozen=True):
    """A member as etcd knows it."""

    id: int
    peer_url: str
    client_url: str = ""  # "": it has not started yet
    is_learner: bool = False  # it has all data, or gets it, and does not vote
    name: str = ""


class Published(msgspec.Struct, frozen=True):
    """What all nodes of the job know about the members."""

    cluster_id: int  # of their etcd; answers of another one count for nothing
    endpoints: tuple[str, ...]  # HOST:PORT of each voter
    nodes: tuple[str, ...]  # those that have a seat
    has_endpoint: bool = True  # a node that knows nothing finds a member at --rdzv-endpoint

    @property
    def has_free_seat(self) -> bool:
        return len(self.nodes) < SEATS


def published(cluster_id: int, seats: Iterable[Seat], members: Iterable[Member]) -> Published:
    seated = sorted(seats, key=lambda each: each.number)
    voters = [each for each in members if not each.is_learner and each.client_url]
    at_endpoint = {each.peer_url for each in seated if each.at_endpoint}
    return Published(
        cluster_id,
        tuple(sorted(each.client_url.partition("://")[2] for each in voters)),
        tuple(each.node for each in seated),
        any(each.peer_url in at_endpoint for each in voters),
    )


def free_seat(seats: Iterable[Seat]) -> int | None:
    """Returns the first seat that nobody has; None: all are taken."""
    taken = {each.number for each in seats}
    return next((number for number in range(SEATS) if number not in taken), None)


def unseated(before: Iterable[Seat], members: Iterable[Member], after: Iterable[Seat]) -> list[Member]:
    """Returns the members whose node has no seat.

    `before` and `after`: the seats as they were before and after the members were listed, since a node takes its seat
    before it becomes a member, and another may take it in between.
    """
    seated = {each.peer_url for each in (*before, *after)}
    return [each for each in members if each.peer_url not in seated]


def lost(unseated: Iterable[Member], since_s: Mapping[int, float], *, now_s: float) -> list[Member]:
    """Returns those whose node is lost. A node that was only slow takes its seat again within GRACE_S."""
    return [each for each in unseated if now_s - since_s[each.id] >= GRACE_S]


def may_vote(seats: Sequence[Seat], members: Iterable[Member], *, joined_for_s: float) -> bool:
    """Returns whether a member that has joined may begin to vote. etcd itself checks that it has the data.

    The second vote comes only when the third can follow at once: all seats are taken, and etcd takes another member.
    """
    voters = sum(not each.is_learner for each in members)
    return len(seats) == SEATS and (voters >= SEATS - 1 or joined_for_s >= STEADY_S)


def is_last(own_id: int, members: Iterable[Member]) -> bool:
    """Returns whether no other member votes, so that etcd ends with this one."""
    return not any(each.id != own_id and not each.is_learner for each in members)


def transfer_targets(own_id: int, leading_id: int, members: Iterable[Member], *, leads_job: bool) -> list[Member]:
    """Returns the members of which one is to lead etcd instead of this node's; none: it is well as it is.

    While etcd elects another leader, and for some time after that, no lease ends. So the leaders of etcd and of the job
    are on two nodes: the loss of one node is then noticed sooner.
    """
    if not leads_job or leading_id != own_id:
        return []
    return [each for each in members if each.id != own_id and not each.is_learner and each.client_url]
