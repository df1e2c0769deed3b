"""What can go wrong in a simulated run? A schedule of faults, drawn from the seed, from which any can be left out.

A fault affects what exists at its moment; without a target it does nothing. "Next" kinds wait until somebody asks for
what they spoil.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from supervisor.core.election.link_silence import ALIVE_S
from supervisor.core.fence_times import FENCE_S
from supervisor.edges.peers.relays.relay import TICK_S
from supervisor.edges.peers.stream.cluster_client import AGAIN_S
from tests.sim.setup import LIMIT_S, Setup

FOREVER_S = 1e9
HARMLESS_S = 2.4  # a pause or a cut this long has no cost if messages are fast
SENT_AGAIN_MAX_S = 0.1  # after a cut
BACKEND_HARMLESS_S = 30.0
UNSEEN_MAX_S = 4.0  # a backend that shows the nodes nothing for longer than a first start waits may get two groups


class Kind(enum.StrEnum):
    RANK_CRASH = enum.auto()
    RANK_HANG = enum.auto()  # after lasts_s it exits with 0, if it still can
    RANK_STUCK = enum.auto()  # in the kernel: it hangs and no signal ends it
    TERM_IGNORED = enum.auto()  # by the ranks of the node, from now on
    SPAWNER_FAILS = enum.auto()  # the next one does not start
    SPAWNER_LATE = enum.auto()  # the next one takes lasts_s
    SPAWNER_DIES = enum.auto()
    SPAWNER_SILENT = enum.auto()
    SPAWNER_UNKILLABLE = enum.auto()  # it is silent, and ignores the next SIGKILL
    STORE_FAILS = enum.auto()  # the next one is not served
    STORE_DIES = enum.auto()
    SPAWN_FAILS = enum.auto()  # the log folder of the next workers can't be made
    EVIDENCE_ABSENT = enum.auto()  # the next stacks don't come
    ITERATION_UNREADABLE = enum.auto()
    NODE_CRASH = enum.auto()  # after lasts_s a new process on it submits the job again
    NODE_PAUSE = enum.auto()  # everything on it is stopped; clocks continue
    SUPERVISOR_PAUSE = enum.auto()
    CUT = enum.auto()  # of the node from all others
    CUT_UP = enum.auto()  # nothing comes from the node
    CUT_DOWN = enum.auto()  # nothing comes to the node
    PEERS_CUT = enum.auto()  # from all other nodes; the election backend stays reachable
    PAIR_CUT = enum.auto()  # of the node and one other from each other; the election backend stays reachable
    PAIR_CUT_ONE_WAY = enum.auto()  # nothing comes from the node to that other
    SLOW_LINK = enum.auto()
    BACKEND_CUT = enum.auto()  # the node does not reach the election backend
    BACKEND_LOST = enum.auto()  # it has no quorum
    BACKEND_SLOW = enum.auto()  # it answers in up to SLOW_ANSWER_MAX_S
    LEASES_REVOKED = enum.auto()  # all at once
    BACKEND_WIPED = enum.auto()  # it has lost all data
    BACKEND_RESTORED = enum.auto()  # from an older backup
    BACKEND_WIPED_UNSEEN = enum.auto()  # and the first to ask it is a new process; it does not reach the others so long
    STOP = enum.auto()
    STOP_BY_SIGNAL = enum.auto()
    RESTART = enum.auto()
    EXCLUDE = enum.auto()
    SHUTDOWN = enum.auto()
    DRAIN = enum.auto()  # a person wants the node out of the job
    NODE_ENDS = enum.auto()  # its launcher is signalled: without ranks it leaves, with ranks it stops the job
    NODE_LEAVES = enum.auto()  # the same with --on-sigterm leave: it leaves if it can
    RANK_TERMINATED = enum.auto()  # by SIGTERM, from somebody else
    DEFECT = enum.auto()  # in a machine of the node, which ends the job there by itself


DEPARTURES = frozenset({Kind.DRAIN, Kind.NODE_ENDS, Kind.NODE_LEAVES})
REQUESTS = frozenset({Kind.STOP, Kind.STOP_BY_SIGNAL, Kind.RESTART, Kind.EXCLUDE, Kind.SHUTDOWN}) | DEPARTURES
_SPOILS_NOTHING = frozenset({Kind.TERM_IGNORED, Kind.EVIDENCE_ABSENT, Kind.ITERATION_UNREADABLE})
_OF_PAIR = frozenset({Kind.PAIR_CUT, Kind.PAIR_CUT_ONE_WAY})
CUTS = frozenset({Kind.CUT, Kind.CUT_UP, Kind.CUT_DOWN, Kind.PEERS_CUT}) | _OF_PAIR
_OF_NETWORK = CUTS | {Kind.SLOW_LINK}
_OF_ELECTION = _OF_PAIR | {
    Kind.PEERS_CUT, Kind.BACKEND_CUT, Kind.BACKEND_LOST, Kind.BACKEND_SLOW, Kind.LEASES_REVOKED, Kind.BACKEND_WIPED,
    Kind.BACKEND_RESTORED, Kind.BACKEND_WIPED_UNSEEN,
}  # fmt: skip
DATA_LOST = frozenset({Kind.BACKEND_WIPED, Kind.BACKEND_RESTORED, Kind.BACKEND_WIPED_UNSEEN})
_PASSES = CUTS | {Kind.BACKEND_CUT, Kind.SUPERVISOR_PAUSE, Kind.NODE_PAUSE}

# The relative frequency of each kind.
_WEIGHTS: dict[Kind, float] = (
    dict.fromkeys(Kind, 1.0)
    | {
        Kind.RANK_CRASH: 4.0,
        Kind.RANK_HANG: 3.0,
        Kind.NODE_CRASH: 3.0,
        Kind.CUT: 3.0,
        Kind.CUT_UP: 2.0,
        Kind.CUT_DOWN: 2.0,
        Kind.SUPERVISOR_PAUSE: 3.0,
        Kind.STOP: 0.4,
        Kind.STOP_BY_SIGNAL: 0.4,
        Kind.RESTART: 0.6,
        Kind.EXCLUDE: 0.5,
        Kind.SHUTDOWN: 0.5,
        Kind.RANK_STUCK: 0.5,
        Kind.SPAWNER_LATE: 0.5,
    }
    | dict.fromkeys((*sorted(DEPARTURES), Kind.BACKEND_WIPED_UNSEEN, Kind.RANK_TERMINATED, Kind.DEFECT), 0.0)
)  # the last: in draw_departures, where data is lost, and in draw_scheduler_end
_OF_NODES = frozenset({Kind.NODE_CRASH, *DEPARTURES})
_WITH_LOSSES: dict[Kind, float] = {
    Kind.RANK_CRASH: 5.0, Kind.SPAWN_FAILS: 3.0, Kind.SPAWNER_DIES: 3.0, Kind.NODE_CRASH: 2.0, Kind.NODE_ENDS: 1.0,
    Kind.NODE_LEAVES: 1.0, Kind.RESTART: 0.5, Kind.CUT: 1.0,
}  # fmt: skip
_LOST_DATA: dict[Kind, float] = {
    **dict.fromkeys(sorted(DATA_LOST), 10.0),
    **dict.fromkeys((Kind.BACKEND_LOST, Kind.CUT, Kind.NODE_CRASH, Kind.NODE_PAUSE, Kind.SUPERVISOR_PAUSE), 5.0),
    **dict.fromkeys((Kind.BACKEND_CUT, Kind.PEERS_CUT, Kind.PAIR_CUT, Kind.LEASES_REVOKED, Kind.RANK_CRASH), 2.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: Kind
    node: str
    local_rank: int = 0
    lasts_s: float = 0.0
    other: str = ""  # of a pair

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node, self.other) if self.other else (self.node,)

    @property
    def is_harmful(self) -> bool:
        """Returns whether it may cost a cycle, a node or the job."""
        if self.kind in (Kind.DRAIN, Kind.NODE_LEAVES):
            return True  # if no leader answers, the node leaves all the same, and is lost to the others
        if self.kind in REQUESTS or self.kind in _SPOILS_NOTHING:
            return False
        if self.kind is Kind.BACKEND_WIPED_UNSEEN:
            return True  # it ends a process
        if self.kind in (Kind.SLOW_LINK, Kind.BACKEND_SLOW, Kind.LEASES_REVOKED, *DATA_LOST):
            return False
        if self.kind is Kind.BACKEND_LOST:
            return self.lasts_s > BACKEND_HARMLESS_S
        return not (self.kind in _PASSES and self.lasts_s <= HARMLESS_S)

    @property
    def passes(self) -> bool:
        """Returns whether it interrupts something that continues by itself."""
        return self.kind in _PASSES

    @property
    def is_of_election(self) -> bool:
        return self.kind in _OF_ELECTION

    @property
    def is_over_s(self) -> float:
        return self.at_s + (self.lasts_s if self.lasts_s < FOREVER_S else 0.0)

    def __str__(self) -> str:
        lasts = "" if not self.lasts_s else " for good" if self.lasts_s >= FOREVER_S else f" for {self.lasts_s:.3f} s"
        rank = f" rank {self.local_rank}" if self.kind.startswith("rank_") else ""
        pair = f" and {self.other}" if self.other else ""
        return f"{self.at_s:9.3f} s {self.kind} {self.node}{pair}{rank}{lasts}"


def harmless_s(setup: Setup) -> float:
    """Returns how long a pause or a cut has no cost, however it falls between the heartbeats of a node.

    What the leader last answered may be a heartbeat and its way there and back old; after the cut, the node makes
    another attempt, and is welcomed.
    """
    hops = 2 if setup.fan_out else 1
    late_s = 5 * setup.delay_max_s * hops + (TICK_S if setup.fan_out else 0.0) + SENT_AGAIN_MAX_S
    return min(HARMLESS_S, FENCE_S - ALIVE_S - AGAIN_S[-1] - late_s)


def draw_schedule(setup: Setup) -> tuple[Fault, ...]:
    """Draws faults in the order of their moments."""
    draw = random.Random(f"schedule {setup.seed}")
    count = draw.choice([0, 1, 1, 2, 2, 3, 4, 6, 10])
    weights = (
        _WEIGHTS if setup.is_elected else {kind: each for kind, each in _WEIGHTS.items() if kind not in _OF_ELECTION}
    )
    if setup.loses_data:
        return _come_back(scheduled(setup, draw, max(2, count), _LOST_DATA), draw)
    return scheduled(setup, draw, count, weights)


def _come_back(faults: tuple[Fault, ...], draw: random.Random) -> tuple[Fault, ...]:
    """Lets crashed nodes return: there are newcomers, and nodes that know less than others."""
    return tuple(
        replace(each, lasts_s=draw.uniform(0.5, 20.0)) if each.kind is Kind.NODE_CRASH else each for each in faults
    )


def scheduled(setup: Setup, draw: random.Random, count: int, weights: dict[Kind, float]) -> tuple[Fault, ...]:
    kinds = draw.choices(list(weights), list(weights.values()), k=count)
    return tuple(sorted((_fault(kind, setup, draw) for kind in kinds), key=lambda each: each.at_s))


def draw_departures(setup: Setup) -> tuple[Fault, ...]:
    """Draws the seed's faults, and nodes that leave."""
    draw = random.Random(f"departures {setup.seed}")
    kinds = dict.fromkeys(sorted(DEPARTURES), 1.0)
    leaving = scheduled(setup, draw, draw.choice([1, 1, 2, 3]), kinds)
    return tuple(sorted((*draw_schedule(setup)[: draw.randrange(4)], *leaving), key=lambda each: each.at_s))


def draw_losses(setup: Setup) -> tuple[Fault, ...]:
    """Draws a node that is lost in a wrapped call, and what then fails: a spare, too, before it takes part."""
    draw = random.Random(f"losses {setup.seed}")
    lost = draw.choice(setup.names if setup.is_elected else setup.names[1:])
    at_s = draw.uniform(3.0, 12.0)
    faults = [Fault(at_s, Kind.NODE_CRASH, lost, 0, draw.choice([FOREVER_S, draw.uniform(0.5, 25.0)]))]
    for kind in draw.choices(list(_WITH_LOSSES), list(_WITH_LOSSES.values()), k=draw.choice([1, 2, 2, 3, 4])):
        each = replace(
            _fault(kind, setup, draw), at_s=at_s + draw.choice([-1.0, 5.0, 5.0, 5.0]) + draw.uniform(0.0, 6.0)
        )
        leads = not setup.is_elected and each.node == setup.names[0]
        faults.append(replace(each, node=lost) if leads and kind in _OF_NODES else each)
    return tuple(sorted(faults, key=lambda each: each.at_s))


def draw_scheduler_end(setup: Setup, at_s: float) -> tuple[Fault, ...]:
    """Draws how a scheduler ends the whole job: ranks and launchers get SIGTERM, in any order."""
    draw = random.Random(f"scheduler {setup.seed}")
    within_s = draw.choice([0.01, 0.1, 0.2])
    faults = [
        Fault(at_s + draw.uniform(0, within_s), Kind.RANK_TERMINATED, node, local_rank)
        for node in setup.names
        for local_rank in range(setup.rules.local_world_size)
        if draw.random() < 0.7  # The others handle the signal.
    ]
    faults += [Fault(at_s + draw.uniform(0, within_s), Kind.NODE_ENDS, node) for node in setup.names]
    return tuple(sorted(faults, key=lambda each: each.at_s))


_MANY = {
    Kind.RANK_CRASH: 1.0, Kind.NODE_CRASH: 1.0, Kind.CUT: 6.0, Kind.CUT_UP: 4.0, Kind.CUT_DOWN: 4.0,
    Kind.SLOW_LINK: 2.0, Kind.SUPERVISOR_PAUSE: 6.0,
}  # fmt: skip


def draw_many(setup: Setup, count: int) -> tuple[Fault, ...]:
    """Draws faults that a job survives: interruptions are short, and crashed nodes come back."""
    draw = random.Random(f"many {setup.seed}")
    faults = scheduled(setup, draw, count, _MANY)
    return tuple(
        replace(fault, lasts_s=30.0 if fault.kind is Kind.NODE_CRASH else draw.uniform(0.1, HARMLESS_S))
        for fault in faults
        if fault.kind is not Kind.NODE_CRASH or fault.node != setup.names[0]
    )


def _fault(kind: Kind, setup: Setup, draw: random.Random) -> Fault:
    nodes = setup.names
    is_apart = kind in _OF_NETWORK and len(nodes) > 1 and not setup.is_elected  # the leader is on the network's side
    node = draw.choice(nodes[1:] if is_apart else nodes)
    local_rank = draw.randrange(setup.rules.local_world_size)
    at_s = draw.choice([draw.uniform(0, 3), *[draw.uniform(0, setup.horizon_s)] * 3])
    other = draw.choice([each for each in nodes if each != node]) if kind in _OF_PAIR else ""
    return Fault(at_s, kind, node, local_rank, _lasts_s(kind, draw), other)


def _lasts_s(kind: Kind, draw: random.Random) -> float:
    match kind:
        case Kind.RANK_HANG:
            # It may end around the moment when it is found.
            return draw.choice([FOREVER_S, FOREVER_S, LIMIT_S + draw.uniform(-1, 1)])
        case Kind.SPAWNER_LATE:
            return draw.choice([5.0, 100.0, 700.0])
        case Kind.SPAWNER_SILENT | Kind.SPAWNER_UNKILLABLE:
            return draw.choice([draw.uniform(0, 60), FOREVER_S])
        case Kind.NODE_CRASH:
            return draw.choice([FOREVER_S, draw.uniform(0.5, 4), draw.uniform(5, 60)])
        case Kind.NODE_PAUSE | Kind.SUPERVISOR_PAUSE:
            return draw.choice([draw.uniform(0.1, HARMLESS_S), draw.uniform(0.1, HARMLESS_S), draw.uniform(2, 20)])
        case _ if kind in CUTS:
            return draw.choice([draw.uniform(0.1, HARMLESS_S), draw.uniform(2, 8), draw.uniform(2, 60), FOREVER_S])
        case Kind.BACKEND_CUT | Kind.BACKEND_LOST:
            return draw.choice([draw.uniform(0.1, 4), draw.uniform(1, BACKEND_HARMLESS_S), draw.uniform(10, 100)])
        case Kind.BACKEND_WIPED_UNSEEN:
            return draw.uniform(0.5, UNSEEN_MAX_S)
        case Kind.SLOW_LINK | Kind.BACKEND_SLOW | Kind.ITERATION_UNREADABLE:
            return draw.uniform(1, 60)
        case _:
            return 0.0
