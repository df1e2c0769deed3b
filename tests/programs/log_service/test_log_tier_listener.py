"""An address that a log server can't have is told in words; who has no certificate or token of the job gets no link."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.errors import ConfigurationError
from supervisor.programs.log_service.log_receiving import LogReceiver
from supervisor.programs.log_service.log_tier_listener import TierListener
from supervisor.programs.log_service.replies_to_senders import Callers
from tests.edges.peers.transport.test_cluster_line import until
from tests.programs.log_service import crowd
from tests.programs.log_service.test_log_receiving import LIMIT_S, Taken

OTHER = 54321
FIRST_OF_ALL_USERS = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
TOKEN = b"0123456789abcdef"
ASKS_FOR_PORT_80 = f"""
import encodings.idna, os, anyio
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.errors import ConfigurationError
from supervisor.programs.log_service.replies_to_senders import Callers
from supervisor.programs.log_service.log_receiving import LogReceiver
from supervisor.programs.log_service.log_tier_listener import TierListener
from tests.programs.log_service.test_log_receiving import Taken

async def main():
    try:
        async with TierListener("job", None, LogReceiver(Taken(), Callers())).serving(PeerAddress("127.0.0.1", 80)):
            print("it listens")
    except ConfigurationError as error:
        print(error)

if os.geteuid() == 0:
    os.setuid({OTHER})
anyio.run(main)
"""


def served(token: bytes = b"") -> tuple[Callers, TierListener, PeerAddress]:
    callers = Callers(bytes_max=1 << 20)
    tls = cluster_tls.from_token(token) if token else None
    return (
        callers,
        TierListener(crowd.JOB, tls, LogReceiver(Taken(), callers)),
        PeerAddress("127.0.0.1", crowd.free_ports(1)[0]),
    )


async def test_a_node_of_the_job_gets_a_link_and_each_other_is_told_why_not():
    callers, server, address = served(TOKEN)
    with anyio.fail_after(LIMIT_S):
        async with server.serving(address):
            async with crowd.nodes(1, str(address), b"another token of a job") as (stranger,):
                await stranger.until_trouble("does not know the job's token")
            assert callers.count == 0
            async with crowd.nodes(1, str(address), TOKEN) as (node,):
                await node.until_connected()
                await until(lambda: callers.count == 1)


async def test_an_address_that_is_taken_or_elsewhere_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for address in (PeerAddress("127.0.0.1", taken.getsockname()[1]), PeerAddress("192.0.2.1", 50051)):
            _, server, _ = served()
            with pytest.raises(ConfigurationError, match=f"cannot listen at {address}: it is in use or not an address"):
                async with server.serving(address):
                    raise AssertionError


@pytest.mark.skipif(FIRST_OF_ALL_USERS <= 80, reason="any user may listen at port 80")
def test_a_port_that_needs_permission_is_told_with_the_remedy():
    done = subprocess.run([sys.executable, "-c", ASKS_FOR_PORT_80], capture_output=True, text=True, check=True)
    uid = os.geteuid() or OTHER
    assert done.stdout == (
        f"cannot listen at 127.0.0.1:80: ports below 1024 are only for root here, and this is uid {uid}; choose a "
        "--ft-log-server-port of 1024 or above\n"
    )
