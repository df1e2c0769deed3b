"""Is everything that a call has taken released in reverse order, whatever happens meanwhile?"""

from __future__ import annotations

import pytest

from worker_client.inprocess.call.call_resources import CallResources


def test_the_newest_is_released_first_and_each_once():
    released: list[str] = []
    taken = CallResources()
    for what in ("variables", "connection", "thread"):
        taken.note(what, lambda what=what: released.append(what))
    assert taken.names == ["variables", "connection", "thread"]
    taken.release()
    taken.release()
    assert released == ["thread", "connection", "variables"]
    assert taken.names == []


def test_an_error_keeps_nothing_else_and_the_first_one_comes_out(caplog: pytest.LogCaptureFixture):
    released: list[str] = []

    def fail(error: BaseException) -> None:
        raise error

    taken = CallResources()
    taken.note("variables", lambda: released.append("variables"))
    taken.note("connection", lambda: fail(OSError("second")))
    taken.note("thread", lambda: fail(KeyboardInterrupt("first")))
    with pytest.raises(KeyboardInterrupt, match="first"):
        taken.release()
    assert released == ["variables"]
    assert [record.message for record in caplog.records] == [
        "cannot release thread: first",
        "cannot release connection: second",
    ]
    taken.release()
