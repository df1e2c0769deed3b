"""What do people read if an action could not be performed, and what only goes to the log?"""

import errno
import logging
import os
from typing import get_args

import pytest

from supervisor.core.node import node_messages
from supervisor.engine import failure_text as texts
from supervisor.engine.failure_text import failure_sentence, failure_text
from supervisor.errors import NotNowError

ACTION = node_messages.ForkAhead("j", 1, 2)


def test_an_error_that_says_what_to_do_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert failure_text(ACTION, NotNowError("cannot do it: not now; wait")) == "cannot do it: not now; wait"
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/logs/x"),
            "cannot fork workers ahead: No space left on device at /logs/x; check space, permissions and limits there",
        ),
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
            "cannot fork workers ahead: Too many open files; check space, permissions and limits there",
        ),
        (OSError("odd"), "cannot fork workers ahead: odd; check space, permissions and limits there"),
    ],
)
def test_an_error_of_the_system_names_the_purpose_and_the_file(error: OSError, text: str) -> None:
    assert failure_text(ACTION, error) == text


def test_a_defect_is_one_sentence_for_people_and_a_traceback_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    text = failure_text(ACTION, AssertionError("no such phase"))
    assert text == (
        "cannot fork workers ahead: AssertionError: no such phase; "
        "this is a defect of Holdfast, its log has the traceback"
    )
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "cannot fork workers ahead of job j")
    assert record.exc_info is not None


def test_what_is_no_action_names_its_own_purpose() -> None:
    assert failure_sentence("read a report", "j", OSError("odd")).startswith("cannot read a report: odd; ")


def test_each_action_has_a_purpose() -> None:
    assert set(texts._PURPOSE) == set(get_args(node_messages.Action))  # pyright: ignore[reportPrivateUsage]
