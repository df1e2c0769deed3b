"""A token file is a secret, or it is refused; with certificates, the token is proved beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.edges.peers.handshake import job_secrets
from supervisor.errors import ConfigurationError
from tests.edges.peers.certificates import make_authority, make_node

TOKEN = b"a token of the test"


def test_a_token_file_is_a_secret(tmp_path: Path):
    path = tmp_path / "token"
    with pytest.raises(ConfigurationError, match="cannot read the token file"):
        job_secrets.read_token(path)
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others may read it; run chmod 600"):
        job_secrets.read_token(path)
    path.chmod(0o600)
    assert job_secrets.read_token(path) == TOKEN
    path.write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="it has 5 bytes, and a secret has 16 or more"):
        job_secrets.read_token(path)
    path.write_bytes(b"abcab" * 8)
    with pytest.raises(ConfigurationError, match="it has 3 different characters, so that it can be guessed"):
        job_secrets.read_token(path)


def test_what_is_given_protects_the_connections(tmp_path: Path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN)
    path.chmod(0o600)
    make_authority(tmp_path)
    files = make_node(tmp_path)
    assert job_secrets.read("", None) is None
    for token_file, given, is_from_token, token in (
        (str(path), None, True, TOKEN),
        (str(path), files, False, TOKEN),
        ("", files, False, b""),
    ):
        tls = job_secrets.read(token_file, given)
        assert tls is not None
        assert (tls.is_from_token, tls.token) == (is_from_token, token)
