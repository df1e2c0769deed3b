"""The keys of an event, which programs rely on."""

from supervisor.edges.operators.event_json import event_document, timestamp
from supervisor.ports.reports import RecordedEvent


def test_an_event_has_the_documented_keys() -> None:
    event = RecordedEvent(
        "j", 3, 1_500_000_000_123_456_789, "worker_failed", "because", 1, 0, "n0", 2, (("code", "9"),)
    )
    assert event_document(event) == {
        "at": "2017-07-14T02:40:00.123456Z",
        "job_id": "j",
        "cycle": 1,
        "iteration": 0,
        "node": "n0",
        "rank": 2,
        "kind": "worker_failed",
        "reason": "because",
        "sequence": 3,
        "details": {"code": "9"},
    }
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
