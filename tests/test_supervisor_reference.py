"""Does docs/reference/supervisor.md name each socket, signal and hidden command that there is?

And do the documents name each variable of the environment that is Holdfast's own?
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from supervisor.cli import commands
from supervisor.edges.machine.folders.socket_dir import CONTROL_SOCKET, WORKER_SOCKET
from supervisor.edges.operators.metrics import exporter
from supervisor.wiring import daemon_services, users_daemon

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/reference/supervisor.md").read_text()
NAMED = {each.partition("=")[0] for each in PAGE.split("`")[1::2]}

# Between a supervisor and its own spawner: nobody else may set them.
INTERNAL_VARIABLES = {"HOLDFAST_SPAWNER_COMMAND", "HOLDFAST_SPAWNER_FD", "HOLDFAST_SPAWNER_SETTINGS"}


def handled(file: str | None) -> set[str]:
    """The signals that a service's source names as what it acts on."""
    tree = ast.walk(ast.parse(Path(str(file)).read_text()))
    texts = {str(node.value) for node in tree if isinstance(node, ast.Constant)}
    return {text for text in texts if text.startswith("SIG")}


def test_sockets():
    assert {CONTROL_SOCKET, exporter.METRICS_SOCKET, f"worker/{WORKER_SOCKET}"} <= NAMED


def test_signals():
    signals = {each for each in handled(users_daemon.__file__) | handled(daemon_services.__file__) if each.isupper()}
    assert len(signals) > 3
    assert {each for each in signals if each not in PAGE} == set()


def test_hidden_commands():
    hidden = {each.name for each in (commands.ADOPT, commands.SERVE_USER, commands.LOG_TIER)}
    assert {f"holdfast {each}" for each in hidden} <= NAMED


def test_variables():
    sources = [path for folder in ("supervisor", "worker_client") for path in (ROOT / folder).rglob("*.py")]
    texts = {
        node.value
        for path in sources
        if "HOLDFAST_" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    variables = {text.rstrip("=") for text in texts if re.fullmatch(r"HOLDFAST_[A-Z0-9_]+=?", text)}
    assert variables > INTERNAL_VARIABLES
    documents = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    # One that ends in _ is the beginning of several names.
    patterns = {text: rf"\b{text}" if text.endswith("_") else rf"\b{text}\b" for text in variables}
    named = {text for text, pattern in patterns.items() if re.search(pattern, documents)}
    assert variables - named == INTERNAL_VARIABLES
