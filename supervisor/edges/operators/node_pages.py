"""Which nodes are on which page of a list, by name, while nodes come and go?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast_wire.v1 import control_pb2 as wire

from supervisor.edges.operators.job_pages import first_of, text_of, token_of, wrong_token
from supervisor.ports.reports import NodeReport

NODES_PAGE_MAX = 10_000  # and the default, because each page asks the nodes again
_PREFIX = "node:"


def page_of(
    nodes: Sequence[NodeReport], encode: Callable[[NodeReport], wire.Node], *, size: int, token: str
) -> tuple[list[wire.Node], str]:
    """Returns one page and the next page's token, "" after the last; a page has PAGE_BYTES_MAX at most.

    Raises InvalidRequestError for a token that no page gave.
    """
    left = sorted(nodes, key=lambda node: node.name)
    if token:
        after = _read_page_token(token)
        left = [node for node in left if node.name > after]
    page, last = first_of(left, encode, size=min(size or NODES_PAGE_MAX, NODES_PAGE_MAX))
    return page, "" if last is None else token_of(f"{_PREFIX}{last.name}")


def _read_page_token(token: str) -> str:
    try:
        text = text_of(token)
    except ValueError:
        text = ""
    if not text.startswith(_PREFIX):
        raise wrong_token("nodes")
    return text.removeprefix(_PREFIX)
