"""What does torchrun ask of a rendezvous backend, and how does ours answer?

This is the supervisor's only module that imports torch: it runs in torchrun's process, which has loaded it. Each round
gets a new TCPStore on a new port, served by the agent of rank 0 at one address of its node: neither agents nor workers
can see a key of an earlier round.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from typing import cast

import torch
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from supervisor.core.elastic.elastic_messages import BeginRound, Refusal, RefuseAgent, ServeRoundStore
from supervisor.errors import ConfigurationError
from supervisor.programs.torchrun import options
from supervisor.programs.torchrun.agent import Agent
from supervisor.programs.torchrun.leader_connection import Unreachable

BACKEND = "holdfast"
AGENTS_PREFIX = "holdfast agents"  # separates the agents' keys from those of the workers
BACKLOG = 4096
REASON_CHARACTERS_MAX = 500

_ERRORS: dict[Refusal, type[RendezvousError]] = {
    Refusal.CLOSED: RendezvousClosedError,
    Refusal.TIMEOUT: RendezvousTimeoutError,
    Refusal.STATE: RendezvousStateError,
    Refusal.SURPLUS: RendezvousGracefulExitError,
}


def create(params: RendezvousParameters) -> RendezvousHandler:
    """Returns the handler for one torchrun. Raises ValueError for a user's mistake."""
    given = options.Given(
        endpoint=params.endpoint or "",
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_address=params.local_addr or "",
        options=cast("dict[str, object]", vars(params)["config"]),
    )
    return HoldfastRendezvous(
        given.run_id, options.read(given, os.environ, host_name=os.uname().nodename, pid=os.getpid())
    )


class HoldfastRendezvous(RendezvousHandler):
    """Handles rounds; see torch.distributed.elastic.rendezvous.RendezvousHandler."""

    def __init__(self, run_id: str, agent_options: options.AgentOptions) -> None:
        self._run_id = run_id
        self._options = agent_options
        self._agent = Agent(agent_options)
        self._store: TCPStore | None = None  # of the newest round; it is served while it is referenced
        self._is_closed = False  # by this node; the leader's answer takes a moment

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Returns that workers use the round's store, too, unless torch's own variable says otherwise."""
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Blocks until this node is in a round. Raises one of torch's errors for a rendezvous."""
        if self._is_closed:
            raise RendezvousClosedError(f"cannot join job {self._run_id}: this node has closed the rendezvous")
        self._agent.join()
        while True:
            match self._agent.next_order():
                case ServeRoundStore(number):
                    self._serve_store(number)
                case BeginRound() as begun:
                    return self._enter(begun)
                case RefuseAgent(refusal, reason):
                    raise _ERRORS[refusal](f"cannot join job {self._run_id}: {reason}")
                case Unreachable(reason):
                    raise RendezvousConnectionError(
                        f"cannot join job {self._run_id}: {reason}; check --rdzv-endpoint, and that its node is up"
                    )

    def is_closed(self) -> bool:
        return self._is_closed or self._agent.closed is not None

    def set_closed(self) -> None:
        self._is_closed = True
        self._agent.close("it was asked to", failed=False)

    def num_nodes_waiting(self) -> int:
        """Costs nothing: the leader reports it. Also 1 if the group is broken: a member is lost or rejoins."""
        return self._agent.waiting

    def shutdown(self) -> bool:
        """Closes the rendezvous, since torchrun calls it at its end. Returns True if the other nodes know."""
        error = sys.exc_info()[1]  # torchrun calls it while it exits
        self._agent.close(_reason(error), failed=error is not None)
        is_heard = self._agent.leave("it has ended", self._options.close_timeout_s)
        self._store = None
        return is_heard

    # --- the store of a round --------------------------------------------------------------------------------------

    def _serve_store(self, number: int) -> None:
        try:
            host = self._agent.own_host()
            self._store = _serve(host, self._timeout)
        except (OSError, RuntimeError, ConfigurationError) as error:
            raise RendezvousStateError(
                f"cannot serve the store of round {number}: {error}; check --local-addr"
            ) from error
        self._agent.answer(number, host, self._store.port)

    def _enter(self, begun: BeginRound) -> RendezvousInfo:
        if begun.rank > 0 or self._store is None:
            self._store = self._reach(begun)
        store = PrefixStore(AGENTS_PREFIX, self._store)
        if self.use_agent_store:
            store_info = RendezvousStoreInfo(begun.host, begun.port)
        else:
            store_info = RendezvousStoreInfo.build(begun.rank, store, local_addr=_own_ip(begun, self._agent))
        return RendezvousInfo(store, begun.rank, begun.world_size, store_info)

    def _reach(self, begun: BeginRound) -> TCPStore:
        try:
            return TCPStore(begun.host, begun.port, is_master=False, timeout=self._timeout)
        except (ValueError, RuntimeError) as error:
            raise RendezvousConnectionError(
                f"cannot reach the store of round {begun.round} at {begun.host}:{begun.port}: {error}; check that no "
                "firewall is between the nodes, and --local-addr on the node of rank 0"
            ) from error

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._options.read_timeout_s)


def _serve(host: str, timeout: timedelta) -> TCPStore:
    """Serves a store at this address alone, on a port that the kernel chooses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=BACKLOG) as listener:
        port = int(listener.getsockname()[1])
        store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=timeout,
            # Before torch 2.8, the libuv store does not accept a socket that listens already.
            use_libuv=tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8), master_listen_fd=listener.fileno(),
        )  # fmt: skip
        listener.detach()  # the store owns it now
        return store


def _own_ip(begun: BeginRound, agent: Agent) -> str:
    return begun.host if begun.rank == 0 else agent.own_host()


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "its workers have ended"
    if isinstance(error, ChildFailedError):
        return "its workers have failed, and it has no restarts left"
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:REASON_CHARACTERS_MAX] if first else type(error).__name__
