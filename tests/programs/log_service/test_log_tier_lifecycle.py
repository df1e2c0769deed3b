"""Leaf and root as real processes: random deaths, strangers, a full disk, certificates."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import anyio
import pytest

from supervisor.programs.log_service.log_tier_lifecycle import Unreached
from tests.edges.peers import certificates
from tests.edges.peers.handshake.test_acceptor import attacked
from tests.edges.peers.test_unreadable_wire import spied_wire
from tests.programs.log_service import crowd

TOKEN = b"0123456789abcdef"
LIMIT_S = 60.0
NODES, LINES = 12, 400


def test_a_log_server_that_is_not_there_is_reported_once_if_that_lasts():
    unreached = Unreached()
    assert unreached.warning(1.0) == ""
    unreached.note("it does not answer")
    assert unreached.warning(2.0) == ""
    assert unreached.warning(11.5).startswith("it does not answer; up to 64 MiB")
    unreached.note("it refuses")
    assert unreached.warning(99.0) == ""
    unreached.note("")
    unreached.note("it does not answer")
    assert unreached.warning(100.0) == ""
    assert unreached.warning(110.0).startswith("it does not answer")


async def test_whatever_is_killed_no_line_is_lost_or_doubled(tmp_path: Path):
    draw = random.Random(7)
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path, TOKEN) as servers, crowd.nodes(NODES, servers.address, TOKEN) as nodes:

            async def speak(node: crowd.Node) -> None:
                for _ in range(LINES // 10):
                    await node.until_room()
                    node.say(10)
                    await anyio.sleep(0.02)
                node.end()
                await node.until_ended()

            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    tasks.start_soon(speak, node)
                for tier in (servers.leaf, servers.root, servers.leaf, servers.root):
                    await tier.ready.wait()
                    await anyio.sleep(draw.uniform(0.05, 0.3))
                    if tier.pid:
                        os.kill(tier.pid, signal.SIGKILL)
    assert crowd.faults_in(servers.log, {node.number: node.said for node in nodes}) == ""
    assert len(servers.lost) == 4
    assert not [name for name in os.listdir(tmp_path) if "positions" in name]


async def test_a_stranger_gets_nothing_written(tmp_path: Path):
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path, TOKEN) as servers:
            async with crowd.nodes(1, servers.address, b"another token of a job") as (stranger,):
                stranger.say(5)
                await stranger.until_trouble("does not know the job's token")
            async with crowd.nodes(1, servers.root_address, b"") as (stranger,):
                stranger.say(5)
                await stranger.until_trouble("")  # It has heard nothing that it understands.
            async with crowd.nodes(1, servers.address, TOKEN) as (node,):
                node.say(3)
                node.end()
                await node.until_ended()
    assert crowd.faults_in(servers.log, {0: 3}) == ""


@pytest.mark.parametrize("what", ["idle", "letter"])
async def test_strangers_connections_keep_no_node_out(what: str, tmp_path: Path):
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path, TOKEN) as servers:
            port = int(servers.address.rpartition(":")[2])
            async with (
                attacked(port, "127.0.0.1", os.getuid(), 900, what),
                crowd.nodes(1, servers.address, TOKEN) as (node,),
            ):
                node.say(3)
                node.end()
                await node.until_ended()
    assert crowd.faults_in(servers.log, {0: 3}) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small file system is mounted")
async def test_behind_a_full_disk_lines_wait_and_nothing_is_lost(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    await anyio.run_process(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)])
    try:
        with anyio.fail_after(LIMIT_S):
            async with crowd.servers(disk) as servers, crowd.nodes(2, servers.address) as nodes:
                for node in nodes:
                    node.say(2000)
                    node.end()
                await nodes[0].until_trouble("No space left on device; free space")
                await anyio.run_process(["mount", "-o", "remount,size=4m", str(disk)])
                for node in nodes:
                    await node.until_ended()
        assert crowd.faults_in(servers.log, {0: 2000, 1: 2000}) == ""
    finally:
        await anyio.run_process(["umount", "-l", str(disk)])


async def test_no_line_is_readable_on_the_wire(tmp_path: Path):
    with anyio.fail_after(LIMIT_S):
        async with (
            crowd.servers(tmp_path, TOKEN) as servers,
            spied_wire(int(servers.address.rpartition(":")[2])) as (port, spy),
        ):
            async with crowd.nodes(1, f"127.0.0.1:{port}", TOKEN) as (node,):
                node.say(3)
                node.end()
                await node.until_ended()
            assert len(spy.seen) > 1000
            for word in (b": line ", crowd.JOB.encode(), b"node 0"):
                assert word not in spy.seen
        assert crowd.faults_in(servers.log, {0: 3}) == ""
        plain = tmp_path / "plain"
        plain.mkdir()
        async with (
            crowd.servers(plain) as servers,
            spied_wire(int(servers.address.rpartition(":")[2])) as (port, spy),
        ):
            async with crowd.nodes(1, f"127.0.0.1:{port}") as (node,):
                node.say(3)
                node.end()
                await node.until_ended()
            assert b": line " in spy.seen  # It would have seen it.


async def test_who_has_a_certificate_and_not_the_token_gets_nothing_written(tmp_path: Path):
    certificates.make_authority(tmp_path)
    made = certificates.make_node(tmp_path)
    files = {"tls_cert": made.certificate, "tls_key": made.key, "tls_ca": made.authority}
    token_file = tmp_path / "token"
    token_file.write_bytes(TOKEN)
    token_file.chmod(0o600)
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path, TOKEN, **files) as servers:
            async with crowd.nodes(1, servers.address, b"", **files) as (stranger,):
                stranger.say(5)
                await stranger.until_trouble("does not know the job's token")
            async with crowd.nodes(1, servers.address, b"", **files, token_file=str(token_file)) as (node,):
                node.say(3)
                node.end()
                await node.until_ended()
    assert crowd.faults_in(servers.log, {0: 3}) == ""


async def test_certificates_of_one_authority_let_in_and_others_do_not(tmp_path: Path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for place in (ours, theirs):
        place.mkdir()
        certificates.make_authority(place)
    server, node, stranger = (
        {"tls_cert": made.certificate, "tls_key": made.key, "tls_ca": made.authority}
        for made in (
            certificates.make_node(ours, "server"),
            certificates.make_node(ours, "node"),
            certificates.make_node(theirs, "stranger"),
        )
    )
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path, b"", **server) as servers:
            async with crowd.nodes(1, servers.address, b"", **stranger) as (unknown,):
                unknown.say(3)
                await unknown.until_trouble("")
            async with crowd.nodes(1, servers.address, b"", **node) as (known,):
                known.say(3)
                known.end()
                await known.until_ended()
    assert crowd.faults_in(servers.log, {0: 3}) == ""
