"""Is a gRPC call made as any server expects, and is every other answer an error with its reason? Attacks:
test_nvhcd_client.py.
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from supervisor.edges.machine.health import grpc_call
from supervisor.edges.machine.health.grpc_call import AnswerTooLargeError, CallFailedError

BYTES_MAX = 200_000


def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
    if request == b"refuse":
        cast("Any", context).abort(grpc.StatusCode.NOT_FOUND, "there is none: 100 %, café")
    if request == b"deadline":
        return str(round(cast("Any", context).time_remaining())).encode()
    return request * (BYTES_MAX if request == b"large" else 1)


@pytest.fixture
def server(tmp_path: Path) -> Generator[Path]:
    path = tmp_path / "s"
    method = cast("Any", grpc).unary_unary_rpc_method_handler(answer)
    served = cast("Any", grpc).server(futures.ThreadPoolExecutor(1))
    served.add_generic_rpc_handlers((cast("Any", grpc).method_handlers_generic_handler("a.B", {"C": method}),))
    served.add_insecure_port(f"unix:{path}")
    served.start()
    yield path
    served.stop(0).wait()


async def call(path: Path, request: bytes, method: str = "/a.B/C") -> bytes:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.setblocking(False)
        return await grpc_call.call(peer, method, request, answer_bytes_max=BYTES_MAX, timeout_s=7)


async def test_the_answer_and_the_deadline(server: Path) -> None:
    assert await call(server, b"x") == b"x"
    assert await call(server, b"deadline") in (b"6", b"7")


async def test_a_status_is_named_with_its_text(server: Path) -> None:
    with pytest.raises(CallFailedError, match="failed with NOT_FOUND: there is none: 100 %, café"):
        await call(server, b"refuse")
    with pytest.raises(CallFailedError, match="failed with UNIMPLEMENTED"):
        await call(server, b"x", "/a.B/D")


async def test_an_answer_that_is_too_large(server: Path) -> None:
    with pytest.raises(AnswerTooLargeError):
        await call(server, b"large")
