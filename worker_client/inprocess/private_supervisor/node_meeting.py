"""How do the private supervisors of several nodes find each other? Through the script's own store, at its first call.

The supervisor on the node of rank 0 leads. Its endpoint and a fresh secret of the job are a key of the store, under the
name of the job, so the secret is as safe as the store. All ranks open the store, as they would for the function, and
rank 0 keeps it open until the last of them has met the others. Then it is closed: its port is the script's again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from worker_client import job_nodes
from worker_client.inprocess.exception import InternalError

PREFIX = "holdfast/meeting/"

Store = Any  # one of torch's


class NodeMeeting:
    """One rank's part in it."""

    def __init__(self, environment: Mapping[str, str], job_key: str, open_store: Callable[[], Store]) -> None:
        """Blocks until the store is open. Raises InternalError."""
        local = job_nodes.local_world_size(environment)
        self._world_size = job_nodes.world_size(environment)
        self._rank = int(environment.get("RANK", "0"))
        self._key = f"{PREFIX}{job_key}/"
        if self._world_size % local:
            raise self._failed(
                f"{self._world_size} ranks can't be on nodes with {local} ranks each; start as many on each"
            )
        self._store: Store = self._tried(open_store)
        self.leader = ""  # where it serves, and the secret, as text
        if self._rank // local != 0:
            self.leader = self._tried(lambda: bytes(self._store.get(f"{self._key}leader")).decode())

    def publish(self, leader: str) -> None:
        """For the ranks of the other nodes. Raises InternalError."""
        self._tried(lambda: self._store.set(f"{self._key}leader", leader))

    def conclude(self) -> None:
        """This rank needs the store no more. On rank 0: blocks until that is so on all. Raises InternalError."""

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
        except Exception as error:  # a factory of the user's may raise anything
            raise self._failed(str(error).split("\n", 1)[0] or type(error).__name__) from error

    @staticmethod
    def _failed(why: str) -> InternalError:
        return InternalError(
            f"cannot bring the private supervisors of this job's nodes together: {why}; check that all ranks reach "
            "MASTER_ADDR and MASTER_PORT, or give a store_factory that opens a store for all of them"
        )
