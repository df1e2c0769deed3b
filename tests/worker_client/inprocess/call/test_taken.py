"""Is all that a call has taken given back, in reverse order, whatever happens on the way?"""

from __future__ import annotations

import pytest

from worker_client.inprocess.call.taken import Taken


def test_the_newest_is_given_back_first_and_each_once():
    given_back: list[str] = []
    taken = Taken()
    for what in ("variables", "connection", "thread"):
        taken.note(what, lambda what=what: given_back.append(what))
    assert taken.names == ["variables", "connection", "thread"]
    taken.give_back()
    taken.give_back()
    assert given_back == ["thread", "connection", "variables"]
    assert taken.names == []


def test_an_error_keeps_nothing_else_and_the_first_one_comes_out(caplog: pytest.LogCaptureFixture):
    given_back: list[str] = []

    def fail(error: BaseException) -> None:
        raise error

    taken = Taken()
    taken.note("variables", lambda: given_back.append("variables"))
    taken.note("connection", lambda: fail(OSError("second")))
    taken.note("thread", lambda: fail(KeyboardInterrupt("first")))
    with pytest.raises(KeyboardInterrupt, match="first"):
        taken.give_back()
    assert given_back == ["variables"]
    assert [record.message for record in caplog.records] == [
        "cannot give back thread: first",
        "cannot give back connection: second",
    ]
    taken.give_back()
