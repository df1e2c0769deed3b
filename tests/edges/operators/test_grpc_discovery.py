"""Do programs learn that a supervisor serves, and what, as from any gRPC server?"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as reflection

from tests.edges.operators.fake_job_service import FakeJobService, serving
from tests.edges.operators.test_control_api import ask


async def test_health(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with serving(FakeJobService(), path), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        for service in ("", "holdfast.v1.Supervisor"):
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await ask(channel, "/grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        request = health_pb2.HealthCheckRequest(service="other")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(channel, "/grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watch = cast("Any", channel).unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        call = watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        call.cancel()


async def test_reflection(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with serving(FakeJobService(), path), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        reflect = cast("Any", channel).stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection.ServerReflectionResponse.FromString,
        )
        asked = [
            reflection.ServerReflectionRequest(list_services=""),
            reflection.ServerReflectionRequest(file_containing_symbol="holdfast.v1.Supervisor"),
            reflection.ServerReflectionRequest(file_by_filename="no/such.proto"),
            reflection.ServerReflectionRequest(all_extension_numbers_of_type="holdfast.v1.Job"),
        ]
        services, files, *errors = [answer async for answer in reflect(iter(asked))]
        names = {each.name for each in services.list_services_response.service}
        assert {"holdfast.v1.Supervisor", "grpc.health.v1.Health"} <= names
        told = [
            descriptor_pb2.FileDescriptorProto.FromString(each)
            for each in files.file_descriptor_response.file_descriptor_proto
        ]
        assert "Supervisor" in {service.name for file in told for service in file.service}
        assert {needed for file in told for needed in file.dependency} <= {file.name for file in told}
        assert [each.error_response.error_code for each in errors] == [5, 5]
