"""Asks a server for its health and its services with gRPC's own packages, in a process of its own; prints JSON.

Our messages have the same names as those packages', so one process cannot load both. The argument is gRPC's target.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, cast

import grpc
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2, status_pb2  # pyright: ignore[reportMissingTypeStubs]
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as reflection
from holdfast_wire.v1 import control_pb2 as wire

LIMIT_S = 20.0


def main() -> None:
    with grpc.insecure_channel(sys.argv[1]) as channel:
        json.dump(
            {
                "health": dict(_health(channel)),
                "watched": _watched(channel),
                "refused": _refused(channel),
                **_reflected(channel),
            },
            sys.stdout,
        )


def _health(channel: grpc.Channel) -> Iterator[tuple[str, str]]:
    check = cast("Any", channel).unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    for service in ("", "holdfast.v1.Supervisor", "other"):
        try:
            answer = check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S)
            yield service, health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        except grpc.RpcError as error:
            yield service, cast("Any", error).code().name


def _watched(channel: grpc.Channel) -> str:
    watch = cast("Any", channel).unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    call = watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    first = next(call)
    call.cancel()
    return health_pb2.HealthCheckResponse.ServingStatus.Name(first.status)


def _refused(channel: grpc.Channel) -> list[str]:
    get_job = cast("Any", channel).unary_unary(
        "/holdfast.v1.Supervisor/GetJob", request_serializer=wire.GetJobRequest.SerializeToString
    )
    try:
        get_job(wire.GetJobRequest(job_id="other"), timeout=LIMIT_S)
    except grpc.RpcError as error:
        trailers = dict(cast("Any", error).trailing_metadata())
        status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        return [status.message, info.reason, info.domain]
    return []


def _reflected(channel: grpc.Channel) -> dict[str, object]:
    reflect = cast("Any", channel).stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection.ServerReflectionRequest(list_services=""),
        reflection.ServerReflectionRequest(file_containing_symbol="holdfast.v1.Supervisor"),
        reflection.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"),
        reflection.ServerReflectionRequest(file_by_filename="no/such.proto"),
        reflection.ServerReflectionRequest(all_extension_numbers_of_type="holdfast.v1.Job"),
    ]
    services, own, health, *errors = list(reflect(iter(asked), timeout=LIMIT_S))
    told = [
        descriptor_pb2.FileDescriptorProto.FromString(each)
        for answer in (own, health)
        for each in answer.file_descriptor_response.file_descriptor_proto
    ]
    return {
        "services": [each.name for each in services.list_services_response.service],
        "files": {file.name: list(file.dependency) for file in told},
        "defined": [f"{file.package}.{service.name}" for file in told for service in file.service],
        "errors": [each.error_response.error_code for each in errors],
    }


if __name__ == "__main__":
    main()
