"""When was the script itself seen again after a restart?

That the ranks run again means that their processes exist: a fork takes milliseconds, but the script then imports and
loads what it needs. The first output of a rank, or the start of its client, shows that its script runs. Each node
keeps the first sign of its own ranks for status; the node of rank 0 also publishes it, once per restart.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.facts import JobEvent
from supervisor.core.node import node_messages
from supervisor.core.worker_messages import KillWorkers, LoseWorkers, PrepareWorkers, StopWorkers

NO_SIGN = "no sign of it yet after the restart"

# --- states --------------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    lost_at_s: float | None = None  # since when the job was not running; None: there is nothing to report
    told: str = ""  # the report about this cycle


# --- events --------------------------------------------------------------------------------------------------------

Event = (
    PrepareWorkers | StopWorkers | KillWorkers | LoseWorkers | node_messages.ClientJoined | node_messages.RankPrinted
)

# --- actions -------------------------------------------------------------------------------------------------------

Action = node_messages.Publish
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return State()


def step(
    state: State, event: Event, *, now_s: float, job_id: str, cycle: int, first_rank: int, lost_at_s: float | None
) -> Outcome:
    """Takes one event. `lost_at_s`: since when the job is not running, while the next cycle is prepared."""
    match event:
        case PrepareWorkers():
            return State(lost_at_s), ()
        case StopWorkers() | KillWorkers() | LoseWorkers():
            return State(), ()
        case node_messages.RankPrinted(local_rank=local_rank, at_s=at_s):
            return _seen(state, job_id, cycle, first_rank, local_rank, "output", min(at_s, now_s))
        case node_messages.ClientJoined(local_rank=local_rank):
            return _seen(state, job_id, cycle, first_rank, local_rank, "the client", now_s)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    """Returns None: nothing is waited for."""
    del state


def shown(state: State) -> str:
    """Returns what status says about this cycle's script after a restart; "" if there is nothing to say."""
    return state.told if state.lost_at_s is None else NO_SIGN


def _seen(state: State, job_id: str, cycle: int, first_rank: int, local_rank: int, sign: str, at_s: float) -> Outcome:
    if state.lost_at_s is None:
        return state, ()
    rank = first_rank + local_rank
    took_s = max(at_s - state.lost_at_s, 0.0)
    took = f"{took_s:.2f} s" if took_s < 10 else f"{took_s:.0f} s"
    text = f"first sign of the script after {took}: {sign} of rank {rank}, cycle {cycle}"
    if first_rank != 0:
        return State(told=text), ()
    details = (("took_s", f"{took_s:.3f}"),)
    return State(told=text), (node_messages.Publish(job_id, JobEvent("script_seen", text, cycle, rank, details)),)
