"""The program that a user has put in the place of her own supervisor: it says what the file of lies says.

It has nothing but her rights, serves the real control API behind the real connection dispatcher, and reads the file at
each call, so that a test changes what it says while it runs.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar, cast

sys.path.insert(0, str(Path(__file__).parents[3]))

import anyio
import grpc as typed_grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from holdfast_wire.v1 import control_pb2 as wire

from supervisor.edges.operators.control_encoding import SERVICE, refusal_to_wire
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users.user_link import HandoverReceiver
from supervisor.errors import NotFoundError

handover_fd, lies_path = int(sys.argv[1]), Path(sys.argv[2])
AnyMessage = TypeVar("AnyMessage", bound=Message)
grpc = cast("Any", typed_grpc)  # its stubs ask for types of requests that it does not need
ADDRESS = f"deceiver-{os.getpid()}"


def lies() -> dict[str, Any]:
    return json.loads(lies_path.read_text())


def filled(message: AnyMessage, said: dict[str, Any]) -> AnyMessage:
    return json_format.ParseDict(said, message, ignore_unknown_fields=True)


def note(call: str) -> None:
    """Records which calls came, beside the lies."""
    with (lies_path.parent / "calls").open("a") as file:
        file.write(f"{call}\n")


def job() -> wire.Job:
    return filled(wire.Job(), lies()["jobs"][0])


def list_jobs(_: bytes, context: typed_grpc.ServicerContext) -> bytes:
    said = begin("ListJobs", context)
    if "unending" in said:  # pages without end, each as large as a message may be
        return wire.ListJobsResponse(jobs=[job()] * said["unending"], next_page_token="more").SerializeToString()
    if "empty_ranks" in said:  # two bytes each
        return wire.ListJobsResponse(
            jobs=[wire.Job(job_id="wide", ranks=[wire.Rank()] * said["empty_ranks"])]
        ).SerializeToString()
    return filled(wire.ListJobsResponse(), {"jobs": said.get("jobs", [])}).SerializeToString()


def begin(call: str, context: typed_grpc.ServicerContext) -> dict[str, Any]:
    note(call)
    said = lies()
    time.sleep(said.get("sleep_s", 0) or said.get("sleeps_s", {}).get(call, 0))
    if call in said.get("refusals", {}):
        context.abort(grpc.StatusCode.UNKNOWN, said["refusals"][call])
    return said


def watch(_: bytes, context: typed_grpc.ServicerContext) -> Iterator[bytes]:
    said = begin("WatchJob", context)
    yield wire.WatchJobResponse(snapshot=job()).SerializeToString()
    for told in said.get("notes", []):
        yield wire.WatchJobResponse(note=told).SerializeToString()
    for told in said.get("events", []):
        yield wire.WatchJobResponse(event=filled(wire.Event(), told)).SerializeToString()
    while said.get("unending_events"):
        yield wire.WatchJobResponse(event=wire.Event(kind="x", reason="y" * 1000)).SerializeToString()


def logs(_: bytes, context: typed_grpc.ServicerContext) -> Iterator[bytes]:
    said = begin("StreamLogs", context)
    if said.get("has_no_logs"):
        refusal = refusal_to_wire(NotFoundError("cannot show output of job mine: there is none"))
        context.set_trailing_metadata((("grpc-status-details-bin", refusal),))
        context.abort(grpc.StatusCode.NOT_FOUND, "gone")
    for told in said.get("logs", []):
        yield wire.LogChunk(data=told.encode()).SerializeToString()
    while said.get("unending_logs"):
        yield wire.LogChunk(data=b"z" * 60_000).SerializeToString()


def stacks(_: bytes, context: typed_grpc.ServicerContext) -> bytes:
    return filled(wire.GetStacksResponse(), begin("GetStacks", context).get("stacks", {})).SerializeToString()


def list_nodes(_: bytes, context: typed_grpc.ServicerContext) -> bytes:
    return filled(wire.ListNodesResponse(), {"nodes": begin("ListNodes", context).get("nodes", [])}).SerializeToString()


def taken(name: str, answer: Message) -> Callable[[bytes, typed_grpc.ServicerContext], bytes]:
    def take(_: bytes, context: typed_grpc.ServicerContext) -> bytes:
        begin(name, context)
        return answer.SerializeToString()

    return take


def get_job(_: bytes, context: typed_grpc.ServicerContext) -> bytes:
    begin("GetJob", context)
    return job().SerializeToString()


def handlers() -> object:
    unary = {
        "ListJobs": list_jobs,
        "GetJob": get_job,
        "StopJob": taken("StopJob", wire.StopJobResponse()),
        "RestartJob": taken("RestartJob", wire.RestartJobResponse(next_cycle=1)),
        "GetStacks": stacks,
        "ListNodes": list_nodes,
        "CordonNode": taken("CordonNode", wire.Node(name="n")),
    }
    streams = {"WatchJob": watch, "StreamLogs": logs}
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {name: grpc.unary_unary_rpc_method_handler(each) for name, each in unary.items()}
        | {name: grpc.unary_stream_rpc_method_handler(each) for name, each in streams.items()},
    )


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def take(client: socket.socket) -> None:
    client.setblocking(True)
    inner = socket.socket(socket.AF_UNIX)
    inner.connect(f"\0{ADDRESS}")
    for pair in ((client, inner), (inner, client)):
        threading.Thread(target=copy, args=pair, daemon=True).start()


def hear(word: messages.ToUser) -> None:
    if isinstance(word, messages.End | messages.Leave):
        os._exit(0)


async def main() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(64), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers([handlers()])
    server.add_insecure_port(f"unix-abstract:{ADDRESS}")
    server.start()
    await HandoverReceiver(handover_fd, take=take, hear=hear).run()


anyio.run(main)
