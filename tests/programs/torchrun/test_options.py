"""Which options of torchrun's command line does the backend take, and how does it reject the others?"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from supervisor.core.elastic.elastic_messages import ElasticRules
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.programs.torchrun.options import AgentOptions, Given, read
from tests.edges.peers.certificates import make_authority, make_node


def options(
    endpoint: str = "127.0.0.1:1234", nodes: tuple[int, int] = (2, 4), run_id: str = "job", **given: object
) -> AgentOptions:
    words = Given(endpoint, run_id, *nodes, "", {"timeout": 900, **given})
    return read(words, {}, host_name="host", pid=7)


def test_what_is_not_said_is_torch_s_default():
    found = options()
    assert found.rules == ElasticRules(2, 4, join_timeout_s=600.0, last_call_timeout_s=30.0)
    assert (found.close_timeout_s, found.read_timeout_s, found.order) == (30.0, 60.0, -1)
    assert found.meeting.node == "host/7"
    assert found.meeting.endpoint == PeerAddress("127.0.0.1", 1234)
    assert found.meeting.leads is None


def test_all_of_it_can_be_said(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("a secret of the job")
    token.chmod(0o600)
    found = options(
        "[fd00::1]", join_timeout="5", last_call_timeout="0", close_timeout="2.5", read_timeout=9, is_host="True",
        token_file=str(token),
    )  # fmt: skip
    assert found.rules == ElasticRules(2, 4, join_timeout_s=5.0, last_call_timeout_s=0.0)
    assert (found.close_timeout_s, found.read_timeout_s) == (2.5, 9.0)
    assert found.meeting.endpoint == PeerAddress("fd00::1", 29400)
    assert found.meeting.leads is True
    assert found.meeting.tls is not None
    assert found.meeting.tls.is_from_token
    assert options(is_host="0").meeting.leads is False


def test_a_node_alone_needs_no_endpoint():
    assert options("", nodes=(1, 1)).meeting.endpoint == PeerAddress("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("environment", "order"),
    [({"SLURM_PROCID": "3", "GROUP_RANK": "1"}, 3), ({"GROUP_RANK": "1"}, 1), ({"SLURM_PROCID": "x"}, -1), ({}, -1)],
)
def test_the_scheduler_s_order_comes_from_its_variables(environment: dict[str, str], order: int):
    given = Given("localhost", "job", 2, 2, "10.0.0.9", {})
    found = read(given, environment, host_name="host", pid=7)
    assert found.order == order
    assert found.meeting.node == "10.0.0.9/7"


def test_other_backends_keys_cause_a_warning(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        options(keep_alive_interval="5")
    assert "--rdzv-conf keep_alive_interval has no effect with --rdzv-backend=holdfast" in caplog.text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"heartbeat_timeout": "5"},
            "cannot use --rdzv-conf heartbeat_timeout: after which silence an agent is lost can't be set with "
            "--rdzv-backend=holdfast; remove it",
        ),
        (
            {"join_timout": "5"},
            "cannot use --rdzv-conf join_timout: there is no such key; there are close_timeout, is_host, join_timeout, "
            "last_call_timeout, read_timeout, tls_ca, tls_cert, tls_key, token_file",
        ),
        (
            {"join_timeout": "long"},
            "cannot use --rdzv-conf join_timeout=long: it is not a time in seconds; write join_timeout=600",
        ),
        (
            {"close_timeout": "0"},
            "cannot use --rdzv-conf close_timeout=0: it is not a time in seconds; write close_timeout=30",
        ),
        (
            {"is_host": "maybe"},
            "cannot use --rdzv-conf is_host=maybe: it is neither true nor false; write is_host=1 or is_host=0",
        ),
        ({"endpoint": ""}, "cannot tell where the nodes meet; write --rdzv-endpoint HOST:PORT, the same on each"),
        (
            {"endpoint": "a:b"},
            "cannot use --rdzv-endpoint a:b: it is not HOST:PORT; write HOST:PORT, an IPv6 address in brackets",
        ),
        (
            {"endpoint": "127.0.0.1:0"},
            "cannot use --rdzv-endpoint 127.0.0.1:0: the nodes can't meet there; write HOST:PORT",
        ),
        (
            {"endpoint": "node0"},
            "cannot meet at node0:29400 without a secret: anybody who reaches that address could join the job; write "
            "--rdzv-conf token_file=F, a file that is the same on each node and readable by its owner only, or "
            "tls_cert, tls_key and tls_ca",
        ),
        (
            {"tls_cert": "a.pem", "tls_ca": "ca.pem"},
            "cannot use TLS with a part of its files: both sides of a connection show a certificate; write --rdzv-conf "
            "tls_key, too",
        ),
        (
            {"token_file": "/no/file"},
            "cannot read the token file /no/file: No such file or directory; check --rdzv-conf",
        ),
        ({"run_id": "x" * 257}, "cannot use --rdzv-id of 257 characters; write one of 1 to 256"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_with_the_remedy(given: dict[str, str], why: str):
    with pytest.raises(ValueError, match="cannot ") as raised:
        options(**given)  # pyright: ignore[reportArgumentType]
    assert str(raised.value) == why


def test_certificates_stand_in_the_place_of_a_secret(tmp_path: Path):
    make_authority(tmp_path)
    files = make_node(tmp_path)
    found = options("node0", tls_cert=files.certificate, tls_key=files.key, tls_ca=files.authority, is_host="1")
    assert found.meeting.tls is not None
    assert not found.meeting.tls.is_from_token
    with pytest.raises(ValueError, match="cannot read the file /none of tls_key"):
        options("node0", tls_cert=files.certificate, tls_key="/none", tls_ca=files.authority)


def test_a_leader_at_all_addresses_needs_a_secret():
    with pytest.raises(ValueError, match="without a secret"):
        options(is_host="1")
