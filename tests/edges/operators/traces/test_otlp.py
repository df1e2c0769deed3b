"""Does a recovery arrive as one trace, in the SDK's own exporter and at a collector?"""

from __future__ import annotations

import builtins
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from supervisor.edges.operators.traces import otlp
from supervisor.errors import ConfigurationError
from tests.e2e.daemons import NodeDaemon
from tests.edges.operators.traces.test_recoveries import event, found

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'holdfast-torch[otel]'")

WORKER = "import os, sys; sys.exit(os.environ['HOLDFAST_CYCLE'] == '0' and os.environ['RANK'] == '1')"


def exported(*kinds_at_s: tuple[str, int]) -> dict[str, Any]:
    """Returns the spans of the one trace, by name."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    (recovery,) = found(*(event(kind, at_s) for kind, at_s in kinds_at_s))
    otlp.trace(provider.get_tracer("test"), recovery)
    spans = exporter.get_finished_spans()
    assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
    return {span.name: span for span in spans}


def test_a_recovery_is_one_trace_with_its_phases_as_spans():
    spans = exported(("worker_failed", 1), ("workers_stopping", 2), ("workers_stopped", 4), ("running_again", 9))
    whole = spans["recovery"]
    assert set(spans) == {"recovery", "decide", "stop", "start"}
    assert (whole.start_time, whole.end_time, whole.parent) == (10**9, 9 * 10**9, None)
    for name, began_s, ended_s in (("decide", 1, 2), ("stop", 2, 4), ("start", 4, 9)):
        assert (spans[name].start_time, spans[name].end_time) == (began_s * 10**9, ended_s * 10**9)
        assert spans[name].parent.span_id == whole.context.span_id
    assert whole.attributes["holdfast.cause"] == "worker_failed"
    assert whole.attributes["holdfast.job_id"] == "j"
    assert whole.events[0].name == "worker_failed"
    assert whole.events[0].attributes["holdfast.reason"] == "worker_failed happened"
    assert whole.status.is_unset


def test_a_recovery_that_failed_is_an_error_with_its_reason():
    whole = exported(("worker_failed", 1), ("workers_stopping", 2), ("job_failed", 3))["recovery"]
    assert not whole.status.is_ok
    assert whole.status.description == "job_failed happened"


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    def without(name: str, *rest: Any) -> object:  # noqa: ANN401 - any argument of an import
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    assert otlp.handlers("") == ()
    with pytest.raises(ConfigurationError, match=r"cannot send traces to http://x: .* extra \[otel\]") as caught:
        otlp.handlers("http://x")
    assert f"{sys.executable} -m pip install '.[otel]'" in str(caught.value)


def test_a_service_without_a_name_of_its_own_is_holdfast(monkeypatch: pytest.MonkeyPatch):
    from opentelemetry.sdk.trace import TracerProvider

    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    made: list[object] = []

    def add_span_processor(provider: TracerProvider, _: object) -> None:
        made.append(provider.resource.attributes["service.name"])

    monkeypatch.setattr(TracerProvider, "add_span_processor", add_span_processor)
    otlp.handlers("http://127.0.0.1:9")
    assert made == ["holdfast"]


def test_a_daemon_sends_its_recoveries_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "holdfast-berlin")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,host.name=n1")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    arrived: Queue[ExportTraceServiceRequest] = Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                arrived.put(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    script = tmp_path / "train.py"
    script.write_text(WORKER)
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with NodeDaemon(tmp_path / "node", "--otlp-traces", f"http://127.0.0.1:{server.server_port}") as daemon:
                command = [
                    sys.executable, "-m", "supervisor", "run", "--socket-dir", str(daemon.socket_dir),
                    "--nproc-per-node", "2", "--max-restarts", "1", "--job-id", "traced", str(script),
                ]  # fmt: skip
                subprocess.run(command, check=True, timeout=60, capture_output=True)
                request = arrived.get(timeout=30)
        finally:
            server.shutdown()
            thread.join()
    (resource,) = request.resource_spans
    told = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (told["service.name"], told["host.name"]) == ("holdfast-berlin", "n1")
    assert told["deployment.environment.name"] == "prod"
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    assert {"recovery", "stop", "start"} <= set(spans)
    attributes = {each.key: each.value.string_value for each in spans["recovery"].attributes}
    assert attributes["holdfast.job_id"] == "traced"
    assert attributes["holdfast.cause"] == "worker_failed"
    reasons = [
        each.attributes[0].value.string_value for each in spans["recovery"].events if each.name == "worker_failed"
    ]
    assert any("rank 1 (pid" in reason for reason in reasons), reasons
