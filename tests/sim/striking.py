"""What does each fault of a schedule do to a simulated world?"""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING

from supervisor.core.node import node_messages
from tests.sim.faults import FOREVER_S, REQUESTS, Fault, Kind
from tests.sim.setup import HEARTBEAT_S, JOB

if TYPE_CHECKING:
    from tests.sim.backend import Backend
    from tests.sim.host import Host
    from tests.sim.processes import Rank
    from tests.sim.world import World

REPLACED_S = 0.3  # a process that has ended
DEFECT = "Holdfast hit a defect of its own"

_WAITING = frozenset({
    Kind.TERM_IGNORED, Kind.SPAWNER_FAILS, Kind.SPAWNER_LATE, Kind.STORE_FAILS, Kind.SPAWN_FAILS, Kind.EVIDENCE_ABSENT,
})  # fmt: skip


def strike(world: World, fault: Fault) -> None:
    host = world.hosts[fault.node]
    if host.is_dead or host.verdict is not None:
        return
    if fault.kind in REQUESTS or fault.kind is Kind.DEFECT:
        if (request := _request(host, fault)) is not None:
            world.note_fault(fault)  # before the node acts on it
            host.take(request)
        return
    if fault.kind in _WAITING:
        struck = _spoil(host, fault)
    elif fault.kind.startswith("rank_"):
        rank = host.processes.living(fault.local_rank)
        struck = rank is not None and not rank.is_doomed and _strike_rank(world, rank, fault)
    elif fault.kind.startswith(("spawner_", "store_")):
        struck = _strike_spawner(world, host, fault)
    else:
        struck = _strike_node(world, host, fault)
    if struck:
        world.note_fault(fault)


def _request(host: Host, fault: Fault) -> node_messages.ReportOfJob | node_messages.JobAbandoned | None:
    """Returns what a person or a rank asks for, or a defect leads to; None: nobody is there to ask."""
    if JOB not in host.state.jobs:
        return None
    match fault.kind:
        case Kind.STOP:
            return node_messages.StopRequested(JOB, "a person asked", 0)
        case Kind.STOP_BY_SIGNAL:
            return node_messages.StopRequested(JOB, "Ctrl-C", int(signals.SIGINT))
        case Kind.DRAIN:
            return node_messages.LeaveRequested(JOB, "a person drains it")
        case Kind.NODE_ENDS | Kind.NODE_LEAVES:
            leaves = fault.kind is Kind.NODE_LEAVES
            return node_messages.StopRequested(JOB, "SIGTERM", int(signals.SIGTERM), of_node=True, leaves=leaves)
        case Kind.DEFECT:
            return node_messages.JobAbandoned(JOB, DEFECT)
        case Kind.RESTART:
            return node_messages.RestartRequested(JOB, "a person asked")
        case Kind.EXCLUDE | Kind.SHUTDOWN:
            rank = host.processes.living(fault.local_rank)
            if rank is None:
                return None
            wanted = "exclude_this_node" if fault.kind is Kind.EXCLUDE else "shutdown_workload"
            return node_messages.ControlRequested(JOB, rank.cycle, rank.local_rank, wanted, "bad loss")
        case _:
            raise AssertionError(fault)


def _spoil(host: Host, fault: Fault) -> bool:
    spoilt = host.processes.spoilt
    match fault.kind:
        case Kind.TERM_IGNORED:
            spoilt.term_ignored = True
        case Kind.SPAWNER_FAILS:
            spoilt.start_fails = True
        case Kind.SPAWNER_LATE:
            spoilt.start_takes_s = fault.lasts_s
        case Kind.STORE_FAILS:
            spoilt.store_fails = True
        case Kind.SPAWN_FAILS:
            spoilt.spawn_fails_from = fault.local_rank
        case Kind.EVIDENCE_ABSENT:
            spoilt.evidence_absent = True
        case _:
            raise AssertionError(fault)
    return True


def _strike_rank(world: World, rank: Rank, fault: Fault) -> bool:
    if fault.kind is Kind.RANK_STUCK and not rank.has_client:
        return False  # nobody watches it yet
    rank.is_doomed = True
    processes = rank.host.processes
    match fault.kind:
        case Kind.RANK_CRASH:
            code, signal = world.random.choice([(1, None), (None, 11), (None, 6)])
            processes.exit(rank, code=code, signal=signal)
        case Kind.RANK_TERMINATED:
            processes.exit(rank, signal=int(signals.SIGTERM))
        case Kind.RANK_HANG:
            rank.silent_from_s = world.timeline.now_s
            if fault.lasts_s < FOREVER_S:
                world.timeline.after(fault.lasts_s, lambda: processes.exit(rank, code=0))
        case Kind.RANK_STUCK:
            rank.silent_from_s = world.timeline.now_s
            rank.is_stuck = True
        case _:
            raise AssertionError(fault)
    return True


def _strike_spawner(world: World, host: Host, fault: Fault) -> bool:
    processes = host.processes
    if not processes.spawner:
        return False
    match fault.kind:
        case Kind.SPAWNER_DIES:
            processes.lose_spawner("it was killed by SIGKILL", processes.spawner)
        case Kind.SPAWNER_SILENT | Kind.SPAWNER_UNKILLABLE:
            processes.silent_until_s = max(processes.silent_until_s, world.timeline.now_s + fault.lasts_s)
            processes.spoilt.kill_fails = fault.kind is Kind.SPAWNER_UNKILLABLE
        case Kind.STORE_DIES:
            cycle = host.state.jobs[JOB].job.cycle
            runs = any(rank.alive and rank.cycle == cycle and rank.rank < 1 for rank in processes.ranks)
            if not runs:
                return False
            processes.by_spawner(lambda: host.take(node_messages.StoreFailed(JOB, cycle, "the store host was killed")))
        case _:
            raise AssertionError(fault)
    return True


def _strike_node(world: World, host: Host, fault: Fault) -> bool:
    until_s = world.timeline.now_s + fault.lasts_s
    match fault.kind:
        case Kind.NODE_CRASH:
            crash(world, host, comes_back_after_s=fault.lasts_s)
        case Kind.SUPERVISOR_PAUSE:
            pause(world, host, until_s)
        case Kind.NODE_PAUSE:
            pause(world, host, until_s)
            _freeze(world, host, until_s)
        case Kind.ITERATION_UNREADABLE:
            host.iteration_unreadable_until_s = until_s
        case Kind.PAIR_CUT | Kind.PAIR_CUT_ONE_WAY:
            _cut_pair(host, world.hosts[fault.other], until_s, is_both=fault.kind is Kind.PAIR_CUT)
        case Kind.CUT | Kind.CUT_UP | Kind.CUT_DOWN | Kind.PEERS_CUT | Kind.SLOW_LINK:
            return _disturb(host, fault, until_s)
        case (
            Kind.BACKEND_CUT | Kind.BACKEND_LOST | Kind.BACKEND_SLOW | Kind.LEASES_REVOKED | Kind.BACKEND_WIPED
            | Kind.BACKEND_RESTORED | Kind.BACKEND_WIPED_UNSEEN
        ):  # fmt: skip
            return _strike_backend(world, host, fault, until_s)
        case _:
            raise AssertionError(fault)
    return True


def _disturb(host: Host, fault: Fault, until_s: float) -> bool:
    if host.voter is None and (host.client is None or fault.kind is Kind.PEERS_CUT):
        return False
    reach = host.reach
    match fault.kind:
        case Kind.CUT:
            reach.sends_from_s, reach.hears_from_s = max(reach.sends_from_s, until_s), max(reach.hears_from_s, until_s)
        case Kind.CUT_UP:
            reach.sends_from_s = max(reach.sends_from_s, until_s)
        case Kind.CUT_DOWN:
            reach.hears_from_s = max(reach.hears_from_s, until_s)
        case Kind.PEERS_CUT:
            reach.nodes_from_s = max(reach.nodes_from_s, until_s)
        case _:
            reach.slow_until_s = max(reach.slow_until_s, until_s)
            return True
    _doubt(host)
    return True


def _cut_pair(host: Host, other: Host, until_s: float, *, is_both: bool) -> None:
    for sender, receiver in ((host, other), (other, host))[: 2 if is_both else 1]:
        cut = sender.reach.sends_to_from_s
        cut[receiver.name] = max(cut.get(receiver.name, 0.0), until_s)
    for each in (host, other):
        _doubt(each)


def _strike_backend(world: World, host: Host, fault: Fault, until_s: float) -> bool:
    if world.backend is None:
        return False
    match fault.kind:
        case Kind.BACKEND_CUT:
            host.reach.backend_from_s = max(host.reach.backend_from_s, until_s)
            _doubt(host)
        case Kind.BACKEND_LOST:
            world.backend.lose(until_s)
        case Kind.BACKEND_SLOW:
            world.backend.slow_down(until_s)
        case Kind.BACKEND_WIPED | Kind.BACKEND_RESTORED | Kind.BACKEND_WIPED_UNSEEN if world.had_ended:
            return False  # a node that missed the end can't know it any more
        case Kind.BACKEND_WIPED:
            return world.backend.wipe()
        case Kind.BACKEND_WIPED_UNSEEN:
            return _wipe_unseen(world, world.backend, host, until_s)
        case Kind.BACKEND_RESTORED:
            return world.backend.restore()
        case _:
            return world.backend.revoke()
    return True


def _wipe_unseen(world: World, backend: Backend, host: Host, until_s: float) -> bool:
    """Loses the data while a process is replaced by one that knows nothing, and no other process sees the backend."""
    if not backend.wipe():
        return False
    for other in world.hosts.values():
        if other is not host:
            other.reach.backend_from_s = max(other.reach.backend_from_s, until_s)
            _doubt(other)
    crash(world, host, comes_back_after_s=REPLACED_S)
    return True


def _doubt(host: Host) -> None:
    """Plays its messages from now on."""
    for link in list(host.links):
        link.disturb()
    if host.voter is not None and host.voter.leader_term is not None:
        host.voter.leader_term.disturb()


def pause(world: World, host: Host, until_s: float) -> None:
    _doubt(host)
    host.pause(until_s)


def crash(world: World, host: Host, *, comes_back_after_s: float) -> None:
    """Cuts the machine's power; nobody reports that."""
    host.die()
    host.processes.end_all()
    world.bury(host)
    _doubt(host)
    if comes_back_after_s < FOREVER_S and (host is not world.leader or host.voter is not None):
        world.timeline.after(comes_back_after_s, lambda: _come_back(world, host))


def _come_back(world: World, host: Host) -> None:
    """Restarts it: the leader sees another node, and considers the old one lost."""
    if host.voter is not None:
        world.replace(host.name)
    elif not host.client or not world.leader.is_running:
        return
    elif not host.client.is_path_open:
        world.timeline.after(1.0, lambda: _come_back(world, host))
    elif not host.client.server.is_taken(host.name):
        world.replace(host.name)


def _freeze(world: World, host: Host, until_s: float) -> None:
    processes = host.processes
    processes.frozen_until_s = until_s
    for rank in processes.ranks:
        if rank.alive and rank.silent_from_s is None:
            rank.silent_from_s = world.timeline.now_s
            world.timeline.at(until_s + world.random.uniform(0.0, HEARTBEAT_S), lambda rank=rank: _thaw(world, rank))


def _thaw(world: World, rank: Rank) -> None:
    if rank.alive and not rank.is_doomed:
        rank.silent_from_s = None
        life_s = world.random.uniform(*world.setup.life_s)
        world.timeline.at(rank.started_at_s + life_s, lambda: rank.host.processes.finish(rank))
