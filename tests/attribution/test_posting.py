"""Is a document posted, and is what goes wrong an OSError?"""

from __future__ import annotations

import pytest

from supervisor.attribution.posting import post_json
from tests.attribution.played import played


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
