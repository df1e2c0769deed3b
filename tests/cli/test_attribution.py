"""Is a mistake in the attribution service's settings reported before it serves?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from supervisor.cli.attribution import listen_address
from tests.programs.attribution.test_service import SERVE


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--app-log-dir", "/nonexistent"], 78, "cannot analyse logs below /nonexistent: it is not a folder"),
        (["--app-log-dir", "/", "--listen", "0.0.0.0:50050"], 2, "anyone who can reach this machine could use it"),
        (["--app-log-dir", "/", "--listen", "50050"], 2, "it is not an address"),
        (["--app-log-dir", "/", "--export-url", "ftp://x"], 2, "it is not an http:// or https:// URL"),
        (["--app-log-dir", "/", "--llm-base-url", "http://x"], 78, "no key is given"),
        (["--app-log-dir", "/", "--llm-base-url", "http://x", "--llm-api-key-file", "/none"], 78, "No such file"),
    ],
)
def test_mistakes(arguments: list[str], code: int, message: str) -> None:
    command = [sys.executable, "-c", SERVE, "attribution", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "LLM_API_KEY_FILE"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_addresses() -> None:
    assert listen_address("127.0.0.1:50050") == ("127.0.0.1", 50050)
    assert listen_address("[::1]:1") == ("::1", 1)
