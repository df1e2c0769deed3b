"""Which address does a node give to the others? One that they can reach, never one that only this node can."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.edges.peers.transport import leader_listener, own_address
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.errors import ConfigurationError


async def listens_at(host: str, port: int) -> list[str]:
    listeners = await leader_listener.listen(PeerAddress(host, port)) or []
    found = [str(each.getsockname()[0]) for each in listeners]
    for each in listeners:
        each.close()
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


REACHED = "10.20.30.40"


@pytest.mark.parametrize(
    ("host", "meant"),
    [("localhost", True), ("127.0.0.3", True), ("::1", True), ("node0", False), ("10.0.0.1", False)],
)
def test_a_loopback_address_that_was_written_is_meant(host: str, meant: bool):
    assert own_address.is_meant_as_loopback(host) is meant


async def test_it_is_the_one_in_the_network_of_the_endpoint():
    assert await own_address.own_address(PeerAddress("127.0.0.7", 29400)) == "127.0.0.1"
    assert await own_address.own_address(PeerAddress("localhost", 29400)) == "127.0.0.1"


Found = list[tuple[int, int, int, str, tuple[str, int]]]
IN_DNS: dict[str, list[str]] = {}  # what DNS says of absolute names


@pytest.fixture
def named_by_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Debian's /etc/hosts: the host's own name is 127.0.1.1 for itself."""
    real = socket.getaddrinfo

    def found(host: str | None, port: int, *, flags: int = 0, **more: Any) -> Found:  # noqa: ANN401 (as getaddrinfo)
        if host is None:
            return cast("Found", real(host, port, flags=flags, **more))
        if flags & socket.AI_NUMERICHOST or (host != "node0" and host not in IN_DNS):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        name = "node0.example" if flags & socket.AI_CANONNAME else ""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, name, (each, port)) for each in IN_DNS.get(host, ["127.0.1.1"])]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.fixture
def named_twice(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Resolves a name to these addresses."""
    addresses: list[str] = []

    def found(host: str, port: int, **_: object) -> Found:
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in each], socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return addresses


@pytest.mark.usefixtures("named_by_loopback")
async def test_a_host_name_that_means_this_host_s_loopback_is_not_told_to_others(monkeypatch: pytest.MonkeyPatch):
    def source(family: int, address: tuple[Any, ...]) -> str:
        return REACHED if address[0] == "192.0.2.1" else "127.0.0.1"

    monkeypatch.setattr(own_address, "_source", source)
    assert await own_address.own_address(PeerAddress("node0", 29400)) == REACHED


@pytest.mark.usefixtures("named_by_loopback")
@pytest.mark.parametrize(
    ("in_dns", "address"),
    [
        ({"node0.example.": ["10.1.1.1"]}, "10.1.1.1"),  # as the file completes it
        ({"node0.fast.example.": ["10.1.1.1"]}, "10.1.1.1"),  # as the resolver does
        ({"node0.": ["10.1.1.1"]}, "10.1.1.1"),
        ({"node0.example.": ["127.0.1.1", "10.9.9.9", "10.1.1.1"]}, "10.1.1.1"),
        ({"node0.example.": ["10.9.9.9"]}, REACHED),  # not this host's
        ({}, REACHED),
    ],
)
async def test_such_a_host_has_the_address_that_dns_has_for_its_name(
    in_dns: dict[str, list[str]], address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The others have met at that address. The default route may be through another network, which has a firewall."""
    (tmp_path / "resolv.conf").write_text("# by hand\nnameserver 10.1.1.53\n\nsearch example.org fast.example\n")
    monkeypatch.setattr(own_address, "RESOLV_CONF", str(tmp_path / "resolv.conf"))
    for name, addresses in in_dns.items():
        monkeypatch.setitem(IN_DNS, name, addresses)

    def source(family: int, towards: tuple[Any, ...]) -> str:
        return {"127.0.1.1": "127.0.0.1", "10.1.1.1": "10.1.1.1"}.get(towards[0], REACHED)

    monkeypatch.setattr(own_address, "_source", source)
    assert await own_address.own_address(PeerAddress("node0", 29400)) == address


@pytest.mark.usefixtures("named_by_loopback")
async def test_dns_that_does_not_answer_costs_little(monkeypatch: pytest.MonkeyPatch):
    may_answer = threading.Event()
    asked: list[str] = []
    known = socket.getaddrinfo

    def hang(host: str, port: int, *, flags: int = 0, **more: Any) -> Found:  # noqa: ANN401 (as getaddrinfo)
        if host.endswith(".") and not flags & socket.AI_NUMERICHOST:
            asked.append(host)
            may_answer.wait(30)
        return cast("Found", known(host, port, flags=flags, **more))

    def source(family: int, address: tuple[Any, ...]) -> str:
        return REACHED if address[0] == "192.0.2.1" else "127.0.0.1"

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(own_address, "DNS_TIMEOUT_S", 0.05)
    monkeypatch.setattr(own_address, "_source", source)
    began_s = time.monotonic()
    assert await own_address.own_address(PeerAddress("node0", 29400)) == REACHED
    assert time.monotonic() - began_s < 20, "nobody waits for the answer"
    assert asked == ["node0.example."]
    may_answer.set()


@pytest.mark.usefixtures("named_by_loopback")
async def test_without_any_route_it_is_the_loopback_after_all(monkeypatch: pytest.MonkeyPatch):
    def source(family: int, address: tuple[Any, ...]) -> str:
        if address[0] == "192.0.2.1":
            raise OSError("Network is unreachable")
        return "127.0.0.1"

    monkeypatch.setattr(own_address, "_source", source)
    assert await own_address.own_address(PeerAddress("node0", 29400)) == "127.0.0.1"


@pytest.mark.usefixtures("named_by_loopback")
async def test_a_leader_of_such_a_name_listens_where_others_reach_it():
    assert set(await listens_at("node0", 0)) <= {"::", "0.0.0.0"}


async def test_a_leader_listens_at_all_addresses_of_a_name_that_this_host_has(named_twice: list[str]):
    named_twice += ["127.0.0.1", "127.0.0.2", "192.0.2.1", "::1"]
    found = await listens_at("localhost", free_port())
    assert set(found) - {"::1"} == {"127.0.0.1", "127.0.0.2"}, "::1 only where there is IPv6"


@pytest.mark.alone
async def test_a_port_that_another_process_has_at_any_of_them_is_that_one_s(named_twice: list[str]):
    named_twice += ["127.0.0.1", "127.0.0.2"]
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        port = int(other.getsockname()[1])
        assert await listens_at("localhost", port) == []
    assert await listens_at("localhost", port) == ["127.0.0.1", "127.0.0.2"], "nothing was kept"


async def test_a_name_that_nobody_knows_yet_is_another_node_s():
    assert await leader_listener.listen(PeerAddress("no-such-host.invalid", 29400)) is None


async def test_a_name_that_nobody_knows_yet_shows_no_network(monkeypatch: pytest.MonkeyPatch):
    def source(family: int, address: tuple[Any, ...]) -> str:
        return REACHED

    monkeypatch.setattr(own_address, "_source", source)
    assert await own_address.own_address(PeerAddress("no-such-host.invalid", 29400)) == REACHED


async def test_without_a_route_a_name_that_nobody_knows_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch):
    def source(family: int, address: tuple[Any, ...]) -> str:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(own_address, "_source", source)
    with pytest.raises(ConfigurationError, match=r"address towards no-such-host.invalid:29400: .*; give --local-addr"):
        await own_address.own_address(PeerAddress("no-such-host.invalid", 29400))
