"""Nodes with a certificate of the cluster's authority meet; all others learn the reason at once."""

from __future__ import annotations

import os
import shutil
import ssl
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeJoined, Reported
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import Meeting
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.edges.peers.transport import cluster_link, cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Pipe, TlsFiles
from supervisor.edges.peers.transport.preamble import CONNECTS_HERE
from supervisor.errors import ConfigurationError
from supervisor.ports.edges import Peers
from tests.edges.peers.certificates import make_authority, make_node
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, TOKEN, Heard, again, free_port
from tests.edges.peers.embedded.test_cluster_peers import peers as token_peers


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("certificates")
    make_authority(place)
    make_authority(place, "other")
    make_node(place)
    make_node(place, "expired", has_expired=True)
    make_node(place, "foreign", authority="other")
    return place


def files(place: Path, name: str = "node", authority: str = "ca") -> TlsFiles:
    return TlsFiles(str(place / f"{name}.pem"), str(place / f"{name}.key"), str(place / f"{authority}.pem"))


@asynccontextmanager
async def peers(
    node: str, port: int, tls: TlsFiles | None, *, host: str = "127.0.0.1", token: bytes = b""
) -> AsyncGenerator[tuple[Peers, Heard]]:
    heard = Heard()
    loaded = msgspec.structs.replace(cluster_tls.load(tls), token=token) if tls is not None else None
    meeting = Meeting(JOB, node, PeerAddress(host, port), LIMIT_S, tls=loaded)
    async with cluster_peers.open_peers(meeting, heard.post) as opened:
        yield opened, heard


@pytest.mark.parametrize(("host", "token"), [("127.0.0.1", b""), ("::1", TOKEN)])
async def test_nodes_of_one_authority_meet_with_a_token_beside_it_or_without(place: Path, host: str, token: bytes):
    port = free_port()
    own = files(place)
    async with (
        peers("a", port, own, host=host, token=token) as (leader, at_leader),
        peers("b", port, own, host=host, token=token) as (b, at_b),
    ):
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        for number in range(200):
            leader.send("b", JOB, orders.JoinAgain(number, "r" * 8000))
        await at_b.until(lambda: len(at_b.events) == 200)


REFUSED = "this node and the leader at 127.0.0.1:{port} do not trust each other: "


@pytest.mark.parametrize(
    ("name", "authority", "why"),
    [
        ("expired", "ca", "it does not accept our certificate, which has expired; renew tls_cert"),
        ("foreign", "ca",
         "it does not accept our certificate, which is of another authority; check tls_cert and tls_ca"),
        ("node", "other", "its certificate is not accepted: "),
    ],
)  # fmt: skip
async def test_who_may_not_join_learns_why(place: Path, name: str, authority: str, why: str):
    port = free_port()
    async with peers("a", port, files(place)) as (leader, at_leader), peers("b", port, files(place)) as (b, at_b):
        async with peers("c", port, files(place, name, authority)) as (_, at_c):
            await at_c.until(lambda: at_c.events)
            (order,) = at_c.orders()
            assert isinstance(order, orders.WindDown)
            assert order.at_once
            assert order.reason.startswith(REFUSED.format(port=port) + why)
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        leader.send("b", JOB, again(1))
        await at_b.until(lambda: at_b.events)


async def test_a_leader_with_an_expired_certificate_is_not_followed(place: Path):
    port = free_port()
    async with peers("a", port, files(place, "expired")), peers("b", port, files(place)) as (_, at_b):
        await at_b.until(lambda: at_b.events)
        why = "its certificate is not accepted: certificate has expired; check tls_ca, and when it expires"
        assert at_b.orders() == [orders.WindDown(REFUSED.format(port=port) + why, at_once=True)]


async def test_a_leader_without_tls_is_not_followed_by_a_node_with_it(place: Path):
    port = free_port()
    async with peers("a", port, None), peers("b", port, files(place)) as (_, at_b):
        await at_b.until(lambda: at_b.events)
        why = "it does not speak TLS; give all nodes tls_cert, tls_key and tls_ca, or none"
        assert at_b.orders() == [orders.WindDown(REFUSED.format(port=port) + why, at_once=True)]


async def test_a_node_without_tls_is_told_what_may_be_missing(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_link, "HANDSHAKE_S", 0.2)
    port = free_port()
    heard = Heard()
    meeting = Meeting(JOB, "b", PeerAddress("127.0.0.1", port), 2.0)
    async with peers("a", port, files(place)), cluster_peers.open_peers(meeting, heard.post):
        await heard.until(lambda: heard.events)
        (order,) = heard.orders()
        assert isinstance(order, orders.WindDown)
        assert order.reason.endswith(
            "if it has a token or certificates, write token_file, or tls_cert, tls_key and tls_ca, in --rdzv-conf"
        )


def test_files_that_cannot_be_used_are_named(place: Path, tmp_path: Path):
    def refused(**changed: str) -> str:
        with pytest.raises(ConfigurationError) as caught:
            cluster_tls.load(msgspec.structs.replace(files(place), **changed))
        return str(caught.value)

    missing = tmp_path / "missing.pem"
    no_file = f"cannot read the file {missing} of {{}}: No such file or directory; check --rdzv-conf"
    assert refused(certificate=str(missing)) == no_file.format("tls_cert")
    assert refused(key=str(missing)) == no_file.format("tls_key")
    assert refused(authority=str(missing)) == no_file.format("tls_ca")
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe, not a regular file; check --rdzv-conf" in refused(certificate=str(tmp_path / "pipe"))
    shown = tmp_path / "shown.key"
    shown.write_bytes((place / "node.key").read_bytes())
    shown.chmod(0o640)
    assert (
        refused(key=str(shown)) == f"cannot use the key {shown} of tls_key: others may read it; run chmod 600 {shown}"
    )
    assert "they do not belong together; check --rdzv-conf" in refused(key=str(place / "foreign.key"))
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    assert "they are not PEM files without a password" in refused(certificate=str(garbage))
    assert refused(authority=str(garbage)) == f"cannot use {garbage} of tls_ca: it is not a PEM file; check --rdzv-conf"


async def test_a_stranger_without_a_certificate_hears_nothing(place: Path):
    port = free_port()
    async with peers("a", port, files(place)):
        with anyio.fail_after(LIMIT_S):
            async with await anyio.connect_tcp("127.0.0.1", port) as stranger:
                await stranger.send(CONNECTS_HERE + b"x" * 100)
                heard = b""
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        heard += await stranger.receive()
                assert len(heard) < 16  # an alert of TLS


def shake_hands(leads: Pipe, follows: Pipe) -> None:
    leads.read(b"")
    follows.read(b"")
    leads.write(b"a greeting")
    leads.read(follows.outgoing())
    follows.read(leads.outgoing())
    leads.read(follows.outgoing())
    assert follows.read(leads.outgoing()) == b"a greeting"


def test_a_session_is_resumed_also_after_a_connection_that_has_broken_and_a_forgotten_one_is_no_harm(place: Path):
    tls, another = cluster_tls.load(files(place)), cluster_tls.load(files(place))
    session = None
    for leader, is_resumed in ((tls, False), (tls, True), (tls, True), (another, False)):
        pipe, led = Pipe(tls, leads=False, session=session), Pipe(leader, leads=True)
        assert pipe.session is None
        shake_hands(led, pipe)
        assert (led.is_resumed, pipe.is_resumed) == (is_resumed, is_resumed)
        session = pipe.session
        pipe.part()
        led.part()
        del pipe, led


async def test_a_node_with_another_token_is_refused_on_both_sides_and_harms_nobody(caplog: pytest.LogCaptureFixture):
    port = free_port()
    async with token_peers("a", port) as (leader, at_leader), token_peers("b", port) as (b, at_b):
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        async with token_peers("c", port, tls=cluster_tls.from_token(b"some other token")) as (_, at_stranger):
            await at_stranger.until(lambda: at_stranger.events)
            why = "it does not know the job's token; give all nodes the same token_file"
            refused = f"the leader at 127.0.0.1:{port} refuses this node: {why}"
            assert at_stranger.orders() == [orders.WindDown(refused, at_once=True)]
        leader.send("b", JOB, again(1))
        await at_b.until(lambda: at_b.events)
        assert at_b.orders() == [again(1)]
    assert f"a connection from 127.0.0.1 is refused: {why}" in caplog.text


def test_two_tokens_trust_each_other_neither_way_and_each_side_knows_why():
    ours, theirs = cluster_tls.from_token(TOKEN), cluster_tls.from_token(b"some other token")
    leads, follows = Pipe(ours, leads=True), Pipe(theirs, leads=False)
    follows.read(b"")
    leads.read(follows.outgoing())
    with pytest.raises(ssl.SSLError) as at_node:
        follows.read(leads.outgoing())
    assert follows.judge(at_node.value) == (
        True,
        "it does not know the job's token; give all nodes the same token_file",
    )
    with pytest.raises(ssl.SSLError) as at_leader:
        leads.read(follows.outgoing())
    assert leads.judge(at_leader.value) == (
        True,
        "it has another token than this node; give all nodes the same token_file",
    )


@pytest.mark.parametrize(("at_leader", "at_node"), [(TOKEN, b""), (b"", TOKEN), (TOKEN, b"some other token")])
async def test_who_has_a_certificate_and_not_the_token_is_refused(place: Path, at_leader: bytes, at_node: bytes):
    port, own = free_port(), files(place)
    async with peers("a", port, own, token=at_leader), peers("b", port, own, token=at_node) as (_, heard):
        await heard.until(lambda: heard.events)
        why = "it does not know the job's token; give all nodes the same token_file"
        refused = f"the leader at 127.0.0.1:{port} refuses this node: {why}"
        assert heard.orders() == [orders.WindDown(refused, at_once=True)]


def test_a_proof_is_of_no_use_on_another_connection_even_of_somebody_with_the_same_certificate(place: Path):
    """He would pass on the proof of a node that connects to him."""
    known = msgspec.structs.replace(cluster_tls.load(files(place)), token=TOKEN)
    proofs: set[bytes] = set()
    session = None
    for is_resumed in (False, False, True):
        follows, leads = Pipe(known, leads=False, session=session if is_resumed else None), Pipe(known, leads=True)
        shake_hands(leads, follows)
        assert leads.is_resumed == is_resumed
        for side in ("node", "leader"):
            assert follows.proof(side) == leads.proof(side)
            proofs.add(leads.proof(side))
        session = follows.session
        follows.part()
        leads.part()
    assert len(proofs) == 6


async def test_a_node_that_reconnects_resumes_its_session(place: Path):
    port = free_port()
    tls = cluster_tls.load(files(place))
    heard, at_leader = Heard(), Heard()
    endpoint = PeerAddress("127.0.0.1", port)
    leading = cluster_peers.open_peers(Meeting(JOB, "a", endpoint, LIMIT_S, tls=tls), at_leader.post)
    async with leading as leader, anyio.create_task_group() as tasks:
        client = ClusterClient(endpoint, job_id=JOB, own_name="b", on_order=heard.post, on_lost=lambda _: None, tls=tls)
        tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
        client.report(Reported(JOB, NodeJoined("b", -1)))
        await at_leader.until(lambda: at_leader.events)
        for number in range(3):
            line = client._conversation.line  # pyright: ignore[reportPrivateUsage]
            assert line is not None
            line.end("the test breaks it")
            leader.send("b", JOB, again(number))
            await heard.until(lambda number=number: len(heard.events) == number + 1)
        assert tls.leads.session_stats()["hits"] == 3
        client.forget()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("is_renewed", [True, False])
async def test_a_certificate_that_expires_in_a_long_job_is_read_again(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_renewed: bool
):
    """A link broke after that, and the node took the other side's distrust for a final refusal."""
    port, heard, at_leader = free_port(), Heard(), Heard()
    for source, ending in ((name, ending) for name in ("node", "expired") for ending in ("pem", "key")):
        shutil.copy(place / f"{source}.{ending}", tmp_path)
    shutil.copy(place / "ca.pem", tmp_path)
    leads, follows, expired = (cluster_tls.load(files(tmp_path, name)) for name in ("node", "node", "expired"))
    endpoint, lost = PeerAddress("127.0.0.1", port), anyio.Event()
    leading = cluster_peers.open_peers(Meeting(JOB, "a", endpoint, LIMIT_S, tls=leads), at_leader.post)
    async with leading as leader, anyio.create_task_group() as tasks:
        client = ClusterClient(
            endpoint, job_id=JOB, own_name="b", on_order=heard.post, on_lost=lambda _: lost.set(), tls=follows
        )
        tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
        client.report(Reported(JOB, NodeJoined("b", -1)))
        await at_leader.until(lambda: at_leader.events)
        for each in (leads, follows):
            each.leads, each.follows, each.states = expired.leads, expired.follows, expired.states
        if not is_renewed:
            (tmp_path / "node.pem").write_text("half written")
        line = client._conversation.line  # pyright: ignore[reportPrivateUsage]
        assert line is not None
        line.end("the test breaks it")
        if is_renewed:
            leader.send("b", JOB, again(1))
            await heard.until(lambda: heard.events)
            assert not lost.is_set()
        else:
            with anyio.fail_after(LIMIT_S):
                await lost.wait()
            assert not client.is_refused
            assert "the certificate stays as it was when the job began" in caplog.text
        client.forget()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("has_expired", [("leader",), ("leader", "node"), ("node",)])
async def test_a_node_that_was_never_welcomed_by_this_leader_meets_it_with_renewed_files(
    place: Path, monkeypatch: pytest.MonkeyPatch, has_expired: tuple[str, ...]
):
    """Another node leads after the first is lost: nobody knows who of the two has old certificates in memory."""
    port, at_leader, at_node = free_port(), Heard(), Heard()
    tls = {side: cluster_tls.load(files(place)) for side in ("leader", "node")}
    expired = cluster_tls.load(files(place, "expired"))
    for side in has_expired:
        tls[side].leads, tls[side].follows, tls[side].states = expired.leads, expired.follows, expired.states
    states = cluster_tls._states  # pyright: ignore[reportPrivateUsage]

    def slow_states(of: TlsFiles) -> tuple[tuple[int, ...], ...]:
        time.sleep(0.3)
        return states(of)

    monkeypatch.setattr(cluster_tls, "_states", slow_states)  # as of a disk far away
    endpoint = PeerAddress("127.0.0.1", port)
    leading = cluster_peers.open_peers(Meeting(JOB, "a", endpoint, LIMIT_S, tls=tls["leader"]), at_leader.post)
    following = cluster_peers.open_peers(Meeting(JOB, "b", endpoint, LIMIT_S, tls=tls["node"]), at_node.post)
    async with leading, following as b:
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        assert not at_node.events


async def test_files_are_read_again_once_for_all_who_ask_and_only_if_they_have_changed(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    tls, expired = cluster_tls.load(files(place)), cluster_tls.load(files(place, "expired"))
    leads, loaded = tls.leads, list[TlsFiles]()
    await cluster_tls.read_again(tls)
    assert tls.leads is leads, "its sessions are kept"
    tls.states, load = expired.states, cluster_tls.load

    def counted(of: TlsFiles) -> cluster_tls.Tls:
        loaded.append(of)
        return load(of)

    monkeypatch.setattr(cluster_tls, "load", counted)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(cluster_tls.read_again, tls)
    assert tls.leads is not leads
    assert loaded == [files(place)]


async def test_a_reading_that_is_given_up_is_made_all_the_same(place: Path):
    tls, expired = cluster_tls.load(files(place)), cluster_tls.load(files(place, "expired"))
    tls.states, leads = expired.states, tls.leads
    with anyio.CancelScope() as scope:
        scope.cancel()
        await cluster_tls.read_again(tls)
    with anyio.fail_after(LIMIT_S):
        while tls.leads is leads:
            await cluster_tls.read_again(tls)


async def test_files_on_a_dead_disk_hold_up_neither_the_node_nor_its_end_nor_another_job(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dead, well, answers = cluster_tls.load(files(place)), cluster_tls.load(files(place)), threading.Event()
    dead.files, expired = files(tmp_path), cluster_tls.load(files(place, "expired"))
    well.states, leads = expired.states, well.leads
    states = cluster_tls._states  # pyright: ignore[reportPrivateUsage]

    def dead_states(of: TlsFiles) -> tuple[tuple[int, ...], ...]:
        return states(of) if of == well.files or answers.wait(30) else ()

    with monkeypatch.context() as patched:
        patched.setattr(cluster_tls, "_states", dead_states)
        patched.setattr(cluster_tls, "READ_AGAIN_S", 0.05)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(cluster_tls.read_again, dead)
        (stuck,) = (each for each in threading.enumerate() if each.name == "side call")
        assert stuck.daemon, "the end of the process does not wait for it"
        patched.setattr(cluster_tls, "READ_AGAIN_S", 5.0)
        await cluster_tls.read_again(well)
        assert well.leads is not leads
        answers.set()
        stuck.join(10)
