"""What makes up a simulated run? The job, its nodes, their clocks and the network between them, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import msgspec

from supervisor.core.facts import HangLimits, JobRules, RendezvousRules, RestartPolicyName, RestartRules

JOB = "job"
LIMIT_S = 5.0  # between heartbeats
HEARTBEAT_S = 1.0
ELECTED_SHARE = 0.4  # of the jobs on several nodes
RELAYED_SHARE = 0.3  # of the jobs on three nodes and more
DRIFT_MAX = 0.01  # a hundred times that of a bad quartz


@dataclass(frozen=True, slots=True)
class Setup:
    seed: int
    names: tuple[str, ...]
    rules: JobRules
    horizon_s: float = 60.0  # faults begin before
    life_s: tuple[float, float] = (15.0, 20.0)  # of a rank without a fault
    delay_max_s: float = 0.3  # of a message
    answer_max_s: float = 0.02  # of a spawner
    iteration_s: float | None = None  # reading the checkpoint's iteration takes this long; None: no file is configured
    is_elected: bool = False  # otherwise the first node leads
    loses_data: bool = False  # most of its faults lose the backend's data, or concern those who know them
    is_wrapped: bool = False  # the ranks' whole script is one wrapped call
    fan_out: int = 0  # how many nodes connect to the leader directly, the others through relays; 0: all
    checks_early_timers: bool = True
    clocks: tuple[tuple[float, float], ...] = field(default=())  # offset, rate


def node_names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number:04}" for number in range(count))


def draw_setup(seed: int, *, nodes: int | None = None, loses_data: bool = False) -> Setup:
    """Draws a setup. `nodes` None: usually a few, sometimes fifty. `loses_data`: the leader is elected."""
    draw = random.Random(f"setup {seed}")
    drawn = 50 if draw.random() < 0.01 else draw.choice([1, 1, 2, 2, 3, 3, 3, 4, 5])
    count = nodes or (max(2, drawn) if loses_data else drawn)
    names = node_names(count)
    min_nodes = max(1, count - draw.choice([0, 0, 1, 1, 2]))
    is_elected = (draw.random() < ELECTED_SHARE or loses_data) and count > 1
    rules = JobRules(
        JOB,
        local_world_size=draw.choice([1, 2, 2, 4]) if count < 10 else 1,
        hang_limits=HangLimits(initial_heartbeat_s=LIMIT_S, heartbeat_s=LIMIT_S),
        restart=RestartRules(
            policy=draw.choice([*RestartPolicyName, RestartPolicyName.ANY_FAILED]),
            max_restarts=draw.choice([0, 1, 2, 3, 5, 10]),
            min_nodes=min_nodes,
            max_no_progress_cycles=draw.choice([0, 0, 3]),
        ),
        rendezvous=RendezvousRules(
            max_nodes=count if is_elected else draw.choice([count, count, min_nodes]),
            join_timeout_s=draw.choice([60.0, 60.0 if is_elected else 900.0]),
            keep_ranks=draw.random() < 0.3,
            elastic=draw.random() < 0.2,
        ),
        rank_termination_signal=draw.choice([9, 15]),
        completion_grace_s=draw.choice([None, None, 40.0]),
        prepares_ahead=draw.random() < 0.7,
    )
    return Setup(
        seed,
        names,
        rules,
        horizon_s=(horizon_s := draw.choice([20.0, 60.0, 200.0])),
        life_s=draw.choice([(15.0, 20.0), (horizon_s - 15.0, horizon_s)]),
        delay_max_s=draw.choice([0.0, 0.05, 0.3]),
        answer_max_s=draw.choice([0.02, 0.02, 0.2, 2.0]),
        iteration_s=draw.choice([None, 0.0, 0.5]),
        is_elected=is_elected,
        loses_data=loses_data,
        fan_out=_draw_fan_out(seed, count),
        clocks=tuple((draw.uniform(0, 1e6), 1 + draw.uniform(-DRIFT_MAX, DRIFT_MAX)) for _ in names),
    )


def _draw_fan_out(seed: int, count: int) -> int:
    draw = random.Random(f"relays {seed}")
    return draw.choice([1, 1, 2]) if count > 2 and draw.random() < RELAYED_SHARE else 0


def draw_wrapped_setup(seed: int, *, nodes: int | None = None) -> Setup:
    """Draws a job of nodes and spares whose ranks are in a wrapped call. `nodes` None: three to five."""
    draw = random.Random(f"wrapped setup {seed}")
    drawn = draw.choice([3, 3, 4, 5])
    count = nodes or drawn
    setup = draw_setup(seed, nodes=count)
    restart = msgspec.structs.replace(
        setup.rules.restart,
        min_nodes=max(1, count - draw.choice([0, 1, 1, 2])),
        max_restarts=draw.choice([1, 3, 5, 10]),
        max_no_progress_cycles=0,
    )
    rendezvous = msgspec.structs.replace(setup.rules.rendezvous, max_nodes=count, join_timeout_s=60.0)
    rules = msgspec.structs.replace(setup.rules, restart=restart, rendezvous=rendezvous)
    return replace(setup, rules=rules, is_wrapped=True, horizon_s=20.0, life_s=(15.0, 20.0), iteration_s=None)


def large_setup(seed: int, *, nodes: int, faults: int) -> Setup:
    """Many nodes for a long time, with a fault every 20 s; their ranks train until all faults are over."""
    horizon_s = 20.0 * faults
    spares = max(1, nodes // 20)
    rules = JobRules(
        JOB,
        local_world_size=1,
        hang_limits=HangLimits(heartbeat_s=2700.0),
        restart=RestartRules(max_restarts=10 * faults, min_nodes=nodes - spares),
        rendezvous=RendezvousRules(max_nodes=nodes),
        prepares_ahead=True,
    )
    draw = random.Random(f"large {seed}")
    return Setup(
        seed,
        node_names(nodes),
        rules,
        horizon_s=horizon_s,
        life_s=(horizon_s, horizon_s),
        delay_max_s=0.01,
        checks_early_timers=False,
        clocks=tuple((draw.uniform(0, 1e6), 1 + draw.uniform(-DRIFT_MAX, DRIFT_MAX)) for _ in range(nodes)),
    )
