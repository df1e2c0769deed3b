"""How long does the ledger of a job that has ended stay in etcd, and what removes it?

No lease limits it, since etcd may revoke all leases at once, and a node that missed the end would begin the job again.
The last leader of a job leaves a mark under `.ended`, in the transaction that writes the ledger for the last time: so
both have the same revision, until the ledger changes again. The mark says when that was. Whoever ends a job removes
what other jobs have left long before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from supervisor.edges.peers.election.etcd_client import EtcdClient
from supervisor.rendezvous_backend import BackendRefusedError, BackendUnavailableError

FOLDER = ".ended"  # no job has that id: none begins with a dot
KEPT_S = 900  # after the last leader of a job: for nodes that do not know its verdict yet
CLOCKS_DIFFER_MAX_S = 900  # of the nodes: it is kept for so much longer
LOOKED_AT_MAX = 16  # by one leader


class _Mark(msgspec.Struct, frozen=True):
    left_at_unix_s: float


class Leftovers:
    """Of all jobs under one prefix."""

    def __init__(self, client: EtcdClient, prefix: str, unix_ns: Callable[[], int]) -> None:
        self._client = client
        self._prefix = prefix
        self._unix_ns = unix_ns

    def mark(self, job_id: str) -> tuple[bytes, bytes]:
        """Key and value, to be written together with the last ledger of that job."""
        return self._key(job_id), msgspec.json.encode(_Mark(self._now_s()))

    async def over_at(self, job_id: str) -> int:
        """The revision of a ledger that has had its time, even if nobody has removed it yet; -1: there is none."""
        try:
            found = (await self._client.range(self._key(job_id))).kvs
        except BackendRefusedError:  # This user may read the keys of this job alone. Then there is no mark.
            return -1
        return found[0].mod_revision if found and self._is_old(found[0].value) else -1

    async def remove_old(self) -> None:
        """Ledger first: if the mark stays, somebody else comes back to it."""
        with suppress(BackendRefusedError, BackendUnavailableError):
            first, end = self._key(""), f"{self._prefix}/{FOLDER}0".encode()  # "0" comes after "/".
            for found in (await self._client.range(first, end=end, limit=LOOKED_AT_MAX)).kvs:
                if self._is_old(found.value):
                    ledger = f"{self._prefix}/{found.key[len(first) :].decode()}/ledger".encode()
                    await self._client.remove(ledger, changed_at=found.mod_revision)
                    await self._client.remove(found.key, changed_at=found.mod_revision)

    def _key(self, job_id: str) -> bytes:
        return f"{self._prefix}/{FOLDER}/{job_id}".encode()

    def _now_s(self) -> float:
        return self._unix_ns() / 1e9

    def _is_old(self, value: bytes) -> bool:
        try:
            left_at_s = msgspec.json.decode(value, type=_Mark).left_at_unix_s
        except msgspec.MsgspecError:
            return False
        return self._now_s() - left_at_s > KEPT_S + CLOCKS_DIFFER_MAX_S
