"""How does etcd elect the leader of a job, and keep the data that the next leader needs?

There are three keys per job. `leader` belongs to a short lease; the term is the revision at which it was created, and
the number that `era` contains. That number grows with each lead (core/term_numbers.py). `ledger` is written only while
`leader` still belongs to the writer's lease: no other lead has it, even if etcd has gone back to an older state. It
exists, if only empty, from the first lead on. It has no lease, since etcd may revoke all leases at once.
etcd_leftovers.py decides how long it outlives its job, and `era` with it.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
from holdfast_wire import private_files, regular_file
from holdfast_wire.v1 import etcd_pb2 as etcd

from supervisor.core import term_numbers
from supervisor.core.election import first_start
from supervisor.edges.machine.clock import Clock
from supervisor.edges.peers.election.etcd_client import CompactedError, EtcdClient, Login
from supervisor.edges.peers.election.etcd_data_age import DataAge
from supervisor.edges.peers.election.etcd_leftovers import KEPT_S, Leftovers
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, endpoint_of
from supervisor.ports.rendezvous_backend import (
    SURE_S,
    BackendRefusedError,
    BackendUnavailableError,
    Leader,
    LeadLostError,
    Place,
)

DEFAULT_PREFIX = "/holdfast"
RESIGN_S = 2.0
WRITES_MAX = 5
# torch spells these differently for its two etcd backends.
OPTIONS = frozenset(
    {"protocol", "cacert", "ca_cert", "cert", "ssl_cert", "key", "ssl_cert_key", "user", "password_file",
     "etcd_prefix", "prefix", "endpoints"}
)  # fmt: skip


class _Told(msgspec.Struct):
    node: str
    address: str
    ttl_s: float
    above: int = 0  # added to the revision


class _Keys(msgspec.Struct, frozen=True):
    job_id: str
    leader: bytes
    ledger: bytes
    era: bytes


class EtcdLead:
    """The lead of one term; see rendezvous_backend.Lead."""

    def __init__(
        self, client: EtcdClient, keys: _Keys, leftovers: Leftovers, *,
        made_at: int, added: int, ledger_at: int, state: bytes, lease: int, ttl_s: float, held_for_s: float,
        previous_term: int, tidies: bool,
    ) -> None:  # fmt: skip
        self._client = client
        self._keys = keys
        self._leftovers = leftovers
        self._tidies = tidies  # after earlier jobs, once this one has ended
        self._has_ended = False  # the job has ended, and this leader has written so
        self._lease = lease
        self._revision = ledger_at  # of the ledger
        self._added = added
        self.term = made_at + added
        self.state = state
        self.ttl_s = ttl_s
        self.held_for_s = held_for_s
        self.previous_term = previous_term

    async def renew(self) -> None:
        if not await self._client.keep_alive(self._lease):
            raise LeadLostError("its lease has expired in etcd")

    async def write(self, state: bytes, *, is_last: bool = False) -> None:
        """Writes the ledger. An abandoned write may still arrive, but changes nothing once a later one has."""
        if not is_last:
            await self._put(etcd.PutRequest(key=self._keys.ledger, value=state))
            return
        try:
            key, mark = self._leftovers.mark(self._keys.job_id)
            await self._put(etcd.PutRequest(key=self._keys.ledger, value=state), etcd.PutRequest(key=key, value=mark))
            self._has_ended = True
        except BackendRefusedError:  # This user may write only the job's own keys, not the mark. Then etcd removes it.
            lease, _ = await self._client.grant(KEPT_S)
            await self._put(
                etcd.PutRequest(key=self._keys.ledger, value=state, lease=lease),
                etcd.PutRequest(key=self._keys.era, value=_era_of(self._added), lease=lease),
            )

    async def _put(self, *puts: etcd.PutRequest) -> None:
        reads = [etcd.RangeRequest(key=each) for each in (self._keys.leader, self._keys.ledger)]
        for _ in range(WRITES_MAX):
            request = etcd.TxnRequest(
                compare=[_leased(self._keys.leader, self._lease), _changed_at(self._keys.ledger, self._revision)],
                success=[etcd.RequestOp(request_put=each) for each in puts],
                failure=[etcd.RequestOp(request_range=each) for each in reads],
            )
            told = await self._client.txn(request)
            if told.succeeded:
                self._revision = told.header.revision
                return
            leader, ledger = (each.response_range.kvs for each in told.responses)
            if not leader or leader[0].lease != self._lease:
                raise LeadLostError("etcd knows another leader, or none")
            self._revision = ledger[0].mod_revision if ledger else 0
        raise BackendUnavailableError("somebody else writes the ledger of this job all the time")

    async def resign(self) -> None:
        with suppress(BackendUnavailableError, BackendRefusedError), anyio.move_on_after(RESIGN_S):
            await self._client.revoke(self._lease)
            if self._has_ended and self._tidies:
                await self._leftovers.remove_old()


class EtcdBackend:
    """The backend on etcd; see rendezvous_backend.RendezvousBackend."""

    def __init__(
        self,
        place: Place,
        open_client: Callable[[], EtcdClient],
        unix_ns: Callable[[], int],
        *,
        is_jobs_own: bool = False,
    ) -> None:
        """`is_jobs_own`: this etcd began with the job, and ends with it."""
        prefix = place.options.get("etcd_prefix") or place.options.get("prefix") or DEFAULT_PREFIX
        self._prefix = prefix.rstrip("/")
        folder = f"{self._prefix}/{place.job_id}"
        leader, ledger, era = (f"{folder}/{name}".encode() for name in ("leader", "ledger", "era"))
        self._keys = _Keys(place.job_id, leader, ledger, era)
        self._unix_ns = unix_ns
        self._is_jobs_own = is_jobs_own
        self._ttl_s = max(1, round(place.ttl_s))
        self._open_client = open_client
        self._opened: EtcdClient | None = None

    @property
    def _client(self) -> EtcdClient:
        if self._opened is None:
            self._opened = self._open_client()
        return self._opened

    async def try_to_lead(self, node: str, address: str) -> EtcdLead | None:
        return await self.try_to_lead_above(node, address, 0)

    async def try_to_lead_above(self, node: str, address: str, above: int) -> EtcdLead | None:
        reads = [etcd.RangeRequest(key=each) for each in (self._keys.leader, self._keys.era)]
        now = await self._client.txn(etcd.TxnRequest(success=[etcd.RequestOp(request_range=each) for each in reads]))
        leaders, eras = (each.response_range.kvs for each in now.responses)
        if leaders:
            return None
        added, era_at = (_era(eras[0]), eras[0].mod_revision) if eras else (0, 0)
        last_term = era_at + added  # `era` was written when the last lead was made
        part = secrets.randbelow(term_numbers.PARTS)
        added = term_numbers.added_to(now.header.revision, added=added, newest_term=above, part=part)
        leftovers = Leftovers(self._client, self._prefix, self._unix_ns)
        over_at = await leftovers.over_at(self._keys.job_id)
        lease, ttl_s = await self._client.grant(self._ttl_s)
        told = msgspec.json.encode(_Told(node, address, ttl_s, added))
        put = etcd.PutRequest(key=self._keys.leader, value=told, lease=lease)
        read = etcd.RangeRequest(key=self._keys.ledger)
        begin = etcd.TxnRequest(
            compare=[_made_at(self._keys.ledger, 0)],
            success=[etcd.RequestOp(request_put=etcd.PutRequest(key=self._keys.ledger))],
        )
        first, then, last = (
            etcd.RequestOp(request_put=put), etcd.RequestOp(request_range=read), etcd.RequestOp(request_txn=begin)
        )  # fmt: skip
        era = etcd.RequestOp(request_put=etcd.PutRequest(key=self._keys.era, value=_era_of(added)))
        request = etcd.TxnRequest(
            compare=[_made_at(self._keys.leader, 0), _changed_at(self._keys.era, era_at)],
            success=[first, then, last, era],
        )
        answer = await self._client.txn(request)
        if not answer.succeeded:
            await self._client.revoke(lease)
            return None
        kept, made_at = answer.responses[1].response_range.kvs, answer.header.revision
        ledger_at, was_led = (kept[0].mod_revision, kept[0].mod_revision != over_at) if kept else (made_at, False)
        if self._is_jobs_own:
            held_for_s = first_start.HELD_S
        else:
            held_for_s = await DataAge(self._client, self._prefix).held_for_s()
        return EtcdLead(
            self._client, self._keys, leftovers,
            made_at=made_at, added=added, ledger_at=ledger_at, state=kept[0].value if was_led else b"",
            lease=lease, ttl_s=ttl_s, held_for_s=0.0 if was_led else held_for_s,
            previous_term=last_term if was_led and held_for_s >= SURE_S else 0, tidies=not self._is_jobs_own,
        )  # fmt: skip

    async def leader(self) -> Leader | None:
        return (await self._read())[0]

    async def end_lead(self, term: int) -> None:
        found = (await self._client.range(self._keys.leader)).kvs
        if found and leader_in(found[0]).term == term:
            await self._client.remove(self._keys.leader, changed_at=found[0].mod_revision)

    async def leaders(self) -> AsyncGenerator[Leader | None]:
        while True:
            leader, revision = await self._read()
            yield leader
            with suppress(CompactedError):
                async for told in self._client.watch(self._keys.leader, revision + 1):
                    for event in told.events:
                        yield None if event.type == etcd.Event.DELETE else leader_in(event.kv)

    async def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    async def _read(self) -> tuple[Leader | None, int]:
        """Returns the leader, and the revision at which it was read."""
        told = await self._client.range(self._keys.leader)
        return leader_in(told.kvs[0]) if told.kvs else None, told.header.revision


def open_backend(place: Place) -> EtcdBackend:
    """Opens the backend; see rendezvous_backend.BackendFactory."""
    options = place.options
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ValueError(f"etcd has no option {unknown[0]}; it has {', '.join(sorted(OPTIONS))}")
    files = {
        name: options.get(name) or options.get(other, "")
        for name, other in (("cacert", "ca_cert"), ("cert", "ssl_cert"), ("key", "ssl_cert_key"))
    }
    protocol = options.get("protocol", "https" if any(files.values()) else "http")
    if protocol not in ("http", "https"):
        raise ValueError(f"protocol={protocol} is neither http nor https")
    if protocol == "http" and any(files.values()):
        raise ValueError("certificates have no use with protocol=http")
    if bool(files["cert"]) != bool(files["key"]):
        raise ValueError("cert and key go together")
    if bool(options.get("user")) != bool(options.get("password_file")):
        raise ValueError("user and password_file go together")
    others = tuple(endpoint_of(each) for each in options.get("endpoints", "").split("|") if each)
    endpoints = (Endpoint(place.host, place.port), *others)

    def open_client() -> EtcdClient:
        login = Login(options["user"], _password(options["password_file"])) if "user" in options else None
        return EtcdClient(endpoints, tls=_trust(files) if protocol == "https" else None, login=login)

    return EtcdBackend(place, open_client, Clock().unix_ns)


def _trust(files: Mapping[str, str]) -> ssl.SSLContext:
    """Returns whom to trust and what to show: `cacert`, and `cert` with `key`. Without `cacert`: the system's."""
    for path in filter(None, files.values()):
        _read(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        if files["cacert"]:
            context.load_verify_locations(files["cacert"])
        else:
            context.load_default_certs()
        if files["cert"]:
            context.load_cert_chain(files["cert"], files["key"], password="")  # else it would ask the terminal for one
    except (OSError, ValueError) as error:
        raise BackendRefusedError(f"cannot use the certificates of etcd: {error}; check --rdzv-conf") from error
    return context


def _read(path: str) -> bytes:
    try:
        with regular_file.opened(Path(path), follows=True) as file:
            return file.read()
    except OSError as error:
        raise BackendRefusedError(f"cannot read {path}: {error.strerror}; check --rdzv-conf") from error


def _password(path: str) -> str:
    password = _read(path).decode(errors="replace").strip()
    if fault := private_files.secret_fault(Path(path), Path(path).stat()):
        raise BackendRefusedError(f"cannot use the password file {path}: {fault}")
    return password


def _made_at(key: bytes, revision: int) -> etcd.Compare:
    """Compares the key's creation revision; 0: there is no such key."""
    return etcd.Compare(target=etcd.Compare.CREATE, key=key, create_revision=revision)


def _leased(key: bytes, lease: int) -> etcd.Compare:
    """Compares the key's lease."""
    return etcd.Compare(target=etcd.Compare.LEASE, key=key, lease=lease)


def _changed_at(key: bytes, revision: int) -> etcd.Compare:
    """Compares the key's last revision in the same way."""
    return etcd.Compare(target=etcd.Compare.MOD, key=key, mod_revision=revision)


def _era_of(added: int) -> bytes:
    return msgspec.json.encode(added)


def _era(found: etcd.KeyValue) -> int:
    """Returns what was added for the lead before; 0: something else is there, which counts as lost."""
    try:
        return msgspec.json.decode(found.value, type=int)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0


def leader_in(found: etcd.KeyValue) -> Leader:
    try:
        told = msgspec.json.decode(found.value, type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BackendRefusedError(f"etcd has something else under {found.key.decode(errors='replace')}") from None
    return Leader(found.create_revision + told.above, told.node, told.address, told.ttl_s)
