"""A node that cannot become a relay says why, ends that connection, and goes on as an ordinary node."""

from __future__ import annotations

import anyio
import pytest

from supervisor.core.cluster.cluster_messages import NodeJoined
from supervisor.edges.peers.handshake.hello_exchange import Who
from supervisor.edges.peers.relays.own_relay import OwnRelay
from supervisor.edges.peers.transport import cluster_connect
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_tls import Pipe
from supervisor.edges.peers.transport.preamble import IS_RELAY, Preamble, key_of
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, TLS, TOKEN, free_port, peers

WHO = Who(JOB, "b", "an incarnation")


def relay_line() -> Line:
    return Line(pipe=Pipe(TLS, leads=False), preamble=Preamble(IS_RELAY, key_of(TOKEN)))


@pytest.mark.parametrize("own_ip", ["127.0.0.1", "192.0.2.1"])
async def test_a_leader_that_cannot_be_reached_or_an_address_that_is_not_ours(
    own_ip: str, caplog: pytest.LogCaptureFixture
):
    async def connect(line: Line) -> None:
        del line
        raise ConnectionRefusedError("nobody listens")

    line = relay_line()
    with anyio.fail_after(LIMIT_S):
        await OwnRelay(WHO, tls=TLS, preamble_key=key_of(TOKEN)).serve(line, own_ip, connect)
    assert line.ended == "the relay ends"
    assert "this node cannot be a relay of job job: " in caplog.text


async def test_a_leader_that_did_not_ask_refuses_it(caplog: pytest.LogCaptureFixture):
    port = free_port()
    async with peers("a", port) as (_, at_leader), peers("b", port) as (b, _):
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        line = relay_line()
        with anyio.fail_after(LIMIT_S):
            await OwnRelay(WHO, tls=TLS, preamble_key=key_of(TOKEN)).serve(
                line,
                "127.0.0.1",
                lambda line: cluster_connect.connect(lambda: line, "127.0.0.1", port, is_careful=False),
            )
        assert "this node cannot be a relay of job job: it is not a relay of this job" in caplog.text
