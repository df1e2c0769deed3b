"""Is a request of a foreign page told from one of a program, or of the server's own page?"""

from __future__ import annotations

import pytest

from supervisor.edges.operators.cross_origin_check import is_name_of_here, page_elsewhere


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:8790", True), ("[::1]:8790", True), ("[::1]", True), ("localhost:9000", True), ("10.1.2.3", True),
        ("evil.example:8790", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example:80", False),
        ("", False),
    ],
)  # fmt: skip
def test_names_that_nobody_else_can_point_here(host: str, is_ours: bool) -> None:
    assert is_name_of_here(host) is is_ours


@pytest.mark.parametrize(
    ("headers", "page"),
    [
        ({}, ""),
        ({"origin": "http://localhost:1", "sec-fetch-site": "same-origin"}, ""),
        ({"origin": "https://localhost:1"}, ""),
        ({"origin": "http://localhost:2"}, "a page of 'http://localhost:2'"),
        ({"origin": "null"}, "a page of 'null'"),
        ({"sec-fetch-site": "same-site"}, "a page of another address"),
        ({"sec-fetch-site": "cross-site"}, "a page of another address"),
    ],
)
def test_a_page_of_another_address_is_named(headers: dict[str, str], page: str) -> None:
    assert page_elsewhere({"host": "localhost:1", **headers}) == page
