"""How do the private supervisors of several nodes find each other?

They use the script's own store, at its first call. The supervisor on the node of rank 0 leads. Its endpoint and a fresh
secret of the job are stored under the job's name, so the secret is as safe as the store. All ranks open the store, as
they would for the function. Rank 0 keeps it open until the last rank has met the others and then closes it, so that
the script can use its port again.

A store may outlive the ranks, as a file or the store of torchrun's agent does, and keep entries of earlier starts of
the job; no variable tells all nodes which start this is. So rank 0 invents a name for this start and answers each rank
that asks: an answer to one's own question is never an old one.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from worker_client import job_nodes
from worker_client.inprocess.exception import InternalError

PREFIX = "holdfast/meeting/"
PAUSE_S = 0.01  # between two looks for ranks that ask
COME_TIMEOUT_S = 600.0  # from the first rank's arrival to the last

Store = Any  # one of torch's


class NodeMeeting:
    """One rank's part in the meeting."""

    def __init__(self, environment: Mapping[str, str], launch_key: str, open_store: Callable[[], Store]) -> None:
        """Blocks until the ranks of all nodes have arrived. Raises InternalError."""
        local = job_nodes.local_world_size(environment)
        self._world_size = job_nodes.world_size(environment)
        self._rank = int(environment.get("RANK", "0"))
        self._key = f"{PREFIX}{launch_key}/"
        if self._world_size % local:
            raise self._failed(
                f"{self._world_size} ranks can't run on nodes with {local} ranks each; "
                "start the same number on each node"
            )
        self._store: Store = self._tried(open_store)
        self.attempt = self._tried(self._answer_all if self._rank == 0 else self._ask)
        self._key += f"{self.attempt}/"
        self.leader = ""  # its endpoint and the secret, as text
        if self._rank // local != 0:
            self.leader = self._tried(lambda: bytes(self._store.get(f"{self._key}leader")).decode())

    def _ask(self) -> str:
        number = self._store.add(f"{self._key}asked", 1)
        attempt = bytes(self._store.get(f"{self._key}answer/{number}")).decode()
        self._store.add(f"{self._key}{attempt}/came", 1)
        return attempt

    def _answer_all(self) -> str:
        store, key, attempt = self._store, self._key, secrets.token_hex(8)
        deadline_s = monotonic() + COME_TIMEOUT_S
        answered = store.add(f"{key}answered", 0)
        while (came := store.add(f"{key}{attempt}/came", 0)) < self._world_size - 1:
            asked = store.add(f"{key}asked", 0)
            for number in range(answered + 1, asked + 1):
                store.set(f"{key}answer/{number}", attempt)
            store.add(f"{key}answered", asked - answered)
            answered = asked
            if monotonic() >= deadline_s:
                raise RuntimeError(f"{came + 1} of {self._world_size} ranks came within {COME_TIMEOUT_S:g} s")
            _pause()
        return attempt

    def publish(self, leader: str) -> None:
        """Publishes the endpoint for the ranks of the other nodes. Raises InternalError."""
        self._tried(lambda: self._store.set(f"{self._key}leader", leader))

    def conclude(self) -> None:
        """Reports that this rank no longer needs the store. Rank 0 blocks until no rank does. Raises InternalError."""

        def meet() -> None:
            if self._store.add(f"{self._key}met", 1) == self._world_size:
                self._store.set(f"{self._key}all", "met")
            if self._rank == 0:
                self._store.wait([f"{self._key}all"])

        self._tried(meet)
        self._store = None

    def _tried(self, step: Callable[[], Any]) -> Any:  # noqa: ANN401  # what the step returns
        try:
            return step()
        except Exception as error:  # a user's factory may raise anything
            raise self._failed(str(error).split("\n", 1)[0] or type(error).__name__) from error

    @staticmethod
    def _failed(why: str) -> InternalError:
        return InternalError(
            f"cannot bring the private supervisors of this job's nodes together: {why}; check that all ranks reach "
            "MASTER_ADDR and MASTER_PORT, or give a store_factory that opens a store for all of them"
        )


def _pause() -> None:
    """Waits for a moment, because a store can't signal which of many keys is new."""
    threading.Event().wait(PAUSE_S)
