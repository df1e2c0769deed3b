"""What do torchrun's agents report to the leader of their rendezvous, and what does the leader order them to do?

These records are the vocabulary of elastic_round.py. An agent is one torchrun process; torch also calls it a node.
"""

from __future__ import annotations

import enum

import msgspec


class ElasticRules(msgspec.Struct, frozen=True):
    """What all agents of a job must agree on, but for how long each waits."""

    min_nodes: int
    max_nodes: int
    join_timeout_s: float
    last_call_timeout_s: float


class Refusal(enum.Enum):
    """Why an agent does not get into a round: one value for each of torch's errors."""

    CLOSED = "closed"
    TIMEOUT = "timeout"
    STATE = "state"
    SURPLUS = "surplus"  # the job has ended well without this agent


# --- reports -------------------------------------------------------------------------------------------------------


class AgentJoined(msgspec.Struct, frozen=True):
    """The agent's workers are stopped, and it waits for the next round."""

    node: str
    rules: ElasticRules
    order: int = -1  # its place in the scheduler's order; -1: none


class AgentLeft(msgspec.Struct, frozen=True):
    """The agent no longer takes part."""

    node: str
    reason: str


class AgentClosed(msgspec.Struct, frozen=True):
    """The agent reports that there must be no further round."""

    node: str
    reason: str
    failed: bool  # the job can't succeed any more


class RoundStoreServed(msgspec.Struct, frozen=True):
    """The agent of rank 0 serves a fresh store for this round here."""

    node: str
    round: int
    host: str
    port: int


class AgentLost(msgspec.Struct, frozen=True):
    """An agent has been silent for so long that it is considered dead."""

    node: str
    reason: str


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


ElasticReport = AgentJoined | AgentLeft | AgentClosed | RoundStoreServed
Event = ElasticReport | AgentLost | DeadlineReached

# --- orders --------------------------------------------------------------------------------------------------------


class ServeRoundStore(msgspec.Struct, frozen=True):
    """The agent will have rank 0 and serves the store of this round."""

    round: int


class BeginRound(msgspec.Struct, frozen=True):
    """The rendezvous is complete."""

    round: int
    rank: int
    world_size: int
    host: str
    port: int
    reason: str


class TellWaiting(msgspec.Struct, frozen=True):
    """Says how many agents wait for the members of the running round to join another one."""

    waiting: int
    reason: str


class TellSpares(msgspec.Struct, frozen=True):
    """Says whether agents wait that can take the place of a member of the running round."""

    exist: bool


class TellClosed(msgspec.Struct, frozen=True):
    """There will be no further round."""

    reason: str
    failed: bool


class RefuseAgent(msgspec.Struct, frozen=True):
    """The agent is in no round and must stop waiting for one."""

    refusal: Refusal
    reason: str


ElasticOrder = ServeRoundStore | BeginRound | TellWaiting | TellSpares | TellClosed | RefuseAgent


class Send(msgspec.Struct, frozen=True):
    """An order to one agent."""

    node: str
    order: ElasticOrder


Action = Send
