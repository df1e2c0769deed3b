"""Nodes on loopback addresses of this machine begin an etcd of their own, with real programs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from holdfast_wire.v1 import etcd_pb2 as etcd

from supervisor.core import etcd_membership
from supervisor.edges.peers.election import (
    etcd_channel,
    etcd_program,
    first_member,
    job_etcd_members,
    member_seat,
    member_tls,
)
from supervisor.edges.peers.election.etcd_client import EtcdClient
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.peers.election.etcd_program import EtcdProgram
from supervisor.edges.peers.election.job_etcd_members import JobEtcdMembers
from supervisor.edges.peers.election.member_folder import MemberFolder
from supervisor.edges.peers.election.member_records import MemberRecords, View
from supervisor.edges.peers.election.member_seat import NO_ANSWER
from supervisor.edges.peers.transport.name_lookup import Found, look_up
from supervisor.ports.rendezvous_backend import BackendUnavailableError
from supervisor.ports.timed_waits import pause
from tests.edges.peers.election.test_etcd_member_connection import silent_host

LIMIT_S = 90.0
KEY = b"/kept"

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd: apt-get install etcd-server")


class Nodes:
    """Nodes 127.0.0.N of one job, whose endpoint is at the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = _two_free_ports()
        self.views: dict[int, JobEtcdMembers] = {}
        self._lost: dict[int, anyio.Event] = {}
        (folder / "user").mkdir()
        self.files = member_tls.from_token(b"secret", "127.0.0.9", folder / "user")

    def made(
        self, number: int, *, name: str = "", goes_on: bool = False, hosts: Sequence[str] = ("127.0.0.1",)
    ) -> JobEtcdMembers:
        name = name or f"n{number}"
        folder = MemberFolder(self._folder, "job", name, goes_on=goes_on)
        own = Endpoint(f"127.0.0.{number}", self.port)
        files = member_tls.from_token(b"secret", own.host, folder.path)
        return JobEtcdMembers(
            "job", name, own=own, endpoints=[Endpoint(each, self.port) for each in hosts], prefix="/p", folder=folder,
            program=EtcdProgram(shutil.which("etcd") or "", folder.path, own, files), open_client=self.client,
            nodes_max=4,
        )  # fmt: skip

    def client(self, endpoints: Sequence[Endpoint]) -> EtcdClient:
        return EtcdClient(endpoints, tls=member_tls.context(self.files))

    @asynccontextmanager
    async def running(
        self, number: int, *, name: str = "", goes_on: bool = False, hosts: Sequence[str] = ("127.0.0.1",)
    ) -> AsyncGenerator[JobEtcdMembers]:
        """`hosts`: where members are looked for."""
        members = self.made(number, name=name, goes_on=goes_on, hosts=hosts)
        async with members.serving(lambda: False):
            yield members

    def left(self) -> list[Path]:
        """Returns the folders that nodes have left."""
        return list((self._folder / "etcd").glob("*/*"))

    async def view(self, number: int) -> View | None:
        """Returns what the member of that node says; None: it does not answer."""
        client = self.client([Endpoint(f"127.0.0.{number}", self.port)])
        try:
            return await MemberRecords(client, "/p", "job").view()
        except NO_ANSWER:
            return None
        finally:
            client.close()

    async def until_voters(self, *numbers: int, asked: int) -> int:
        """Waits until these nodes vote and have the seats. Returns the cluster's id."""
        wanted = {f"https://127.0.0.{number}:{self.port + 1}" for number in numbers}
        with anyio.fail_after(LIMIT_S):
            while True:
                view = await self.view(asked)
                if view is not None:
                    voters = {each.peer_url for each in view.members if not each.is_learner}
                    if voters == wanted == {each.peer_url for each in view.after}:
                        return view.cluster_id
                await pause(0.1, why="etcd tells nobody")


def _two_free_ports() -> int:
    """Returns a port that is free on each node, with the next one. The kernel gives neither to a client."""
    while True:
        port = random.randrange(20_000, 30_000)
        with ExitStack() as probes, suppress(OSError):
            for number in (1, 2, 3, 4):
                for each in (port, port + 1):
                    probe = probes.enter_context(socket.socket())
                    probe.bind((f"127.0.0.{number}", each))
            return port


async def _put(client: EtcdClient, value: bytes, *, key: bytes = KEY) -> None:
    put = etcd.RequestOp(request_put=etcd.PutRequest(key=key, value=value))
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                await client.txn(etcd.TxnRequest(success=[put]))
                return
            except NO_ANSWER:
                await pause(0.1, why="its members may elect a leader")


async def _kept(client: EtcdClient) -> bytes:
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                found = (await client.range(KEY)).kvs
                return found[0].value if found else b""
            except NO_ANSWER:
                await pause(0.1, why="its members may elect a leader")


@contextmanager
def _client_of(members: JobEtcdMembers) -> Generator[EtcdClient]:
    client = members.new_client()
    try:
        yield client
    finally:
        client.close()


async def _refusal(client: EtcdClient) -> str:
    """Returns why a call fails, once there was time for an answer."""
    with anyio.fail_after(LIMIT_S):
        while True:
            with pytest.raises(NO_ANSWER) as caught:
                await client.range(KEY)
            if "no member has answered" not in str(caught.value):
                return str(caught.value)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_the_endpoints_node_is_lost_replaced_and_begins_no_second_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_member, "UNHEARD_S", 1.0)
    monkeypatch.setattr(etcd_membership, "GRACE_S", 1.0)
    nodes = Nodes(tmp_path)
    async with nodes.running(2) as second, nodes.running(3):
        client = second.new_client()
        first, cluster = nodes.made(1), 0
        with anyio.CancelScope() as power:
            async with first.serving(lambda: False):
                cluster = await nodes.until_voters(1, 2, 3, asked=2)
                await _put(client, b"one")
                monkeypatch.setattr(job_etcd_members, "LEAVE_S", 0.0)  # it says nothing any more, and its data is gone
                power.cancel()
        monkeypatch.setattr(job_etcd_members, "LEAVE_S", 8.0)
        monkeypatch.setattr(first_member, "UNHEARD_S", 5.0)
        async with nodes.running(1) as again:  # as after a reboot, with nothing
            await nodes.until_voters(1, 2, 3, asked=2)
            with anyio.fail_after(LIMIT_S):
                await again.until_ready()
            other = again.new_client()
            assert await _kept(other) == b"one"
            assert await nodes.until_voters(1, 2, 3, asked=1) == cluster
            other.close()
        client.close()
    assert nodes.left() == []


async def _is_ready(members: JobEtcdMembers) -> None:
    with anyio.fail_after(LIMIT_S):
        while not members.is_ready:
            await pause(0.05, why="nothing tells")


@pytest.mark.timeout(300)
async def test_the_endpoints_name_moves_from_a_silent_host_to_a_new_node_which_begins_no_second_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(job_etcd_members, "LEAVE_S", 0.1)
    nodes = Nodes(tmp_path)
    address = "127.0.0.4"

    async def found(host: str | None, port: int, *, kind: socket.SocketKind) -> list[Found]:
        return await look_up(address if host == "endpoint" else host, port, kind=kind)

    monkeypatch.setattr(etcd_channel, "look_up", found)
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    with silent_host(address, nodes.port):
        async with nodes.running(1) as first, nodes.running(2, hosts=["endpoint", "127.0.0.1"]) as second:
            await _is_ready(first)
            with _client_of(first) as client:
                await _put(client, b"one")
            with anyio.fail_after(LIMIT_S):
                while second.program.pid is None:
                    await pause(0.1, why="it takes a seat")
            await pause(3.0, why="it tries to tell the silent host")
            address = "127.0.0.3"
            monkeypatch.setattr(first_member, "UNHEARD_S", 5.0)
            async with nodes.running(3, hosts=["127.0.0.3"]) as third:
                await _is_ready(third)
                with _client_of(third) as client:
                    assert await _kept(client) == b"one"


async def test_a_member_that_may_be_at_a_silent_endpoint_lets_none_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    monkeypatch.setattr(job_etcd_members, "READY_S", 6.0)
    nodes = Nodes(tmp_path)
    with silent_host("127.0.0.2", nodes.port) as silent:
        async with nodes.running(1, hosts=["127.0.0.1", "127.0.0.2"]) as members:
            with pytest.raises(BackendUnavailableError, match=r"a member of it may be at 127\.0\.0\.2:.* leave it out"):
                await members.until_ready()
            silent.close()
            await _is_ready(members)


async def test_a_host_that_is_down_does_not_keep_a_job_from_beginning_where_another_endpoint_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    nodes = Nodes(tmp_path)
    with silent_host("127.0.0.2", nodes.port):
        async with nodes.running(1, hosts=["127.0.0.1", "127.0.0.2", "127.0.0.3"]) as members:
            await _is_ready(members)


@pytest.mark.timeout(300)
async def test_a_member_at_another_endpoint_is_found_by_a_node_that_nobody_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(job_etcd_members, "LEAVE_S", 0.1)
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    nodes = Nodes(tmp_path)
    async with nodes.running(1) as first:
        await _is_ready(first)
        with _client_of(first) as client:
            await _put(client, b"one")
            async with nodes.running(3, hosts=["127.0.0.3", "127.0.0.1"]) as third:
                await pause(3.0, why="nothing tells that it waits: that etcd may be of a run that ends")
                assert not third.is_ready
                await _put(client, b'{"node": "n1", "address": "127.0.0.1:1", "ttl_s": 2.0}', key=b"/p/job/leader")
                await _is_ready(third)
                with _client_of(third) as other:
                    assert await _kept(other) == b"one"


async def test_a_member_that_is_killed_goes_on_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    nodes = Nodes(tmp_path)
    async with nodes.running(1) as members:
        await members.until_ready()
        client = members.new_client()
        await _put(client, b"kept")
        before = members.program.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        with anyio.fail_after(LIMIT_S):
            while members.program.pid in (None, before):
                await pause(0.05, why="it is started again")
        assert await _kept(client) == b"kept"
        client.close()


@pytest.mark.timeout(300)
async def test_a_supervisor_that_comes_back_goes_on_with_the_member_and_knows_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    nodes = Nodes(tmp_path)

    async def close(folder: MemberFolder) -> None:
        folder.close()

    with monkeypatch.context() as killed:
        killed.setattr(MemberFolder, "remove", close)
        async with nodes.running(1) as members:
            await members.until_ready()
            client = members.new_client()
            await _put(client, b"kept")
            client.close()
    assert nodes.left() != []
    monkeypatch.setattr(first_member, "UNHEARD_S", LIMIT_S)  # it begins none
    async with nodes.running(1, goes_on=True) as members:
        await members.until_ready()  # at once: it was in use
        client = members.new_client()
        assert await _kept(client) == b"kept"
        client.close()
    assert nodes.left() == []


@pytest.mark.timeout(300)
async def test_a_member_that_hangs_is_restarted_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    monkeypatch.setattr(member_seat, "HUNG_S", 2.0)
    nodes = Nodes(tmp_path)
    async with nodes.running(1) as members:
        await members.until_ready()
        client = members.new_client()
        await _put(client, b"kept")
        before = members.program.pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        with anyio.fail_after(LIMIT_S):
            while members.program.pid in (None, before):
                await pause(0.05, why="it is started again")
        assert await _kept(client) == b"kept"
        client.close()


@pytest.mark.timeout(300)
async def test_a_second_node_of_the_machine_leaves_the_etcd_of_the_first_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_member, "UNHEARD_S", 1.0)
    nodes = Nodes(tmp_path)
    async with nodes.running(1, name="a") as one, nodes.running(1, name="b") as other:
        with anyio.fail_after(LIMIT_S):
            for each in (one, other):
                while not each.is_ready:
                    await pause(0.1, why="one of them begins")
        client = other.new_client()
        await _put(client, b"kept")
        view = await nodes.view(1)
        assert view is not None
        assert len(view.members) == len(view.after) == 1
        with anyio.fail_after(LIMIT_S):
            while one.program.pid is not None and other.program.pid is not None:
                await pause(0.1, why="the one that has no port ends")
        assert await _kept(client) == b"kept"
        client.close()
    assert nodes.left() == []


ETCD_THAT_FAILS_AT_FIRST = """#!{python} -S
import os, socket, sys, time

with open({runs!r}, "ab", 0) as runs:
    runs.write(b".")
    if runs.tell() > {fails}:
        os.execv({real!r}, [{real!r}, *sys.argv[1:]])
client, peers = (socket.create_server(("127.0.0.1", each)) for each in ({port}, {port} + 1))
client.settimeout(0.05)
until_s = time.monotonic() + 1.0
while time.monotonic() < until_s:
    try:
        client.accept()[0].close()
    except TimeoutError:
        pass
sys.exit(1)
"""


@pytest.mark.timeout(300)
async def test_a_program_that_fails_after_it_has_its_ports_is_not_taken_for_that_of_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    monkeypatch.setattr(job_etcd_members, "BEGIN_AGAIN_S", 1_000.0)
    monkeypatch.setattr(etcd_program, "FAILS_MAX", 2)
    nodes = Nodes(tmp_path)
    fake = tmp_path / "programs" / "etcd"
    fake.parent.mkdir()
    runs = str(tmp_path / "runs")
    fake.write_text(
        ETCD_THAT_FAILS_AT_FIRST.format(
            python=sys.executable, runs=runs, fails=4, port=nodes.port, real=shutil.which("etcd")
        )
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    async with nodes.running(1) as members:
        with anyio.fail_after(LIMIT_S):
            while not members.is_ready:
                await pause(0.1, why="it is begun once the program runs")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", [0, 1])
async def test_an_endpoints_node_whose_ports_are_taken_begins_once_they_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    monkeypatch.setattr(job_etcd_members, "BEGIN_AGAIN_S", 0.5)
    nodes = Nodes(tmp_path)
    async with AsyncExitStack() as stack:
        with socket.create_server(("127.0.0.1", nodes.port + which)):
            members = await stack.enter_async_context(nodes.running(1))
            await pause(1.0, why="nothing tells that it has found its ports taken")
            assert members.program.pid is None
        with anyio.fail_after(LIMIT_S):
            while not members.is_ready:
                await pause(0.1, why="it is begun later")
        view = await nodes.view(1)
        assert view is not None
        assert len(view.members) == len(view.after) == 1
    assert nodes.left() == []


async def test_who_does_not_know_the_token_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(first_member, "UNHEARD_S", 0.2)
    nodes = Nodes(tmp_path)
    (tmp_path / "stranger").mkdir()
    async with nodes.running(1) as members:
        await members.until_ready()
        files = member_tls.from_token(b"guess", "127.0.0.9", tmp_path / "stranger")
        own = nodes.files
        trusting = member_tls.MemberFiles(files.certificate, files.key, own.authority)
        for context in (member_tls.context(files), member_tls.context(trusting)):
            assert isinstance(context, ssl.SSLContext)
            client = EtcdClient([Endpoint("127.0.0.1", nodes.port)], tls=context)
            assert "certificate" in await _refusal(client)
            client.close()
