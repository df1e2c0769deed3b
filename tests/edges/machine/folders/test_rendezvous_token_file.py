"""Is the token that a user's nodes share made once, and closed to others, whoever comes first?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import rendezvous_token_file
from supervisor.errors import ConfigurationError

TOKEN = b"a token of the test"
MAKE = """
import sys
from supervisor.edges.machine.folders import rendezvous_token_file
sys.stdin.readline()
print(rendezvous_token_file.make(sys.argv[1]))
"""


def test_it_is_made_once_readable_by_its_owner_and_random(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        paths = [tmp_path / home / ".config" / "holdfast" / "token" for home in ("a", "b")]
        assert [rendezvous_token_file.make(str(path)) for path in (*paths, *paths)] == [True, True, False, False]
    finally:
        os.umask(old)
    assert [path.stat().st_mode & 0o777 for path in (paths[0], paths[0].parent)] == [0o600, 0o700]
    assert len({rendezvous_token_file.read(path) for path in paths}) == 2
    assert os.listdir(paths[0].parent) == ["token"]


def test_of_nodes_that_start_at_the_same_moment_one_makes_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE, str(tmp_path / "token")]
    pipe = subprocess.PIPE
    runs = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(6)]
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    said = [run.communicate()[0].strip() for run in runs]
    assert sorted(said) == ["False"] * 5 + ["True"]
    assert os.listdir(tmp_path) == ["token"]


def test_where_it_cannot_be_made_the_error_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot make the token .*: .*; write --rdzv-conf token_file=F"):
        rendezvous_token_file.make(str(tmp_path / "file" / "token"))


def test_a_token_file_is_a_secret(tmp_path: Path):
    path = tmp_path / "token"
    with pytest.raises(ConfigurationError, match="cannot read the token file"):
        rendezvous_token_file.read(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigurationError, match="it is a pipe, not a regular file"):
        rendezvous_token_file.read(tmp_path / "pipe")
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others may read it; run chmod 600"):
        rendezvous_token_file.read(path)
    path.chmod(0o600)
    assert rendezvous_token_file.read(path) == TOKEN
    path.write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="it has 5 bytes, and a secret has 16 or more"):
        rendezvous_token_file.read(path)
    path.write_bytes(b"abcab" * 8)
    with pytest.raises(ConfigurationError, match="it has 3 different characters, so that it can be guessed"):
        rendezvous_token_file.read(path)
