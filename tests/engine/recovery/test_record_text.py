"""Do all records of a job survive encoding, and is everything else refused?"""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from supervisor.config import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.cluster import coordinator_states
from supervisor.core.cluster.cluster_messages import MemberState
from supervisor.core.cluster.node_states import Member
from supervisor.core.facts import HangLimits, Progress, RestartRules, WatchMode
from supervisor.core.node import local_call_messages, rank_monitor
from supervisor.core.node.node_messages import WorkerExited
from supervisor.engine.recovery import record_text
from supervisor.engine.recovery.record_text import UnreadableError

PROGRESS = Progress(1.5, 2.5, heartbeat_at_s=math.inf, open_sections=(("step", 3.0),))


def members() -> coordinator_states.State:
    state = coordinator_states.State("j")
    state.members.put("n0", Member(MemberState.RUNNING, cycle=3))
    return state


@pytest.mark.parametrize(
    "record",
    [
        JobSpec("j", ("t.py", "--x"), restart=RestartRules(max_restarts=3)),
        rank_monitor.Watching(HangLimits(heartbeat_s=3.0), PROGRESS, 4.0),
        (rank_monitor.Gone(), WatchMode.UNWINDING, None, True, 7),
        members(),
        local_call_messages.State(sent=frozenset({("began", 1)}), waiting={"began": {}}),
        {1: ("a", b"\xff"), ("b", 2): [1.0, -math.inf]},
        "a name that is no text: \udcff",
    ],
)
def test_it_comes_back_as_it_was(record: object) -> None:
    assert record_text.read(record_text.write(record)) == record


def test_what_another_version_knew_is_left_out_or_has_its_default() -> None:
    written = json.loads(record_text.write(Progress(1.0, 2.0, heartbeats=4)))
    del written["heartbeats"]
    found = record_text.read(json.dumps({**written, "of_a_later_version": 1}))
    assert found == Progress(1.0, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "{", '{"=": "not_there"}', '{"=": "progress"}', '{"=": "supervisor.core.facts:Progress"}',
        '{"=": "cli.run:execute"}', '{"=": "os:system", "v": "true"}', '{"no tag": 1}', "[" * 100_000,
        '{"=": "job_state", "v": "not there"}', '{"=": "job_state", "v": []}', '[1, {"=": "not_there"}]',
        '{"=": "list", "v": [{"=": "not_there"}]}',
    ],
)  # fmt: skip
def test_what_is_no_record_of_ours_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="cannot read"):
        record_text.read(text)


def test_a_field_with_a_record_that_nobody_knows_has_its_default() -> None:
    written = json.loads(record_text.write(JobSpec("j", ("t.py",), health=HealthChecks(devices_period_s=1.0))))
    written["health"]["="] = "health_checks.of_a_later_version"
    assert record_text.read(json.dumps(written)) == JobSpec("j", ("t.py",))


def test_what_is_no_record_can_t_be_written() -> None:
    class Stranger(msgspec.Struct):
        pass

    for each in (Stranger(), object(), WorkerExited):
        with pytest.raises(TypeError, match="cannot write"):
            record_text.write(each)
