"""How does a recovery get to an OpenTelemetry collector? OpenTelemetry's own SDK sends it from a separate thread."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from supervisor import __version__
from supervisor.edges.operators.traces.recoveries import Recoveries, Recovery
from supervisor.errors import ConfigurationError
from supervisor.ports.reports import RecordedEvent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
DELAY_MAX_MS = 1000  # between the end of a recovery and its export
SEND_TIMEOUT_S = 10


def handlers(url: str) -> tuple[logging.Handler, ...]:
    """Returns handlers that send each recovery in the log's events to `url`; none if `url` is "".

    Raises ConfigurationError if the extra is not installed.
    """
    return (TraceHandler(_tracer(url)),) if url else ()


def check_for_users(url: str) -> None:
    """Raises ConfigurationError if users' supervisors could not send there, or would get to see a password."""
    if "@" in url:
        raise ConfigurationError(
            "cannot use --otlp-traces with --users: its address contains a password, which users could read; "
            "let the collector take traces of this node without one"
        )
    if url:
        for name in ("opentelemetry.sdk", EXPORTER):
            try:
                found = find_spec(name)
            except ModuleNotFoundError:
                found = None
            if found is None:
                raise _lacking(url, name)


class TraceHandler(logging.Handler):
    """Passes the recoveries among the log's events to a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer
        self._recoveries = Recoveries()

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if isinstance(event, RecordedEvent) and (recovery := self._recoveries.take(event)) is not None:
            trace(self._tracer, recovery)


def trace(tracer: Tracer, recovery: Recovery) -> None:
    """Creates one trace: the recovery, its phases as child spans, its events with their reasons."""
    from opentelemetry.trace import Status, StatusCode, set_span_in_context

    first, last = recovery.cause, recovery.end
    attributes = {
        "holdfast.job_id": first.job_id,
        "holdfast.cause": first.kind,
        "holdfast.cycle": last.cycle,
        "holdfast.iteration": last.iteration,
        "holdfast.node": first.node,
    }
    if first.rank is not None:
        attributes["holdfast.rank"] = first.rank
    # An empty context: a recovery does not belong to any trace that is open here.
    whole = tracer.start_span(
        "recovery", context=_nowhere(), start_time=recovery.events[0].at_ns, attributes=attributes
    )
    for event in recovery.events:
        whole.add_event(event.kind, {"holdfast.reason": event.reason}, timestamp=event.at_ns)
    inside = set_span_in_context(whole, _nowhere())
    for name, began_ns, ended_ns in recovery.phases():
        tracer.start_span(name, context=inside, start_time=began_ns).end(ended_ns)
    if not recovery.has_succeeded:
        whole.set_status(Status(StatusCode.ERROR, last.reason))
    whole.end(last.at_ns)


def _nowhere() -> Context:
    from opentelemetry.context import Context

    return Context()


def _tracer(url: str) -> Tracer:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise _lacking(url, error.name) from error
    import socket

    defaults = {"service.name": "holdfast", "service.version": __version__, "host.name": socket.gethostname()}
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which create() takes for weaker than our defaults.
    provider = TracerProvider(resource=Resource.create(defaults).merge(OTELResourceDetector().detect()))
    exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=SEND_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=DELAY_MAX_MS))
    return provider.get_tracer("holdfast", __version__)


def _lacking(url: str, module: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"cannot send traces to {url}: {module} is not installed; install holdfast-torch with its extra [otel]: "
        f"in a clone, {sys.executable} -m pip install '.[otel]'"
    )
