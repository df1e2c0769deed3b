"""Are a submitted job's nodes refused if no flags could describe them, and accepted if flags could?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.config.job_spec import JobSpec
from supervisor.config.job_spec_json import job_spec_from_json, job_spec_to_json
from supervisor.config.submitted_nodes import fault_of
from supervisor.errors import InvalidRequestError
from tests.config.runs import request

MEET = ("--nnodes", "2:3", "--rdzv-id", "night-7", "--rdzv-endpoint", "127.0.0.1:29400", "--local-addr", "127.0.0.2")
SPEC = request(*MEET, "--ft-segment", "2", "--rdzv-conf", "nvlink_domain=d", "t.py").spec


def of_nodes(**changes: Any) -> JobSpec:  # noqa: ANN401 - any field's value
    assert SPEC.nodes is not None
    return replace(SPEC, nodes=replace(SPEC.nodes, **changes))


def test_what_flags_say_travels_whole():
    assert fault_of(SPEC) == ""
    assert job_spec_from_json(job_spec_to_json(SPEC)) == SPEC


@pytest.mark.parametrize(
    "changes",
    [
        {"token_file": "/srv/me/token", "host": "10.0.0.1"},
        {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a", "host": "head"},
        {"host": "::1"},
        {"backend": "etcd", "backend_options": (("cacert", "/ca.pem"),), "leader_ttl_s": 5.0},
    ],
)
def test_each_way_to_meet_travels(changes: dict[str, Any]):
    spec = of_nodes(**changes)
    assert job_spec_from_json(job_spec_to_json(spec)) == spec


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (of_nodes(min_nodes=0), "nodes.min_nodes, nodes.max_nodes: the minimum is 1 or more"),
        (of_nodes(min_nodes=4), "nodes.min_nodes, nodes.max_nodes: the minimum is 1 or more"),
        (of_nodes(min_nodes=1, max_nodes=1), "nodes.min_nodes, nodes.max_nodes: the minimum is 1 or more"),
        (of_nodes(max_nodes=100_001), "nodes.min_nodes, nodes.max_nodes: the minimum is 1 or more"),
        (of_nodes(min_nodes=1), "restart.min_nodes: it is not nodes.min_nodes"),
        (of_nodes(max_nodes=9), "rendezvous.max_nodes: it is not nodes.max_nodes"),
        (of_nodes(port=0), "nodes.port: a port is 1 to 65535"),
        (of_nodes(host="a b"), "nodes.host: it is neither a host name nor an address"),
        (of_nodes(host="a..b"), "nodes.host: each part of a host's name has 1 to 63 characters"),
        (of_nodes(host=""), "nodes.host: it is neither a host name nor an address"),
        (of_nodes(host="10.0.0.1"), "nodes.token_file: anybody who reaches that address could join the job"),
        (of_nodes(name=""), "nodes.name: it is empty"),
        (of_nodes(name="a\nb"), "nodes.name: it is empty, too long or not printable"),
        (of_nodes(backend="x" * 300), "nodes.backend: it is empty, too long or not printable"),
        (of_nodes(token_file="token"), "nodes.token_file: it is not an absolute path"),
        (of_nodes(token_file="/a\0b"), "nodes.token_file: it is not an absolute path"),
        (of_nodes(fan_out=0), "nodes.fan_out: 1 to 100000 nodes are connected to the leader itself"),
        (of_nodes(join_timeout_s=0.0), "nodes.join_timeout_s: it is not a time above 0"),
        (of_nodes(tls_cert="/c", tls_key="/k"), "nodes.tls_cert, nodes.tls_key, nodes.tls_ca: some of the three"),
        (replace(SPEC, facts=replace(SPEC.facts, infrastructure_rank=-1)), "facts.infrastructure_rank: a rank is 0"),
        (replace(SPEC, facts=replace(SPEC.facts, domain="a\0")), "facts.domain: it is too long or not printable"),
        (
            replace(of_nodes(min_nodes=3), restart=replace(SPEC.restart, min_nodes=3)),
            "rendezvous.segment: nodes.min_nodes is not a multiple of it",
        ),
    ],
)
def test_what_is_refused(spec: JobSpec, fault: str):
    assert fault_of(spec).startswith(fault)
    with pytest.raises(InvalidRequestError):
        job_spec_from_json(job_spec_to_json(spec))


def test_an_unknown_key_of_the_nodes_is_named():
    body = json.loads(job_spec_to_json(SPEC))
    body["nodes"]["sides"] = 3
    with pytest.raises(InvalidRequestError, match=r"nodes\.sides: there is no such field"):
        job_spec_from_json(json.dumps(body))
    del body["nodes"]["sides"], body["nodes"]["host"]
    with pytest.raises(InvalidRequestError, match=r"nodes\.host is missing"):
        job_spec_from_json(json.dumps(body))
