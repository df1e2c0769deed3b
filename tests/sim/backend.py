"""Who leads a simulated job with an elected leader, and with which data does the next leader begin?

As in etcd (decision 0021), one key with a lease names the leader, and only the leader of the newest term writes the one
record. A call may fail before or after it was performed. Changes are reported late, to each node in order. Without a
quorum, nothing is answered and no lease ends. How long it has held its data, it counts anew after each loss or restored
backup, and after most times without a quorum, which are restarts; a pause is none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from supervisor.core import term_numbers
from supervisor.core.leader_ledger import Ledger
from supervisor.ports.rendezvous_backend import SURE_S

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.leader_term import LeaderTerm
    from tests.sim.voting import Voter
    from tests.sim.world import World

LEASE_S = 2.0
EXPIRY_LATE_MAX_S = 0.5  # how often ended leases are looked for
ANSWER_MAX_S = 0.05
SLOW_ANSWER_MAX_S = 0.3  # each way
CALL_TIMEOUT_S = 2.0  # etcd_client.CALL_TIMEOUT_S
ENDED_KEPT_S = 900.0  # etcd_leftovers.KEPT_S
WATCH_MAX_S = 0.1
WATCH_AGAIN_S = 0.5
FIRST_REVISIONS = 0, 2**30  # many other jobs may have used it
BACKUPS_MAX = 20
HELD_LONG = 0.7  # share of the jobs that begin on a backend which has held its data for long
PAUSED = 0.4  # share of the times without a quorum in which it is only paused
LONG_S = 1e5

Answer = TypeVar("Answer")


class Unavailable:
    """Stands for an answer that does not come."""


UNAVAILABLE = Unavailable()


@dataclass(frozen=True)
class Elected:
    """The leader and its address. Compared by its term."""

    term: int
    node: str = field(compare=False)
    leader_term: LeaderTerm = field(compare=False)


class Backend:
    def __init__(self, world: World) -> None:
        self._world = world
        self.leader: Elected | None = None
        self._ledger = Ledger()
        self._ledger_until_s = math.inf
        self.lost_until_s = 0.0  # without a quorum
        self._slow_until_s = 0.0
        self.leads = 0
        self.era = 0  # how often it has lost data
        self._parts = random.Random(f"terms {world.setup.seed}")
        self._revision = self._parts.choice(FIRST_REVISIONS)
        self._last_term = 0  # of the last lead
        self._added = 0  # to the revision, for the term of the last lead; see core/term_numbers.py
        self._kept: list[tuple[int, int, int, Ledger, Elected | None]] = []  # what a backup may have
        self._ages = random.Random(f"age {world.setup.seed}")
        self._held_since_s = -LONG_S if self._ages.random() < HELD_LONG else 0.0
        self._was_led = False  # as its data say; a backup was made later
        self._lease_until_s = 0.0
        self._watched_by: dict[Voter, float] = {}  # when the last change reaches it
        self._broken: set[Voter] = set()  # watches to be repeated

    def answers(self, host: Host) -> bool:
        return self._world.timeline.now_s >= self.answers_from_s(host)

    def answers_from_s(self, host: Host) -> float:
        reach = host.reach
        return max(self.lost_until_s, reach.backend_from_s, reach.sends_from_s, reach.hears_from_s)

    def ask(
        self,
        host: Host,
        do: Callable[[], Answer],
        then: Callable[[Answer | Unavailable], None],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Asks the backend; calls `then` with the answer. Without an answer, the call may have been made anyway."""
        world, timeline = self._world, self._world.timeline
        until_s = timeline.now_s + (timeout_s if world.chance(0.5) else world.random.uniform(0.0, timeout_s))

        def fail() -> None:
            timeline.at(until_s, lambda: host.receive(lambda: then(UNAVAILABLE)))

        def arrive() -> None:
            if not self.answers(host):
                fail()
                return
            answer = do()
            timeline.after(self._takes_s(), lambda: leave(answer))

        def leave(answer: Answer) -> None:
            if self.answers(host):
                host.receive(lambda: then(answer))
            else:
                fail()

        timeline.after(self._takes_s(), arrive)

    def is_well(self, host: Host, term: int) -> bool:
        """Whether nothing is wrong with that lead. An answer that says so may have waited in a paused host."""
        leads = self.leader is not None and self.leader.term == term
        return leads and self.answers(host) and not self._is_slow

    @property
    def _is_slow(self) -> bool:
        return self._world.timeline.now_s < self._slow_until_s

    def _takes_s(self) -> float:
        return self._world.random.uniform(0.0, SLOW_ANSWER_MAX_S if self._is_slow else ANSWER_MAX_S)

    # --- what is asked

    def elect(self, leader_term: LeaderTerm, above: int) -> tuple[int, Ledger, float, int] | None:
        """Returns the new lead, or None if another leads. The lease lasts until `hold` is called."""
        if self.leader is not None:
            return None
        now_s = self._world.timeline.now_s
        was_led = self._was_led and now_s < self._ledger_until_s
        held_for_s = now_s - self._held_since_s
        previous_term = self._last_term if was_led and held_for_s >= SURE_S else 0
        self._was_led = True
        part = self._parts.randrange(term_numbers.PARTS)
        self._added = term_numbers.added_to(self._revision, added=self._added, newest_term=above, part=part)
        term = 1 + self._revision + self._added
        self.leader = Elected(term, leader_term.host.name, leader_term)
        self._last_term = term
        self.leads += 1
        self.hold(term, LEASE_S)
        self._change()
        self._tell_all()
        return term, self.ledger, 0.0 if was_led else held_for_s, previous_term

    def _change(self) -> None:
        self._revision += 1
        self._kept = [*self._kept[-BACKUPS_MAX:], self._data()]

    def _data(self) -> tuple[int, int, int, Ledger, Elected | None]:
        return self._revision, self._added, self._last_term, self._ledger, self.leader

    def wipe(self) -> bool:
        """Loses all data. Its revisions begin again."""
        if self._world.timeline.now_s < self.lost_until_s:
            return False
        self._replace(0, 0, 0, Ledger(), None)
        self._kept, self._was_led = [], False
        return True

    def restore(self) -> bool:
        """Goes back to an earlier state. A leader of that time still leads if it leads now."""
        if self._world.timeline.now_s < self.lost_until_s or not self._kept:
            return False
        self._replace(*self._world.random.choice(self._kept))
        return True

    def _replace(self, revision: int, added: int, last_term: int, ledger: Ledger, leader: Elected | None) -> None:
        if self.leader is not None:
            self.leader.leader_term.disturb()
        self.era += 1
        self._revision, self._added, self._last_term, self._ledger = revision, added, last_term, ledger
        self._held_since_s = self._world.timeline.now_s
        if self.leader != leader or leader is None:
            self.leader = None
        self._tell_all()  # the watches begin again

    @property
    def ledger(self) -> Ledger:
        return self._ledger if self._world.timeline.now_s < self._ledger_until_s else Ledger()

    def renew(self, term: int) -> bool:
        if self.leader is None or self.leader.term != term:
            return False
        self.hold(term, LEASE_S)
        return True

    def write(self, term: int, ledger: Ledger, *, is_last: bool = False) -> bool:
        if self.leader is None or self.leader.term != term:
            return False
        self._ledger = ledger
        self._change()
        self._ledger_until_s = self._world.timeline.now_s + ENDED_KEPT_S if is_last else math.inf
        return True

    def resign(self, term: int) -> bool:
        if self.leader is None or self.leader.term != term:
            return False
        self._depose()
        return True

    # --- leases

    def hold(self, term: int, lasts_s: float | None) -> None:
        """Extends the lease by this time; None: renewals are not played, since nothing is wrong."""
        if self.leader is None or self.leader.term != term:
            return
        timeline = self._world.timeline
        self._lease_until_s = until_s = timeline.now_s + lasts_s if lasts_s is not None else float("inf")
        if lasts_s is not None:
            late_s = self._world.random.uniform(0.0, EXPIRY_LATE_MAX_S)
            timeline.at(until_s + late_s, lambda: self._expire(term, until_s))

    def _expire(self, term: int, until_s: float) -> None:
        timeline = self._world.timeline
        if self.leader is None or self.leader.term != term or self._lease_until_s != until_s:
            return
        if timeline.now_s < self.lost_until_s:
            # A returning quorum renews its leases in full, or finds that they have ended.
            later_s = LEASE_S if self._world.chance(0.5) else 0.0
            timeline.at(self.lost_until_s + later_s, lambda: self._expire(term, until_s))
        else:
            self._depose()

    def revoke(self) -> bool:
        """Revokes all leases at once, as etcd does occasionally."""
        if self._world.timeline.now_s < self.lost_until_s:
            return False
        if self.leader is None:
            return False
        self.leader.leader_term.disturb()
        self._depose()
        return True

    def lose(self, until_s: float) -> None:
        self.lost_until_s = max(self.lost_until_s, until_s)
        if self._ages.random() >= PAUSED:
            self._held_since_s = max(self._held_since_s, until_s)
        if self.leader is not None:
            self.leader.leader_term.disturb()

    def slow_down(self, until_s: float) -> None:
        self._slow_until_s = max(self._slow_until_s, until_s)
        if self.leader is not None:
            self.leader.leader_term.disturb()

    def _depose(self) -> None:
        self.leader = None
        self._tell_all()

    # --- who hears of it

    def watch(self, voter: Voter) -> None:
        self._watched_by[voter] = 0.0
        self._tell(voter, self.leader)

    def forget(self, voter: Voter) -> None:
        self._watched_by.pop(voter, None)

    def _tell_all(self) -> None:
        for voter in list(self._watched_by):
            self._tell(voter, self.leader)

    def _tell(self, voter: Voter, leader: Elected | None) -> None:
        timeline = self._world.timeline
        at_s = timeline.now_s + self._world.random.uniform(0.0, WATCH_MAX_S)
        self._watched_by[voter] = at_s = max(at_s, self._watched_by[voter])

        def come() -> None:
            if voter not in self._watched_by or voter.host.is_dead or voter in self._broken:
                return
            if self.answers(voter.host):
                voter.host.receive(lambda: voter.see(leader))
            else:
                self._broken.add(voter)
                timeline.after(WATCH_AGAIN_S, again)

        def again() -> None:
            """Reads who leads, and then watches."""
            nonlocal leader
            self._broken.discard(voter)
            leader = self.leader
            come()

        timeline.at(at_s, come)
