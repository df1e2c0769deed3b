"""Do reports, events and refusals survive encoding, without any secrets?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import errors
from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import Evidence, JobState, StackGroup
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.edges.operators import control_decoding as answers
from supervisor.edges.operators import control_encoding as codec
from supervisor.errors import HoldfastError
from supervisor.ports.reports import (
    CheckReport,
    JobNodeReport,
    JobReport,
    NodeReport,
    RankReport,
    RecordedEvent,
    SectionReport,
)

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Cn", "Co", "Zl", "Zp"]), max_size=8)
SMALL = st.integers(0, 2**31 - 1)
TIMES = st.integers(0, 2**62)
SECONDS = st.just(0.0) | st.floats(1e-9, 1e9)
RANKS = st.builds(
    RankReport, SMALL, SMALL, TEXT, TEXT, st.none() | SMALL, *[st.none() | SECONDS] * 2,
    st.lists(st.builds(SectionReport, TEXT, SECONDS, st.none() | SECONDS), max_size=3).map(tuple),
    st.none() | TIMES, st.none() | SMALL, st.none() | SMALL, *[st.none() | SECONDS] * 2,
)  # fmt: skip
CHECKS = st.lists(st.builds(CheckReport, TEXT, TEXT, TEXT, SECONDS, TEXT, TIMES), max_size=2).map(tuple)
STRAGGLERS = st.builds(
    Straggler, TEXT, TEXT, st.lists(SMALL, max_size=2).map(tuple), st.booleans(), *[SECONDS] * 3, SMALL, TEXT
)
REPORTS = st.builds(
    JobReport, TEXT, st.sampled_from(JobState), TIMES, SMALL, SMALL, SMALL, SMALL, TEXT,
    st.lists(st.builds(JobNodeReport, TEXT, TEXT, SMALL, checks=CHECKS), max_size=2).map(tuple),
    st.lists(RANKS, max_size=3).map(tuple), st.none() | SMALL, st.none() | TIMES, TEXT,
    st.just(("train.py", "x")), SMALL, st.lists(STRAGGLERS, max_size=2).map(tuple), TEXT,
)  # fmt: skip
EVENTS = st.builds(
    RecordedEvent, TEXT, SMALL, TIMES, TEXT, TEXT, SMALL, SMALL, TEXT, st.none() | SMALL,
    st.dictionaries(TEXT, TEXT, max_size=3).map(lambda each: tuple(sorted(each.items()))),
)  # fmt: skip


@given(REPORTS)
def test_jobs_there_and_back(report: JobReport) -> None:
    assert answers.job_from_wire(codec.job_to_wire(report)) == report


@given(EVENTS)
def test_events_there_and_back(event: RecordedEvent) -> None:
    assert answers.event_from_wire(codec.event_to_wire(event)) == event


def test_a_submission_with_variables_that_are_not_utf8_there_and_back() -> None:
    spec = JobSpec("job", ("train.py",))
    environment = {"WHO": "J\udcfcrgen=x", "N\udcffME": "", "LANG": "C.UTF-8"}
    request = codec.submission_to_wire(spec, environment, 0o077)
    assert dict(request.environment) == {"LANG": "C.UTF-8"}
    assert b"WHO=J\xfcrgen=x" in request.other_variables
    assert answers.submission_from_wire(request) == (msgspec.structs.replace(spec, umask=0o077), environment)
    assert answers.submission_from_wire(codec.submission_to_wire(spec, {}, None)) == (spec, {})
    request.umask = 0o1000
    with pytest.raises(errors.InvalidRequestError, match="umask 0o1000 is above 0o777"):
        answers.submission_from_wire(request)


def test_nodes_and_stacks_there_and_back() -> None:
    node = NodeReport(
        "n0",
        "cordoned",
        "disk",
        ("a", "b"),
        7,
        "0.1.0",
        5,
        (CheckReport("storage", "unhealthy", "gone", 0.5, "/data", 9),),
    )
    assert answers.node_from_wire(codec.node_to_wire(node)) == node
    evidence = Evidence((StackGroup((2,), "a\n b"), StackGroup((0, 1), "c")), ("rank 3: gone",), "py-spy")
    assert answers.evidence_from_wire(codec.evidence_to_wire(evidence)) == evidence


@pytest.mark.parametrize("kind", list(codec.CODES))
def test_refusals_there_and_back(kind: type[HoldfastError]) -> None:
    came = answers.refusal_from_wire(codec.refusal_to_wire(kind("cannot do it: why")))
    assert type(came) is kind
    assert str(came) == "cannot do it: why"


def test_every_refusal_has_a_code() -> None:
    assert set(HoldfastError.__subclasses__()) >= set(codec.CODES) - {HoldfastError}
    named = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HoldfastError)}
    assert named - {HoldfastError} == set(codec.CODES)


@given(st.binary(max_size=50))
def test_garbage_is_no_refusal(trailer: bytes) -> None:
    assert answers.refusal_from_wire(trailer) is None


def test_secrets_of_the_command_line_stay_behind() -> None:
    report = JobReport("a", JobState.RUNNING, 1, command=("train.py", "--api-key=k1", "--hf-token", "k2", "--lr", "1"))
    assert list(codec.job_to_wire(report).command) == ["train.py", "--api-key=***", "--hf-token", "***", "--lr", "1"]


def test_broken_text_travels() -> None:
    report = JobReport("a", JobState.RUNNING, 1, reason="bad \udcff byte")
    assert answers.job_from_wire(codec.job_to_wire(report)).reason == "bad \\udcff byte"
