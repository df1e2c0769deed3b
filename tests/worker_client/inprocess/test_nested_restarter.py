"""Which lines does a restarter around this one read?"""

from __future__ import annotations

import re

import pytest

from tests.worker_client.inprocess.states import frozen_state
from worker_client.inprocess.abort import Abort
from worker_client.inprocess.completion import Completion
from worker_client.inprocess.compose import Compose, fresh
from worker_client.inprocess.initialize import Initialize, RetryController
from worker_client.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterCallback,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
)
from worker_client.inprocess.terminate import Terminate


def test_the_lines_of_one_restart(capsys: pytest.CaptureFixture[str]):
    completed = NestedRestarterHandlingCompleted()
    for callback in (
        completed,
        NestedRestarterHandlingStarting(),
        completed,
        NestedRestarterFinalized(),
        NestedRestarterAborted(),
    ):
        state = frozen_state()
        assert callback(state) is state
    lines = capsys.readouterr().out.splitlines()
    start = re.compile(r"\[[^\]]+\] \[ALWAYS\] \[InprocessRestarter\.Restarter\] \[NestedRestarter\] ")
    assert all(start.match(line) for line in lines)
    assert [start.sub("", line) for line in lines] == [
        "name=[InProcess] state=initialize",
        "name=[InProcess] state=handling stage=starting",
        "name=[InProcess] state=handling stage=completed",
        "name=[InProcess] state=finalized",
        "name=[InProcess] state=aborted",
    ]


def test_each_call_of_the_function_begins_with_initialize(capsys: pytest.CaptureFixture[str]):
    completed = NestedRestarterHandlingCompleted()
    completed(frozen_state())
    fresh(completed)(frozen_state())
    assert [line.endswith("state=initialize") for line in capsys.readouterr().out.splitlines()] == [True, True]


def test_only_the_special_rank_speaks(capsys: pytest.CaptureFixture[str]):
    NestedRestarterFinalized()(frozen_state(rank=1))
    assert capsys.readouterr().out == ""
    NestedRestarterFinalized(special_rank=1)(frozen_state(rank=1))
    NestedRestarterCallback("testing", "now", special_rank=1)(frozen_state(rank=1))
    assert "state=testing stage=now" in capsys.readouterr().out


def test_each_line_belongs_to_its_family():
    assert isinstance(NestedRestarterHandlingCompleted(), Initialize)
    assert isinstance(NestedRestarterHandlingStarting(), Abort)
    assert isinstance(NestedRestarterFinalized(), Completion)
    assert isinstance(NestedRestarterAborted(), Terminate)
    assert isinstance(Compose(NestedRestarterHandlingCompleted(), RetryController()), Initialize)
