"""How long does the ledger of an ended job stay in etcd, and what removes it?

No lease limits it, since etcd may revoke all leases at once, and a node that missed the end would begin the job again.
The last leader of a job leaves a mark under `.ended`, in the transaction that writes the ledger for the last time: both
have the same revision until the ledger changes again. The mark contains the time. A leader that ends a job also removes
what other jobs left long before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from supervisor.edges.peers.election.etcd_client import EtcdClient
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError

FOLDER = ".ended"  # no job has this id: ids do not begin with a dot
KEPT_S = 900  # after the job's last leader: for nodes that do not know its verdict yet
CLOCKS_DIFFER_MAX_S = 900  # between nodes: the ledger is kept for this much longer
LOOKED_AT_MAX = 16  # marks that one leader checks
KEYS_READ_MAX = 4096  # for the oldest of them, if other keys come first


class _Mark(msgspec.Struct, frozen=True):
    left_at_unix_s: float


class Leftovers:
    """The leftovers of all jobs under one prefix."""

    def __init__(self, client: EtcdClient, prefix: str, unix_ns: Callable[[], int]) -> None:
        self._client = client
        self._prefix = prefix
        self._unix_ns = unix_ns

    def mark(self, job_id: str) -> tuple[bytes, bytes]:
        """Returns key and value of the mark, to be written together with the job's last ledger."""
        return self._key(job_id), msgspec.json.encode(_Mark(self._now_s()))

    async def over_at(self, job_id: str) -> int:
        """Returns the revision of a ledger whose time is over, even if it was not removed yet; -1: there is none."""
        try:
            found = (await self._client.range(self._key(job_id))).kvs
        except BackendRefusedError:  # This user may read only this job's keys. Then there is no mark.
            return -1
        return found[0].mod_revision if found and self._is_old(found[0].value) else -1

    async def remove_old(self) -> None:
        """Removes the oldest ledgers and their marks. Ledger first: if the mark stays, another leader tries again.

        Marks in the order of their keys would hide one job's behind those of others that end more often.
        """
        with suppress(BackendRefusedError, BackendUnavailableError):
            first = self._key("")
            for key, revision in await self._oldest_marks():
                folder = f"{self._prefix}/{key[len(first) :].decode()}"
                ledger, era = f"{folder}/ledger".encode(), f"{folder}/era".encode()
                await self._client.remove(ledger, era, changed_at=revision)
                await self._client.remove(key, changed_at=revision)

    async def _oldest_marks(self) -> list[tuple[bytes, int]]:
        """Returns keys and revisions of those of the oldest marks whose time is over.

        Reads on beyond other keys, which nobody removes.
        """
        first, end = self._key(""), f"{self._prefix}/{FOLDER}0".encode()  # "0" is the next character after "/"
        count = LOOKED_AT_MAX
        while True:
            found = (await self._client.range(first, end=end, oldest=count)).kvs
            marks = [each for each in found if _left_at_s(each.value) is not None]
            if marks or len(found) < count or count >= KEYS_READ_MAX:
                return [(each.key, each.mod_revision) for each in marks[:LOOKED_AT_MAX] if self._is_old(each.value)]
            count *= 2

    def _key(self, job_id: str) -> bytes:
        return f"{self._prefix}/{FOLDER}/{job_id}".encode()

    def _now_s(self) -> float:
        return self._unix_ns() / 1e9

    def _is_old(self, value: bytes) -> bool:
        left_at_s = _left_at_s(value)
        return left_at_s is not None and self._now_s() - left_at_s > KEPT_S + CLOCKS_DIFFER_MAX_S


def _left_at_s(value: bytes) -> float | None:
    """Returns the time in a mark; None: it is none."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(value, type=_Mark).left_at_unix_s
    return None
