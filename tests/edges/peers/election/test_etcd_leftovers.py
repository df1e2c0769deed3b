"""What do ended jobs leave in a real etcd? It stays as long as nodes may ask for it, whatever happens to leases."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import suppress

import anyio
import msgspec
import pytest

from supervisor.edges.peers.election import etcd_leftovers
from supervisor.edges.peers.election.etcd_backend import EtcdBackend, EtcdLead
from supervisor.edges.peers.election.etcd_client import EtcdClient, Login
from supervisor.edges.peers.election.etcd_leftovers import CLOCKS_DIFFER_MAX_S, KEPT_S, Leftovers
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, endpoint_of
from supervisor.ports.rendezvous_backend import BackendUnavailableError, Place
from tests.etcd_server import Etcd, etcd

OPENED: list[EtcdClient] = []
_attempts = itertools.count()  # a failed test leaves its keys to the next attempt
LIMIT_S = 40.0
LONG_S = KEPT_S + CLOCKS_DIFFER_MAX_S + 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Etcd]:
    with etcd(tmp_path_factory.mktemp("etcd")) as started:
        started.ctl("endpoint", "health")
        yield started


@pytest.fixture(autouse=True)
def closing() -> Generator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}-{next(_attempts)}"


class Cluster:
    """Jobs under one prefix, on nodes with one clock."""

    def __init__(self, server: Etcd, prefix: str, login: Login | None = None) -> None:
        self.now_s = 1e9
        self._server, self._prefix, self._login = server, prefix, login

    def _open_client(self) -> EtcdClient:
        client = EtcdClient([endpoint_of(self._server.endpoint)], login=self._login)
        OPENED.append(client)
        return client

    async def lead(self, job_id: str) -> EtcdLead:
        place = Place(job_id, "127.0.0.1", self._server.port, {"etcd_prefix": self._prefix}, ttl_s=20.0)
        backend = EtcdBackend(place, self._open_client, lambda: int(self.now_s * 1e9))
        with anyio.fail_after(LIMIT_S):
            while True:  # on a busy machine, etcd may not answer in time
                with suppress(BackendUnavailableError):
                    if lead := await backend.try_to_lead("a", "a:1"):
                        return lead
                await anyio.sleep(0.1)

    async def end(self, *job_ids: str) -> None:
        for job_id in job_ids:
            lead = await self.lead(job_id)
            await lead.write(b"the end", is_last=True)
            await lead.resign()

    async def found(self, job_id: str) -> bytes:
        lead = await self.lead(job_id)
        await lead.resign()
        return lead.state

    def keys(self) -> set[str]:
        told = self._server.ctl("get", "--prefix", f"{self._prefix}/", "--keys-only")
        others = ("/leader", "/.held", "/era")
        return {each.removeprefix(f"{self._prefix}/") for each in told.split() if not each.endswith(others)}

    def eras(self) -> set[str]:
        """Returns the jobs that have one."""
        told = self._server.ctl("get", "--prefix", f"{self._prefix}/", "--keys-only")
        return {each.split("/")[-2] for each in told.split() if each.endswith("/era")}

    def revoke_all(self) -> None:
        for lease in self._server.ctl("lease", "list").split()[3:]:
            self._server.ctl("lease", "revoke", lease)


async def test_a_revoked_lease_takes_no_end_away_and_it_is_found_for_its_time(server: Etcd, prefix: str):
    cluster = Cluster(server, prefix)
    await cluster.end("one")
    cluster.revoke_all()
    cluster.now_s += LONG_S - 2
    assert await cluster.found("one") == b"the end"
    cluster.now_s += 2
    assert await cluster.found("one") == b"", "as if it was not there any more"
    assert cluster.keys() == {"one/ledger", ".ended/one"}, "nobody has ended a job since"


async def test_who_ends_a_job_removes_what_others_have_left_long_before(server: Etcd, prefix: str):
    cluster = Cluster(server, prefix)
    await cluster.end("old", "older", "again")
    lives = await cluster.lead("lives")
    await lives.write(b"cycle 3")
    cluster.now_s += LONG_S
    goes_on = await cluster.lead("again")
    await goes_on.write(b"cycle 1 of the next run")
    await cluster.end("new")
    left = {"lives/ledger", "again/ledger", "new/ledger", ".ended/new"}
    assert cluster.keys() == left, "the ledger of a job that goes on stays, and needs no mark"
    await goes_on.write(b"cycle 2 of the next run")
    await goes_on.resign()
    assert await cluster.found("again") == b"cycle 2 of the next run"


async def test_an_era_goes_with_the_ledger_of_its_job(server: Etcd, prefix: str):
    cluster = Cluster(server, prefix)
    await cluster.end("old")
    lives = await cluster.lead("lives")
    await lives.write(b"cycle 3")
    assert cluster.eras() == {"old", "lives"}
    cluster.now_s += LONG_S
    await cluster.end("new")
    assert cluster.eras() == {"lives", "new"}


async def test_a_job_that_ends_again_has_all_the_time_again(server: Etcd, prefix: str):
    cluster = Cluster(server, prefix)
    await cluster.end("one")
    cluster.now_s += LONG_S - 10
    await cluster.end("one")
    cluster.now_s += 100
    await cluster.end("two")
    assert await cluster.found("one") == b"the end"


async def test_a_clock_that_is_behind_takes_nothing_away(server: Etcd, prefix: str):
    cluster = Cluster(server, prefix)
    await cluster.end("one")
    cluster.now_s -= 10 * LONG_S
    await cluster.end("two")
    assert await cluster.found("one") == b"the end"


async def test_a_leader_looks_at_a_few_and_skips_what_is_no_mark(
    server: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(etcd_leftovers, "LOOKED_AT_MAX", 3)
    cluster = Cluster(server, prefix)
    server.ctl("put", f"{prefix}/.ended/0", "something else")
    await cluster.end("b", "c", "d")
    cluster.now_s += LONG_S
    await cluster.end("e")
    assert cluster.keys() == {".ended/0", "d/ledger", ".ended/d", "e/ledger", ".ended/e"}
    await cluster.end("f")
    assert cluster.keys() == {".ended/0", "e/ledger", ".ended/e", "f/ledger", ".ended/f"}


async def test_keys_that_are_no_marks_hide_none_however_many(
    server: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(etcd_leftovers, "LOOKED_AT_MAX", 2)
    cluster = Cluster(server, prefix)
    others = {f".ended/{number}" for number in range(5)}
    for other in others:
        server.ctl("put", f"{prefix}/{other}", "something else")
    await cluster.end("old")
    cluster.now_s += LONG_S
    await cluster.end("new")
    assert cluster.keys() == {*others, "new/ledger", ".ended/new"}


async def test_young_marks_of_others_hide_no_old_one(server: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_leftovers, "LOOKED_AT_MAX", 2)
    cluster = Cluster(server, prefix)
    await cluster.end("llama-1", "llama-2")
    cluster.now_s += LONG_S
    await cluster.end("ci-1", "ci-2")
    young = {name for job_id in ("ci-1", "ci-2") for name in (f"{job_id}/ledger", f".ended/{job_id}")}
    assert cluster.keys() == young


async def test_a_mark_whose_ledger_is_gone_is_removed(server: Etcd, prefix: str):
    cluster = Cluster(server, prefix)
    await cluster.end("one")
    server.ctl("del", f"{prefix}/one/ledger")
    cluster.now_s += LONG_S
    await cluster.end("two")
    assert cluster.keys() == {"two/ledger", ".ended/two"}


async def test_a_user_who_may_reach_the_keys_of_one_job_alone_leaves_its_end_with_a_lease(
    tmp_path_factory: pytest.TempPathFactory,
):
    with etcd(tmp_path_factory.mktemp("etcd"), flags=("--bcrypt-cost", "4")) as server:
        for command in ("user add root:secret", "user grant-role root root", "user add own:secret", "role add own",
                        "role grant-permission own readwrite --prefix=true /p/one/", "user grant-role own own",
                        "auth enable"):  # fmt: skip
            server.ctl(*command.split())
        own = Cluster(server, "/p", Login("own", "secret"))
        await own.end("one")
        kept = msgspec.json.decode(server.ctl("--user", "root:secret", "get", "--prefix", "/p/", "-w", "json"))["kvs"]
        assert len(kept) == 2
        assert all("lease" in each for each in kept), "etcd itself removes the ledger and the era"
        assert await own.found("one") == b"the end"


async def test_etcd_that_does_not_answer_stops_no_leader_that_leaves():
    client = EtcdClient([Endpoint("127.0.0.1", 1)])
    await Leftovers(client, "/p", lambda: 0).remove_old()
    client.close()
