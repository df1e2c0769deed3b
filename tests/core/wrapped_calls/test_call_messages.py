"""An order that no frame can hold is refused with both sizes and what to do."""

from __future__ import annotations

from supervisor.core.wrapped_calls.call_messages import CallRefused, too_large


def test_an_order_that_is_too_large_is_refused_for_its_own_call():
    refused = too_large(CallRefused(5, "x"), frame_bytes=70_000, bytes_max=65_536)
    assert refused.call == 5
    assert refused.reason == (
        "cannot go on with the call: CallRefused takes 70000 bytes, and a frame holds 65536; "
        "exchange shorter values in rank assignment"
    )
