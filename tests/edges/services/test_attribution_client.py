"""Are the answers of an attribution service understood, and do invalid ones mean nothing?"""

from __future__ import annotations

import json

import pytest

from supervisor.core.attribution.attribution_requests import Failed, Forgotten, Judged, Pending, Refused, Reply, Taken
from supervisor.edges.services.attribution_client import REASON_CHARACTERS_MAX, AttributionClient
from tests.edges.services.hostile import hostile, json_of


async def test_a_submission_says_who_asks():
    with hostile(json_of("{}", "202 Accepted")) as server:
        client = AttributionClient(server.url, {"user": "ada", "job_id": "7"}, timeout_s=10)
        assert await client.submit("/l/t_cycle0.log", is_terminal=True) == Taken()
        assert await AttributionClient(server.url, {}).submit("/l/t_cycle0.log", is_terminal=False) == Taken()
    told = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
    assert told == [
        {"log_path": "/l/t_cycle0.log", "user": "ada", "job_id": "7", "analysis_intent": "terminal"},
        {"log_path": "/l/t_cycle0.log", "analysis_intent": "progressive"},
    ]


COMPLETED = {"status": "completed", "recommendation": {"action": "stop", "reason": "full\x1b[2J disk\n", "source": "r"}}


@pytest.mark.parametrize(
    ("status", "text", "reply"),
    [
        ("200 OK", json.dumps(COMPLETED), Judged("STOP", r"full\x1b[2J disk", "r")),
        ("200 OK", '{"status": "completed", "result": {}}', Judged("UNKNOWN", "")),
        ("200 OK", '{"status": "pending"}', Pending()),
        ("200 OK", '{"status": "failed", "error": "x"}', Pending()),
        ("404 Not Found", '{"status": "unknown"}', Forgotten()),
        ("403 Forbidden", '{"error": "not below /x"}', Refused("it has answered 403 (not below /x)")),
        ("302 Found", "", Refused("it has answered 302")),
        ("500 Oops", "<html>", Failed("it has answered 500")),
        ("429 Slow", '["x"]', Failed("it has answered 429")),
        ("200 OK", "<html>", Failed("its answer can't be read")),
        ("200 OK", "[" * 100_000, Failed("its answer can't be read")),
        ("200 OK", '{"status": 3}', Failed("its answer can't be read")),
        ("200 OK", '{"status": "completed", "recommendation": "STOP"}', Failed("its answer can't be read")),
    ],
)
async def test_what_an_answer_means(status: str, text: str, reply: Reply):
    with hostile(json_of(text, status)) as server:
        found = await AttributionClient(server.url, {}, timeout_s=10).verdict("/l/t_cycle0.log")
    if isinstance(reply, Failed | Refused):
        assert isinstance(found, type(reply))
        assert found.reason.startswith(f"cannot ask the attribution service at {server.url}: {reply.reason}")
        assert len(found.reason) <= REASON_CHARACTERS_MAX + 200
    else:
        assert found == reply
    assert server.requests[0].startswith(b"GET /logs?log_path=%2Fl%2Ft_cycle0.log&wait=false HTTP/1.1\r\n")


async def test_a_long_sentence_is_cut():
    told = {"status": "completed", "recommendation": {"action": "RESTART", "reason": "x" * 500_000}}
    with hostile(json_of(json.dumps(told))) as server:
        found = await AttributionClient(server.url, {}, timeout_s=10).verdict("/l")
    assert found == Judged("RESTART", "x" * REASON_CHARACTERS_MAX)
