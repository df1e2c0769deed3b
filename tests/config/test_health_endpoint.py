"""Which sockets can be named, and which are refused?"""

from __future__ import annotations

import pytest

from supervisor.config.health_endpoint import parse_endpoint
from supervisor.config.values import ValueProblem


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("/var/run/nvhcd.sock", "/var/run/nvhcd.sock"),
        ("./nvhcd.sock", "./nvhcd.sock"),
        ("unix:///var/run/nvhcd.sock", "/var/run/nvhcd.sock"),
        ("", ""),
    ],
)
def test_the_socket_of_an_endpoint(endpoint: str, path: str) -> None:
    assert parse_endpoint(endpoint) == path


@pytest.mark.parametrize(
    "endpoint", ["localhost:50051", "unix:/var/run/x", "unix://x", "http://h/p", "nvhcd.sock", "/" + "x" * 200]
)
def test_anything_else_is_refused_with_what_to_write(endpoint: str) -> None:
    with pytest.raises(ValueProblem) as refused:
        parse_endpoint(endpoint)
    assert refused.value.why
    assert "such as /var/run/nvhcd.sock" in refused.value.remedy
