"""What is wrong with the nodes of a submitted job that no flags could express?

A specification that came as JSON is checked as strictly as flags are; rendezvous_settings.py judges what flags say.
"""

from __future__ import annotations

import ipaddress
import os

from supervisor.config.job_spec import JobSpec, Nodes
from supervisor.config.launch_values import NODES_MAX, parse_address
from supervisor.config.values import ValueProblem
from supervisor.core.facts import NodeFacts

RANK_MAX = 2**63 - 1
WORD_CHARACTERS_MAX = 256
FILES = ("token_file", "tls_cert", "tls_key", "tls_ca")


def fault_of(spec: JobSpec) -> str:
    """Returns the first fault, with the field's name; "" if nothing is wrong."""
    if spec.nodes is None:
        return "" if spec.restart.min_nodes == 1 else "restart.min_nodes: a job without nodes has one node"
    return _fault_of(spec.nodes) or _disagreement(spec, spec.nodes) or _fault_of_facts(spec.facts)


def _fault_of(nodes: Nodes) -> str:
    if not (1 <= nodes.min_nodes <= nodes.max_nodes <= NODES_MAX and nodes.max_nodes > 1):
        return f"nodes.min_nodes, nodes.max_nodes: the minimum is 1 or more, and the maximum above 1, up to {NODES_MAX}"
    if not 1 <= nodes.port <= 65535:
        return "nodes.port: a port is 1 to 65535"
    try:
        parse_address(nodes.host)
    except ValueProblem as problem:
        return f"nodes.host: {problem.why}"
    for name in ("name", "backend"):
        if not _is_word(getattr(nodes, name)):
            return f"nodes.{name}: it is empty, too long or not printable"
    for name in FILES:
        path = getattr(nodes, name)
        if path and (not os.path.isabs(path) or "\0" in path):
            return f"nodes.{name}: it is not an absolute path"
    for name in ("join_timeout_s", "leader_ttl_s"):
        if not getattr(nodes, name) > 0:
            return f"nodes.{name}: it is not a time above 0"
    if not 1 <= nodes.fan_out <= NODES_MAX:
        return f"nodes.fan_out: 1 to {NODES_MAX} nodes are connected to the leader itself"
    has_tls = [bool(getattr(nodes, name)) for name in FILES[1:]]
    if any(has_tls) and not all(has_tls):
        return "nodes.tls_cert, nodes.tls_key, nodes.tls_ca: some of the three are missing"
    if not nodes.token_file and not any(has_tls) and not is_of_this_machine(nodes.host):
        return "nodes.token_file: anybody who reaches that address could join the job"
    return ""


def is_of_this_machine(host: str) -> bool:
    """Returns whether no other machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _disagreement(spec: JobSpec, nodes: Nodes) -> str:
    """Finds a difference between the two places in which the job says the same."""
    segment, group_size = spec.rendezvous.segment, spec.rendezvous.replacement_group_size
    if spec.restart.min_nodes != nodes.min_nodes:
        return "restart.min_nodes: it is not nodes.min_nodes"
    if spec.rendezvous.max_nodes != nodes.max_nodes:
        return "rendezvous.max_nodes: it is not nodes.max_nodes"
    if not (spec.rendezvous.join_timeout_s > 0 and spec.rendezvous.last_call_s >= 0):
        return "rendezvous.join_timeout_s, rendezvous.last_call_s: a time is below the least value"
    if segment is not None and (segment < 1 or nodes.min_nodes % segment):
        return "rendezvous.segment: nodes.min_nodes is not a multiple of it"
    if group_size is not None and group_size < 1:
        return "rendezvous.replacement_group_size: it is below the least value 1"
    return ""


def _fault_of_facts(facts: NodeFacts) -> str:
    if facts.infrastructure_rank is not None and not 0 <= facts.infrastructure_rank <= RANK_MAX:
        return f"facts.infrastructure_rank: a rank is 0 to {RANK_MAX}"
    for name in ("rank_source", "domain", "replacement_group", "program"):
        text = getattr(facts, name)
        if text and not _is_word(text):
            return f"facts.{name}: it is too long or not printable"
    return ""


def _is_word(text: str) -> bool:
    return 0 < len(text) <= WORD_CHARACTERS_MAX and text.isprintable()
