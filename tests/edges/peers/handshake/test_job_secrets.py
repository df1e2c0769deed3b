"""A token, certificates or both protect the connections; with certificates, the token is proved beside them."""

from __future__ import annotations

from pathlib import Path

from supervisor.edges.peers.handshake import job_secrets
from tests.edges.peers.certificates import make_authority, make_node

TOKEN = b"a token of the test"


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
