"""Do pages show every node once, by name, while nodes come and go?"""

from __future__ import annotations

import base64

import pytest

from supervisor.edges.operators.control_encoding import node_to_wire
from supervisor.edges.operators.job_pages import PAGE_BYTES_MAX
from supervisor.edges.operators.node_pages import NODES_PAGE_MAX, page_of
from supervisor.errors import InvalidRequestError
from supervisor.ports.reports import NodeReport


def named(*names: str) -> list[NodeReport]:
    return [NodeReport(name, "ready", supervisor_pid=1, version="0.1.0", started_at_ns=1) for name in names]


def test_each_node_that_stays_is_shown_once() -> None:
    nodes = named("n5", "n1", "n4", "n2", "n3")
    first, token = page_of(nodes, node_to_wire, size=2, token="")
    nodes = named("n0", "n1", "n3", "n4", "n5", "n6")  # n2, the last one shown, has gone
    second, last = page_of(nodes, node_to_wire, size=3, token=token)
    third, end = page_of(nodes, node_to_wire, size=3, token=last)
    assert [[node.name for node in page] for page in (first, second, third)] == [
        ["n1", "n2"], ["n3", "n4", "n5"], ["n6"],
    ]  # fmt: skip
    assert end == ""


def test_the_last_page_may_be_full_and_no_nodes_are_no_page() -> None:
    assert page_of(named("a", "b"), node_to_wire, size=2, token="")[1] == ""
    assert page_of([], node_to_wire, size=2, token="") == ([], "")


def test_a_page_is_bounded_in_nodes_and_bytes() -> None:
    nodes = named(*(f"{number:06}" for number in range(NODES_PAGE_MAX + 1)))
    for size in (0, 10**6):
        assert len(page_of(nodes, node_to_wire, size=size, token="")[0]) == NODES_PAGE_MAX
    long = named(*(f"{number}" + "x" * (PAGE_BYTES_MAX // 3) for number in range(5)))
    page, token = page_of(long, node_to_wire, size=0, token="")
    assert 0 < sum(node.ByteSize() for node in page) <= PAGE_BYTES_MAX
    assert len(page) < len(long)
    assert token


@pytest.mark.parametrize("token", ["?", "bm8=", "é", base64.urlsafe_b64encode(b"1000:a-job").decode()])
def test_a_token_that_no_page_gave_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot list nodes: page_token is not one that an earlier page gave"):
        page_of(named("a"), node_to_wire, size=1, token=token)
