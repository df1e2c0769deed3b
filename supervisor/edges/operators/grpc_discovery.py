"""How do programs learn whether this supervisor serves, and what? grpc.health.v1 and gRPC's reflection."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from holdfast_wire.v1 import health_pb2, reflection_pb2

from supervisor.edges.operators.control_encoding import SERVICE
from supervisor.edges.rpc.grpc_connection import Call, Handler
from supervisor.edges.rpc.statuses import CallError, Status

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
_SERVICES = (SERVICE, HEALTH, REFLECTION)


def handlers() -> Mapping[bytes, Handler]:
    return {
        f"/{HEALTH}/Check".encode(): _check,
        f"/{HEALTH}/Watch".encode(): _watch,
        f"/{REFLECTION}/ServerReflectionInfo".encode(): _reflect,
    }


async def _status(call: Call) -> health_pb2.HealthCheckResponse:
    try:
        service = health_pb2.HealthCheckRequest.FromString(await call.receive() or b"").service
    except DecodeError as error:
        raise CallError(Status.INVALID_ARGUMENT, "cannot answer Check: the request can't be decoded") from error
    is_known = service in ("", *_SERVICES)
    kinds = health_pb2.HealthCheckResponse
    return kinds(status=kinds.SERVING if is_known else kinds.SERVICE_UNKNOWN)


async def _check(call: Call) -> None:
    answer = await _status(call)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise CallError(Status.NOT_FOUND, "cannot answer Check: there is no such service here")
    await call.send(answer.SerializeToString())


async def _watch(call: Call) -> None:
    await call.send((await _status(call)).SerializeToString())
    await anyio.sleep_forever()  # It serves until its end, which ends the connection.


async def _reflect(call: Call) -> None:
    while (message := await call.receive()) is not None:
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(message)
        except DecodeError as error:
            raise CallError(Status.INVALID_ARGUMENT, "cannot reflect: the request can't be decoded") from error
        answer = reflection_pb2.ServerReflectionResponse(valid_host=request.host, original_request=request)
        _fill(answer, request)
        await call.send(answer.SerializeToString())


def _fill(answer: reflection_pb2.ServerReflectionResponse, request: reflection_pb2.ServerReflectionRequest) -> None:
    pool = descriptor_pool.Default()
    try:
        match request.WhichOneof("message_request"):
            case "list_services":
                answer.list_services_response.service.extend(
                    reflection_pb2.ServiceResponse(name=name) for name in _SERVICES
                )
            case "file_by_filename":
                _add_files(answer, pool.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                _add_files(answer, pool.FindFileContainingSymbol(request.file_containing_symbol))
            case _:  # Our messages have no extensions.
                answer.error_response.error_code = Status.NOT_FOUND
                answer.error_response.error_message = "there are no extensions"
    except KeyError as error:
        answer.error_response.error_code = Status.NOT_FOUND
        answer.error_response.error_message = str(error)


def _add_files(answer: reflection_pb2.ServerReflectionResponse, file: FileDescriptor) -> None:
    """Adds a file and all files that it needs."""
    found: dict[str, FileDescriptor] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each.name not in found:
            found[each.name] = each
            waiting += each.dependencies
    answer.file_descriptor_response.file_descriptor_proto.extend(each.serialized_pb for each in found.values())
