"""Is a document posted, and is any failure an OSError?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.programs.attribution.posting import post_json
from tests.edges.peers.certificates import make_authority, make_node
from tests.edges.services.hostile import hostile, json_of, says
from tests.programs.attribution.played import played


def test_a_document_arrives_and_its_answer_comes_back() -> None:
    with played() as server:
        assert post_json(server.url, b'{"a": 1}', 10, {"X-Own": "yes"}) == b"{}"
        assert (server.heard, server.headers[0]["X-Own"]) == ([{"a": 1}], "yes")


def test_a_refusal_and_a_dead_server() -> None:
    with played() as server:
        server.status = 503
        with pytest.raises(OSError, match="it answered 503"):
            post_json(server.url, b"{}", 10)
    with pytest.raises(OSError, match="refused"):
        post_json(server.url, b"{}", 10)
    with pytest.raises(ValueError, match="unknown url type"):
        post_json("nonsense", b"{}", 10)


def test_a_redirect_is_not_followed_and_takes_no_key_elsewhere() -> None:
    with hostile(json_of("{}")) as other:
        moved = b"HTTP/1.1 302 Found\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % other.url.encode()
        with hostile(says(moved)) as server, pytest.raises(OSError, match="it answered 302"):
            post_json(server.url, b"{}", 10, {"Authorization": "Bearer the key"})
    assert other.requests == []


def test_a_server_of_https_needs_an_authority_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = make_authority(tmp_path)
    with hostile(json_of('{"a": 1}'), make_node(tmp_path, address="127.0.0.1")) as server:
        with pytest.raises(OSError, match="unable to get local issuer certificate"):
            post_json(server.url, b"{}", 10)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        assert post_json(server.url, b"{}", 10) == b'{"a": 1}'
    assert len(server.requests) == 1
