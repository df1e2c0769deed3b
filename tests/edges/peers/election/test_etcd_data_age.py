"""How long has a real etcd held its data? Never longer than it has, whatever is lost, restored or restarted."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.edges.peers.election import etcd_backend
from supervisor.edges.peers.election.etcd_client import EtcdClient, Login
from supervisor.edges.peers.election.etcd_data_age import DataAge
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, endpoint_of
from supervisor.ports.rendezvous_backend import Place, ProvesItsAge
from tests.etcd_server import Etcd, etcd

LIMIT_S = 40.0
PREFIX = "/p"
KEY = f"{PREFIX}/.held"
OPENED: list[EtcdClient] = []


@pytest.fixture
def server(tmp_path: Path) -> Generator[Etcd]:
    with etcd(tmp_path / "etcd") as started:
        started.ctl("endpoint", "health")
        yield started
    while OPENED:
        OPENED.pop().close()


def age(server: Etcd, login: Login | None = None) -> DataAge:
    client = EtcdClient([endpoint_of(server.endpoint)], login=login)
    OPENED.append(client)
    return DataAge(client, PREFIX)


async def proven(server: Etcd) -> float:
    """Waits until etcd proves an age."""
    with anyio.fail_after(LIMIT_S):
        while True:
            if held_for_s := await age(server).held_for_s():
                return held_for_s
            await anyio.sleep(0.1)


def leases(server: Etcd) -> list[str]:
    return server.ctl("lease", "list").split()[3:]


def term(server: Etcd) -> int:
    return msgspec.json.decode(server.ctl("get", KEY, "-w", "json"))["header"]["raft_term"]


async def test_it_is_not_known_at_first_and_then_never_longer_than_it_is(server: Etcd):
    began_s = anyio.current_time()
    assert await age(server).held_for_s() == 0.0
    for _ in range(2):
        held_for_s = await proven(server)
        assert 1.0 <= held_for_s <= anyio.current_time() - began_s
        await anyio.sleep(1.0)
    assert len(leases(server)) == 1


async def test_an_etcd_that_was_restarted_counts_anew(server: Etcd):
    await age(server).held_for_s()
    await proven(server)
    before = term(server)
    server.stop()
    server.start()
    server.ctl("endpoint", "health")
    began_s = anyio.current_time()
    assert await age(server).held_for_s() == 0.0
    assert term(server) > before
    assert await proven(server) <= anyio.current_time() - began_s


@pytest.mark.parametrize("flags", [(), ("--experimental-enable-lease-checkpoint",)])
async def test_an_etcd_whose_data_are_lost_or_restored_counts_anew(tmp_path: Path, flags: tuple[str, ...]):
    with etcd(tmp_path / "etcd", flags=flags) as server:
        server.ctl("endpoint", "health")
        await age(server).held_for_s()
        await proven(server)
        server.ctl("snapshot", "save", str(tmp_path / "backup"))
        server.restore(tmp_path / "backup")
        began_s = anyio.current_time()
        server.start()
        server.ctl("endpoint", "health")
        assert server.ctl("get", "--keys-only", KEY).split() == [KEY], "the backup has the key"
        assert await age(server).held_for_s() == 0.0
        assert await proven(server) <= anyio.current_time() - began_s
        server.wipe()
        server.start()
        server.ctl("endpoint", "health")
        assert await age(server).held_for_s() == 0.0


async def test_who_removes_the_keys_of_all_jobs_begins_anew(server: Etcd):
    await age(server).held_for_s()
    await proven(server)
    server.ctl("del", "--prefix", PREFIX)
    assert await age(server).held_for_s() == 0.0


@pytest.mark.parametrize("value", ["something else", '{"cluster_id": 1, "raft_term": 2}'])
async def test_a_key_that_proves_nothing_is_replaced(server: Etcd, value: str):
    server.ctl("put", KEY, value)
    assert await age(server).held_for_s() == 0.0
    await proven(server)


async def test_of_several_that_write_it_at_once_one_leaves_a_lease(server: Etcd):
    ages = [age(server) for _ in range(5)]
    async with anyio.create_task_group() as tasks:
        for each in ages:
            tasks.start_soon(each.held_for_s)
    assert len(leases(server)) == 1
    await proven(server)


async def test_a_user_who_may_not_read_or_not_write_it_proves_nothing_and_leaves_nothing(tmp_path: Path):
    with etcd(tmp_path / "etcd", flags=("--bcrypt-cost", "4")) as server:
        for command in ("user add root:secret", "user grant-role root root", "user add own:secret", "role add own",
                        f"role grant-permission own readwrite --prefix=true {PREFIX}/one/", "user grant-role own own",
                        "user add all:secret", "role add all", f"role grant-permission all read {KEY}",
                        "user grant-role all all", "auth enable"):  # fmt: skip
            server.ctl(*command.split())
        for user in ("own", "all"):
            assert await age(server, Login(user, "secret")).held_for_s() == 0.0
        assert not server.ctl("--user", "root:secret", "lease", "list").split()[3:]
        assert await age(server, Login("root", "secret")).held_for_s() == 0.0
        await anyio.sleep(2.1)
        assert await age(server, Login("own", "secret")).held_for_s() == 0.0
        assert await age(server, Login("all", "secret")).held_for_s() >= 1.0, "it may read"


async def test_an_etcd_that_does_not_answer_proves_nothing():
    client = EtcdClient([Endpoint("127.0.0.1", 1)])
    assert await DataAge(client, PREFIX).held_for_s() == 0.0
    client.close()


async def test_a_job_that_was_led_has_no_age_whatever_its_leader_has_written(server: Etcd):
    await age(server).held_for_s()
    await proven(server)
    where = Place("one", "127.0.0.1", server.port, {"etcd_prefix": PREFIX}, ttl_s=20.0)
    backend = etcd_backend.open_backend(where)
    for is_first in (True, False):
        lead = await backend.try_to_lead("a", "a:1")
        assert isinstance(lead, ProvesItsAge)
        assert (lead.held_for_s >= 1.0) is is_first
        assert lead.state == b""
        if is_first:
            await lead.resign()
    await lead.write(b"cycle 3")
    await lead.resign()
    lead = await backend.try_to_lead("a", "a:1")
    assert lead is not None
    assert (lead.state, lead.held_for_s) == (b"cycle 3", 0.0)
    await backend.close()
