"""Asks the node's health service and a user's own attribution service as that user, until stdin ends.

A line of JSON for each answer. argv: the socket of healthd, the URL of the attribution service, a log of this user's.
"""

import json
import select
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, cast

import grpc as untyped
from nvhcd import nvhcd_pb2 as wire

HEALTH, ATTRIBUTION, LOG = sys.argv[1:4]
grpc = cast("Any", untyped)
PAUSE_S = 1.0
TIMEOUT_S = 60.0


def health() -> str:
    with grpc.insecure_channel(f"unix:{HEALTH}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask = channel.unary_unary("/nvhcd.HealthCheckService/RunHealthCheck")
        answer = wire.HealthCheckResponse.FromString(
            ask(wire.HealthCheckRequest().SerializeToString(), timeout=TIMEOUT_S, wait_for_ready=True)
        )
    return "" if answer.success else f"unhealthy: {answer}"


def attribution() -> str:
    body = json.dumps({"log_path": LOG}).encode()
    request = urllib.request.Request(f"{ATTRIBUTION}/logs", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read()
    where = f"{ATTRIBUTION}/logs?{urllib.parse.urlencode({'log_path': LOG, 'wait': 'true'})}"
    with urllib.request.urlopen(where, timeout=TIMEOUT_S) as answer:
        told = json.load(answer)
    return "" if told["status"] == "completed" else str(told)


def asked(name: str, ask: Callable[[], str]) -> None:
    began_s = time.monotonic()
    try:
        wrong = ask()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        wrong = repr(error)
    print(json.dumps({"command": [name], "took_s": time.monotonic() - began_s, "wrong": wrong}), flush=True)


while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
    asked("health", health)
    asked("attribution", attribution)
