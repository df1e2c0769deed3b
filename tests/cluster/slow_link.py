"""The fault proxy as a process on a lab's switch: a connection to a node that is slow, stalls or breaks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.lab import NETWORK, SWITCH, Lab, Node

ROOT = Path(__file__).parents[2]


class SlowLink:
    def __init__(self, lab: Lab, to: Node, port: int, seed: int) -> None:
        self.endpoint = f"{NETWORK}.{SWITCH}:{port}"
        proxy = (sys.executable, "-m", "tests.cluster.fault_proxy", "--listen", self.endpoint)
        self._process = subprocess.Popen(
            lab.switch.command(*proxy, "--to", f"{to.address}:{port}", "--seed", str(seed)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip
        self._expect("ready")

    def say(self, line: str) -> None:
        """Sends a line of fault_proxy.py; returns once it is in effect."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said == word, f"the proxy says {said!r}, not {word!r}"

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def slow_link(lab: Lab, to: Node, port: int, *, seed: int) -> Generator[SlowLink]:
    link = SlowLink(lab, to, port, seed)
    try:
        yield link
    finally:
        link.close()
