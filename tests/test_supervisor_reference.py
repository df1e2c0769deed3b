"""Does docs/reference/supervisor.md name each socket, signal, rendezvous option and hidden command that there is?"""

from __future__ import annotations

import ast
from pathlib import Path

from supervisor import node_door, node_service
from supervisor.cli import commands
from supervisor.config import many_nodes
from supervisor.edges.machine.folders.socket_dir import CONTROL_SOCKET, WORKER_SOCKET
from supervisor.edges.operators.metrics import exporter
from supervisor.edges.peers.election import etcd_backend

PAGE = (Path(__file__).parent.parent / "docs/reference/supervisor.md").read_text()
NAMED = {each.partition("=")[0] for each in PAGE.split("`")[1::2]}


def handled(file: str | None) -> set[str]:
    """The signals that a service's source names as what it acts on."""
    tree = ast.walk(ast.parse(Path(str(file)).read_text()))
    texts = {str(node.value) for node in tree if isinstance(node, ast.Constant)}
    return {text for text in texts if text.startswith("SIG")}


def test_sockets():
    assert {CONTROL_SOCKET, exporter.METRICS_SOCKET, f"worker/{WORKER_SOCKET}"} <= NAMED


def test_signals():
    signals = {each for each in handled(node_door.__file__) | handled(node_service.__file__) if each.isupper()}
    assert len(signals) > 3
    assert {each for each in signals if each not in PAGE} == set()


def test_rendezvous_options():
    options = many_nodes.OWN_OPTIONS | many_nodes.IDLE_OPTIONS | etcd_backend.OPTIONS
    assert options - NAMED == set()


def test_hidden_commands():
    hidden = {each.name for each in (commands.ADOPT, commands.SERVE_USER, commands.LOG_TIER)}
    assert {f"holdfast {each}" for each in hidden} <= NAMED
