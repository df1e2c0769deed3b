"""What becomes of an answer that a user's own program has made up?"""

from __future__ import annotations

import math
from typing import cast

import msgspec
import pytest
from holdfast_wire.v1 import control_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import JobState
from supervisor.edges.operators import control_decoding as answers
from supervisor.edges.operators.control_encoding import job_to_wire, refusal_to_wire
from supervisor.errors import HoldfastError, NotNowError
from supervisor.ports.reports import JobNodeReport, JobReport, RankReport, SectionReport

HOSTILE = "a\x1b]0;b\x07\x9bc\u202ed"
SHOWN = r"a\x1b]0;b\x07\x9bc\x202ed"
CHECK = wire.Check(check=HOSTILE, subject=HOSTILE, verdict=HOSTILE, reason=HOSTILE)
JOB = wire.Job(
    job_id=HOSTILE,
    reason=HOSTILE,
    nodes=[wire.JobNode(name=HOSTILE, state=HOSTILE, reason=HOSTILE, log_dir=HOSTILE, checks=[CHECK])],
    ranks=[wire.Rank(node=HOSTILE, state=HOSTILE, sections=[wire.Section(name=HOSTILE)])],
    log_dir=HOSTILE,
    command=[HOSTILE],
    stragglers=[wire.Straggler(section=HOSTILE, node=HOSTILE, reason=HOSTILE)],
)


def texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(cast("dict[str, object]", value).values())
    inside = cast("list[object]", value) if isinstance(value, list | tuple) else []
    return [text for each in inside for text in texts(each)]


@pytest.mark.parametrize(
    "decoded",
    [
        answers.job_from_wire(JOB),
        answers.event_from_wire(
            wire.Event(job_id=HOSTILE, node=HOSTILE, kind=HOSTILE, reason=HOSTILE, details={HOSTILE: HOSTILE})
        ),
        answers.node_from_wire(
            wire.Node(name=HOSTILE, state=HOSTILE, reason=HOSTILE, job_ids=[HOSTILE], version=HOSTILE, checks=[CHECK])
        ),
        answers.evidence_from_wire(
            wire.GetStacksResponse(groups=[wire.StackGroup(stack=HOSTILE)], notes=[HOSTILE], source=HOSTILE)
        ),
    ],
    ids=["job", "event", "node", "evidence"],
)
def test_no_text_controls_a_terminal(decoded: msgspec.Struct):
    told = texts(msgspec.to_builtins(decoded))
    assert set(told) - {"pending", ""} == {SHOWN}


def test_a_refusal_and_a_note_are_one_line():
    refused = answers.refusal_from_wire(refusal_to_wire(NotNowError(f"no\n{HOSTILE}")))
    assert isinstance(refused, NotNowError)
    assert str(refused) == f"no {SHOWN}"
    assert answers.notes_from_wire([f"x\n{HOSTILE}"]) == (f"x {SHOWN}",)


def test_long_names_and_sentences_are_cut():
    job = answers.job_from_wire(wire.Job(job_id="x" * 4_000_000, reason="y" * 4_000_000))
    assert (len(job.job_id), len(job.reason)) == (answers.NAME_CHARACTERS_MAX, answers.SENTENCE_CHARACTERS_MAX)


@given(st.floats())
def test_numbers_are_finite_and_not_negative(value: float):
    rank = wire.Rank(
        heartbeat_age_s=value, heartbeat_limit_s=value, sections=[wire.Section(age_s=value, limit_s=value)]
    )
    node = wire.JobNode(checks=[wire.Check(took_s=value)])
    slow = wire.Straggler(ratio=value, took_s=value, median_s=value)
    job = answers.job_from_wire(wire.Job(ranks=[rank], nodes=[node], stragglers=[slow]))
    (told,), (section,), (check,), (each,) = job.ranks, job.ranks[0].sections, job.nodes[0].checks, job.stragglers
    numbers = [
        told.heartbeat_age_s, told.heartbeat_limit_s, section.age_s, section.limit_s, check.took_s, each.ratio,
        each.took_s, each.median_s,
    ]  # fmt: skip
    for number in numbers:
        assert number is not None
        assert math.isfinite(number)
        assert number == 0 or answers.NUMBER_MIN <= number <= answers.NUMBER_MAX
        assert math.isfinite(answers.NUMBER_MAX / (number or 1.0))


@given(st.integers(-(2**63), 2**63 - 1))
def test_no_moment_is_before_1970(at_ns: int):
    job = answers.job_from_wire(
        wire.Job(
            submitted_at_ns=at_ns,
            ended_at_ns=at_ns,
            nodes=[wire.JobNode(heard_at_ns=at_ns, lost_at_ns=at_ns)],
            ranks=[wire.Rank(cycle_started_at_ns=at_ns)],
        )
    )
    told = (job.submitted_at_ns, job.ended_at_ns, job.nodes[0].heard_at_ns, job.nodes[0].lost_at_ns)
    assert {*told, job.ranks[0].cycle_started_at_ns} == {max(0, at_ns)}
    assert answers.event_from_wire(wire.Event(at_ns=at_ns)).at_ns == max(0, at_ns)


def test_a_job_on_10_240_nodes_is_read():
    """As its leader reports it: each node names its ranks, and each rank has a step and a part of it open."""
    open_now = (SectionReport("step", 0.5, 60.0), SectionReport("forward", 0.25, None))
    nodes = tuple(
        JobNodeReport(f"n{node}", "ready", node, ranks=tuple(range(node * 8, node * 8 + 8))) for node in range(10_240)
    )
    ranks = tuple(
        RankReport(rank, rank % 8, f"n{rank // 8}", "running", pid=rank + 1, sections=open_now)
        for rank in range(81_920)
    )
    report = JobReport("large", JobState.RUNNING, 1, nodes=nodes, ranks=ranks)
    assert answers.job_from_wire(job_to_wire(report)) == report


PARTS = 100
MANY = PARTS + 1


@pytest.mark.parametrize(
    "job",
    [
        wire.Job(ranks=[wire.Rank()] * MANY),
        wire.Job(nodes=[wire.JobNode(ranks=[1] * MANY)]),
        wire.Job(ranks=[wire.Rank(sections=[wire.Section()] * MANY)]),
        wire.Job(nodes=[wire.JobNode(checks=[wire.Check()] * MANY)]),
        wire.Job(command=[""] * MANY),
        wire.Job(stragglers=[wire.Straggler(ranks=[1] * MANY)]),
    ],
    ids=["ranks", "ranks of a node", "sections", "checks", "words", "slow ranks"],
)
def test_a_job_with_too_many_parts_is_refused(job: wire.Job, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "JOB_PARTS_MAX", PARTS)
    with pytest.raises(HoldfastError, match="names more than 100 ranks or parts"):
        answers.job_from_wire(job)


@pytest.mark.parametrize("state", [0, 99])
def test_a_state_of_a_newer_version_is_pending_until_the_job_has_ended(state: int):
    job = wire.Job.FromString(wire.Job(job_id="j").SerializeToString() + bytes([0x10, state]))
    assert answers.job_from_wire(job).state is JobState.PENDING
    job.ended_at_ns = 1
    assert answers.job_from_wire(job).state is JobState.FAILED
