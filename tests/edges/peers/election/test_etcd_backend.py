"""A real etcd elects a leader: it is renewed, lost and followed by another, whatever happens to etcd meanwhile."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
import pytest

from supervisor.core.term_numbers import ERA
from supervisor.edges.peers.election import etcd_backend
from supervisor.edges.peers.election.etcd_backend import EtcdBackend, EtcdLead
from supervisor.ports.rendezvous_backend import (
    BackendRefusedError,
    BackendUnavailableError,
    Leader,
    LeadLostError,
    Place,
)
from tests.etcd_proxy import etcd_proxy
from tests.etcd_server import Etcd, etcd

LIMIT_S = 30.0
Answer = TypeVar("Answer")
_jobs = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Etcd]:
    with etcd(tmp_path_factory.mktemp("etcd")) as started:
        started.ctl("endpoint", "health")
        yield started


def place(server: Etcd, **options: str) -> Place:
    return Place(f"job{next(_jobs)}", "127.0.0.1", server.port, options, ttl_s=2.0)


async def elected(backend: EtcdBackend, node: str = "a") -> EtcdLead:
    """Leads as soon as nobody else does."""
    with anyio.fail_after(LIMIT_S):
        while True:
            if lead := await backend.try_to_lead(node, f"{node}:1"):
                return lead
            await anyio.sleep(0.05)


async def until_leader(leaders: AsyncGenerator[Leader | None], node: str | None) -> None:
    with anyio.fail_after(LIMIT_S):
        async for leader in leaders:
            if (leader.node if leader is not None else None) == node:
                return


async def test_one_leads_and_what_it_writes_is_there_for_the_next(server: Etcd):
    where = place(server)
    a, b = etcd_backend.open_backend(where), etcd_backend.open_backend(where)
    first = await elected(a)
    assert (first.state, first.ttl_s) == (b"", 2)
    assert await b.try_to_lead("b", "b:1") is None
    assert await b.leader() == Leader(first.term, "a", "a:1", 2.0)
    await first.write(b"cycle 3")
    await first.renew()
    await first.resign()
    second = await elected(b, "b")
    assert second.state == b"cycle 3"
    assert second.term > first.term
    with pytest.raises(LeadLostError):
        await first.write(b"cycle 4")
    with pytest.raises(LeadLostError):
        await first.renew()
    await second.resign()
    for backend in (a, b):
        await backend.close()


async def test_a_lead_knows_the_term_before_it_once_etcd_has_surely_lost_nothing(
    server: Etcd, monkeypatch: pytest.MonkeyPatch
):
    backend = etcd_backend.open_backend(place(server))
    last_term = 0
    for sure_s, knows in ((1e9, False), (1e9, False), (0.0, True)):
        monkeypatch.setattr(etcd_backend, "SURE_S", sure_s)
        lead = await elected(backend)
        assert lead.previous_term == (last_term if knows else 0)
        await lead.write(b"cycle 3")
        await lead.resign()
        last_term = lead.term
    await backend.close()


async def test_a_lead_whose_process_has_died_is_ended_and_no_other(server: Etcd):
    backend = etcd_backend.open_backend(place(server))
    first = await elected(backend)
    await first.write(b"cycle 3")
    await backend.end_lead(first.term)
    second = await backend.try_to_lead("a", "a:1")
    assert second is not None
    assert second.state == b"cycle 3"
    await backend.end_lead(first.term)
    await second.renew()
    leader = await backend.leader()
    assert leader is not None
    assert leader.term == second.term
    await second.resign()
    await backend.close()


async def test_terms_only_grow_for_nodes_that_know_a_later_one_although_etcd_has_lost_its_data(server: Etcd):
    where = place(server)
    a = etcd_backend.open_backend(where)
    first = await a.try_to_lead_above("a", "a:1", 10**9)
    assert first is not None
    assert first.term > ERA, "etcd has not counted so far"
    assert await a.leader() == Leader(first.term, "a", "a:1", 2.0)
    await first.write(b"cycle 3")
    await first.resign()
    second = await a.try_to_lead_above("a", "a:1", 10**9)  # by a node that has not seen the first
    assert second is not None
    assert second.term > first.term
    await a.end_lead(first.term)
    await second.write(b"cycle 4")
    await a.end_lead(second.term)
    assert await a.leader() is None
    third = await a.try_to_lead("a", "a:1")
    assert third is not None
    assert third.term > second.term, "a newcomer's"
    await third.resign()
    server.ctl("del", f"/holdfast/{where.job_id}/era")
    fourth = await a.try_to_lead("a", "a:1")
    assert fourth is not None
    assert fourth.term < first.term, "a newcomer's that nothing tells; it gives up the lead once a node does"
    await fourth.resign()
    await a.close()


async def test_a_leader_of_whom_a_restored_etcd_knows_nothing_leads_and_writes_no_more(tmp_path: Path):
    """The next lead is made at the same revision."""
    with etcd(tmp_path / "etcd") as server:
        server.ctl("endpoint", "health")
        where = place(server)
        a, b = etcd_backend.open_backend(where), etcd_backend.open_backend(where)
        first = await elected_at_last(a, "a")
        await first.write(b"cycle 3")
        await first.resign()
        backup = tmp_path / "backup"
        server.ctl("snapshot", "save", str(backup))
        forgotten = await elected_at_last(a, "a")
        at = made_at(server, where)
        server.restore(backup)
        server.start()
        second = await elected_at_last(b, "b")
        while made_at(server, where) < at:  # etcd may have done something of its own before
            await second.resign()
            second = await elected_at_last(b, "b")
        assert second.term != forgotten.term
        with pytest.raises(LeadLostError):
            await at_last(lambda: forgotten.write(b"cycle 4"))
        with pytest.raises(LeadLostError):
            await at_last(forgotten.renew)
        await at_last(lambda: second.write(b"cycle 5"))
        assert (await b.leader()) == Leader(second.term, "b", "b:1", 2.0)
        for backend in (a, b):
            await backend.close()


def made_at(server: Etcd, where: Place) -> int:
    """Returns the revision at which the leader was made."""
    told = msgspec.json.decode(server.ctl("get", f"/holdfast/{where.job_id}/leader", "-w", "json"))
    return int(told["kvs"][0]["create_revision"])


async def test_what_is_no_era_counts_as_lost(server: Etcd):
    where = place(server)
    server.ctl("put", f"/holdfast/{where.job_id}/era", "something else")
    a = etcd_backend.open_backend(where)
    lead = await a.try_to_lead_above("a", "a:1", ERA)
    assert lead is not None
    assert lead.term > ERA
    await lead.resign()
    second = await elected(a)
    assert second.term > lead.term
    await second.resign()
    await a.close()


async def test_a_leader_that_is_not_heard_loses_its_lead_and_all_see_it(server: Etcd):
    where = place(server)
    backend = etcd_backend.open_backend(where)
    started_s = anyio.current_time()
    await elected(backend)
    async with aclosing(backend.leaders()) as leaders:
        await until_leader(leaders, "a")
        await until_leader(leaders, None)
        assert 1.0 < anyio.current_time() - started_s < LIMIT_S
        await elected(backend, "b")
        await until_leader(leaders, "b")
    await backend.close()


async def test_a_revoked_lease_and_a_compacted_history_are_noticed(server: Etcd):
    where = place(server)
    backend = etcd_backend.open_backend(where)
    lead = await elected(backend)
    leases = server.ctl("lease", "list").split()[3:]
    async with aclosing(backend.leaders()) as leaders:
        await until_leader(leaders, "a")
        server.ctl("compact", str(made_at(server, where)))
        for lease in leases:
            server.ctl("lease", "revoke", lease)
        await until_leader(leaders, None)
    with pytest.raises(LeadLostError):
        await lead.renew()
    await backend.close()


async def at_last(what: Callable[[], Coroutine[None, None, Answer]]) -> Answer:
    """Repeats while the backend does not answer, as all its callers do."""
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                return await what()
            except BackendUnavailableError:
                await anyio.sleep(0.05)


async def elected_at_last(backend: EtcdBackend, node: str) -> EtcdLead:
    return await at_last(lambda: elected(backend, node))


async def ask_until_it_fails(backend: EtcdBackend) -> None:
    with anyio.fail_after(LIMIT_S):
        while True:
            await backend.leader()


async def test_etcd_stalls_and_comes_back_and_is_started_again(tmp_path: Path):
    with etcd(tmp_path / "etcd") as server:
        server.ctl("endpoint", "health")
        backend = etcd_backend.open_backend(place(server))
        lead = await elected(backend)
        await lead.write(b"kept")
        server.signal(signal.SIGSTOP)  # its threads stop one after another
        with pytest.raises(BackendUnavailableError):
            await ask_until_it_fails(backend)
        server.signal(signal.SIGCONT)
        lead = await elected_at_last(backend, "a")
        assert lead.state == b"kept"
        server.stop()
        with pytest.raises(BackendUnavailableError):
            await lead.renew()
        server.start()
        assert (await elected_at_last(backend, "b")).state == b"kept"
        await backend.close()


def leads(member: Etcd) -> bool:
    member.ctl("endpoint", "health")  # waits for a leader
    status = msgspec.json.decode(member.ctl("endpoint", "status", "-w", "json"))[0]["Status"]
    return status["leader"] == status["header"]["member_id"]


@contextmanager
def three_members(folder: Path) -> Generator[list[Etcd]]:
    """Yields the members, one that does not lead them first."""
    if shutil.which("etcd") is None:
        pytest.skip("needs etcd: apt-get install etcd-server etcd-client")
    members: list[Etcd] = []
    try:
        for name in ("a", "b", "c"):
            (folder / name).mkdir()
            members.append(Etcd(folder / name, name=name))
        cluster = ",".join(each.cluster for each in members)
        for each in members:
            each.cluster = cluster
            each.start()
        yield sorted(members, key=leads)
    finally:
        for each in members:
            each.stop()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_lead_outlives_the_member_that_its_node_asks(tmp_path: Path, number: signal.Signals):
    with three_members(tmp_path) as (first, *others):
        endpoints = "|".join(each.endpoint for each in others)
        backend = etcd_backend.open_backend(place(first, endpoints=endpoints))
        lead = await elected_at_last(backend, "a")
        await lead.write(b"kept")
        async with aclosing(backend.leaders()) as leaders:
            await until_leader(leaders, "a")
            first.signal(number)
            with anyio.fail_after(lead.ttl_s):  # else somebody else could lead
                for _ in range(2):
                    with suppress(TimeoutError, BackendUnavailableError), anyio.fail_after(0.4 * lead.ttl_s):
                        await lead.renew()
                await lead.renew()
                await lead.write(b"kept on")
        assert await at_last(backend.leader) is not None
        await backend.close()


async def test_too_many_requests_a_compacted_history_and_lost_events(server: Etcd):
    where = place(server)
    async with etcd_proxy(server.endpoint) as proxy:
        there = etcd_backend.open_backend(msgspec.structs.replace(where, port=proxy.port))
        lead = await elected(there)
        proxy.refuses = True
        for refused in (lead.renew(), lead.write(b"x"), there.leader(), there.try_to_lead("b", "b:1")):
            with pytest.raises(BackendUnavailableError, match="too many requests"):
                await refused
        assert proxy.refused >= 4
        proxy.refuses = False
        await lead.renew()
        proxy.compacts = 3
        async with aclosing(there.leaders()) as leaders:
            for _ in range(4):  # each write reads the current state again
                await until_leader(leaders, "a")
            assert not proxy.compacts
            await lead.resign()
            await until_leader(leaders, None)
        proxy.loses_events = True
        async with aclosing(there.leaders()) as leaders:
            await until_leader(leaders, None)
            await elected(there, "b")
            with anyio.move_on_after(1.0):
                await until_leader(leaders, "b")
                raise AssertionError("the proxy has lost no event")
        assert proxy.lost
        told = await there.leader()  # an answer is never stale
        assert told is not None
        assert told.node == "b"
        await there.close()


async def test_a_write_that_was_given_up_and_arrives_late_changes_nothing(server: Etcd):
    backend = etcd_backend.open_backend(place(server))
    lead = await elected(backend)
    await lead.write(b"first")
    stale = lead._revision  # pyright: ignore[reportPrivateUsage]
    await lead.write(b"second")
    lead._revision = stale  # pyright: ignore[reportPrivateUsage]
    await lead.write(b"third")  # it finds that its own earlier write has arrived
    await lead.resign()
    assert (await elected(backend)).state == b"third"
    await backend.close()


def _certificates(folder: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-extfile", "ext", "-out", f"{name}.pem", "-days", "2")  # fmt: skip


async def test_certificates_and_passwords(tmp_path: Path):
    _certificates(tmp_path)
    flags = ["--cert-file", str(tmp_path / "server.pem"), "--key-file", str(tmp_path / "server.key")]
    flags += ["--client-cert-auth", "--trusted-ca-file", str(tmp_path / "ca.pem")]
    trust = [f"--cacert={tmp_path}/ca.pem", f"--cert={tmp_path}/client.pem", f"--key={tmp_path}/client.key"]
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    with etcd(tmp_path / "etcd", scheme="https", flags=flags) as server:
        server.ctl(*trust, "endpoint", "health")
        options = {name: str(tmp_path / file) for name, file in
                   (("cacert", "ca.pem"), ("cert", "client.pem"), ("key", "client.key"))}  # fmt: skip
        trusted = etcd_backend.open_backend(place(server, **options))
        await (await elected(trusted)).resign()
        await refused(place(server), BackendUnavailableError, "has closed the connection")
        await refused(place(server, protocol="https"), BackendUnavailableError, "its certificate is not trusted: ")
        alone = place(server, cacert=options["cacert"])
        await refused(alone, BackendUnavailableError, "it does not trust this node: .*alert")
        elsewhere = msgspec.structs.replace(place(server, **options), host="127.0.0.2")
        await refused(elsewhere, BackendUnavailableError, "cannot reach 127.0.0.2")
        named = msgspec.structs.replace(place(server, **options), host="localhost")
        await refused(named, BackendUnavailableError, "certificate is not valid for 'localhost'")
        await refused(place(server, cacert=str(password)), BackendRefusedError, "cannot use the certificates of etcd")
        await refused(place(server, cacert="/nowhere"), BackendRefusedError, "cannot read /nowhere: No such file")
        os.mkfifo(tmp_path / "pipe")
        await refused(place(server, cacert=str(tmp_path / "pipe")), BackendRefusedError, "it is a pipe, not a regular")
        for command in ("user add root:secret", "user grant-role root root", "auth enable"):
            server.ctl(*trust, *command.split())
        named = {**options, "user": "root", "password_file": str(password)}
        backend = etcd_backend.open_backend(place(server, **named))
        await (await elected(backend)).write(b"kept")
        await backend.close()
        await refused(place(server, **options), BackendRefusedError, "permission denied")
        password.write_text("wrong")
        await refused(place(server, **named), BackendRefusedError, "authentication failed")
        password.chmod(0o644)
        await refused(place(server, **named), BackendRefusedError, "others may read it")
        await trusted.close()


async def refused(where: Place, kind: type[Exception], why: str) -> None:
    backend = etcd_backend.open_backend(where)
    with pytest.raises(kind, match=why):
        await backend.leader()
    await backend.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"certt": "x"}, "etcd has no option certt"),
        ({"protocol": "ftp"}, "protocol=ftp is neither http nor https"),
        ({"protocol": "http", "cacert": "x"}, "certificates have no use with protocol=http"),
        ({"cert": "x"}, "cert and key go together"),
        ({"user": "x"}, "user and password_file go together"),
        ({"endpoints": "10.0.0.2:2379|10.0.0.3"}, "10.0.0.3 is not HOST:PORT"),
    ],
)
def test_options_that_can_not_be_meant(options: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        etcd_backend.open_backend(Place("job", "127.0.0.1", 1, options, 2.0))
