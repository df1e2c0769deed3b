"""Does what a rank and its supervisor say about a call arrive as it was said, in bounds, whatever its text?"""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import NamedTuple

import pytest
from holdfast_wire.call_bounds import (
    EXCHANGE_NAME_CHARACTERS_MAX,
    EXCHANGE_VALUE_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
)
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, Decoder
from holdfast_wire.v1 import worker_pb2 as wire

from worker_client import call_protocol
from worker_client.call_protocol import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallCompleted,
    CallEnter,
    CallEvent,
    CallLeave,
    CallRefused,
    CallSettings,
    CallUnderway,
    Committed,
    Entered,
    Exchanged,
    ExchangeValue,
    FaultRecord,
    FaultsReported,
    Interrupt,
    IterationBegan,
    Leaving,
    RankFault,
    RanksMissing,
    Restart,
    Stage,
    Word,
)

SETTINGS = CallSettings(*(timedelta(seconds=number) for number in range(1, 8)))
WORDS: list[Word] = [
    CallEnter(4, 2, 8, SETTINGS, Stage.RUNNING, 1, 3, 7, active=True),
    IterationBegan(4, 1, 2, 8, 1, 6),
    RankFault(4, 1, 2, "SOFT_TIMEOUT", "it was silent"),
    FaultsReported(4, 1),
    BarrierArrive(4, 1, Barrier.ITERATION, 2, active=True),
    CallLeave(4, 1, Leaving.FAULT, "it is unfit", unfit=True),
    ExchangeValue(4, 1, "group/1", 2, "host"),
]


def sent(word: Word) -> wire.WorkerFrame:
    (payload,) = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX).feed(call_protocol.frame(word))
    return wire.WorkerFrame.FromString(payload)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_each_field_of_a_word_is_sent_under_its_name(word: NamedTuple):
    frame = sent(word)  # pyright: ignore[reportArgumentType]
    body = getattr(frame, frame.WhichOneof("body") or "")
    for name, value in word._asdict().items():
        if name == "settings":
            continue
        told = getattr(body, name)
        if (enumeration := body.DESCRIPTOR.fields_by_name[name].enum_type) is not None:
            told = enumeration.values_by_number[told].name
        assert told == (value.name if isinstance(value, enum.Enum) else value), name


def test_settings_are_sent_in_seconds():
    settings = sent(WORDS[0]).call_enter.settings
    told = {field.name: value for field, value in settings.ListFields()}
    assert told == {
        "last_call_wait_s": 1, "soft_timeout_s": 2, "hard_timeout_s": 3, "termination_grace_s": 4,
        "barrier_timeout_s": 5, "completion_timeout_s": 6, "heartbeat_timeout_s": 7,
    }  # fmt: skip


def test_an_inactive_rank_has_no_active_rank_rather_than_0():
    assert not sent(IterationBegan(4, 1, 2, 8, None, 6)).iteration_began.HasField("active_rank")
    assert sent(IterationBegan(4, 1, 2, 8, 0, 6)).iteration_began.HasField("active_rank")


@pytest.mark.parametrize("reason", ["x" * 100_000, "ü" * 100_000, "\ud800 lone"])
def test_a_reason_of_any_text_fits(reason: str):
    for told in (sent(RankFault(4, 1, 2, "EXCEPTION", reason)).rank_fault.reason,
                 sent(CallLeave(4, 1, Leaving.FAULT, reason)).call_leave.reason):  # fmt: skip
        assert told == reason.replace("\ud800", "?")[:REASON_CHARACTERS_MAX]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("n" * (EXCHANGE_NAME_CHARACTERS_MAX + 1), "", "exchange shorter ones"),
        ("n", "v" * (EXCHANGE_VALUE_CHARACTERS_MAX + 1), "exchange shorter ones"),
        ("n", "\ud800", "name or value has lone surrogates"),
        ("\ud800", "", "name or value has lone surrogates"),
    ],
)
def test_a_value_that_other_ranks_would_not_get_as_it_is_is_refused(name: str, value: str, says: str):
    with pytest.raises(ValueError, match=says):
        call_protocol.frame(ExchangeValue(4, 1, name, 2, value))


def test_the_longest_value_fits_a_frame():
    value = "\U0001f600" * EXCHANGE_VALUE_CHARACTERS_MAX
    name = "ü" * EXCHANGE_NAME_CHARACTERS_MAX
    assert sent(ExchangeValue(4, 1, name, 2, value)).exchange_value.value == value


POSITION = {"call": 4, "iteration": 1}
DECIDED = wire.BeginIteration(**POSITION, world_size=8, terminated_ranks=[3, 5], anew=True)
BEGIN = BeginIteration(4, 1, 8, frozenset({3, 5}), anew=True)
SHARED = wire.Exchanged(**POSITION, name="n", values={0: "a", 2: "b"})
EXCHANGED = Exchanged(4, 1, "n", {0: "a", 2: "b"})
HEARD: list[tuple[wire.SupervisorFrame, CallEvent | None]] = [
    (wire.SupervisorFrame(entered=wire.Entered(**POSITION, history=[DECIDED], exchanges=[SHARED])),
     Entered(4, 1, (BEGIN,), (EXCHANGED,))),
    (wire.SupervisorFrame(call_underway=wire.CallUnderway(call=4)), CallUnderway(4)),
    (wire.SupervisorFrame(ranks_missing=wire.RanksMissing(call=4, ranks=[1, 2], total=3)), RanksMissing(4, (1, 2), 3)),
    (wire.SupervisorFrame(interrupt=wire.Interrupt(**POSITION)), Interrupt(4, 1)),
    (wire.SupervisorFrame(begin_iteration=DECIDED), BEGIN),
    (wire.SupervisorFrame(call_completed=wire.CallCompleted(**POSITION)), CallCompleted(4, 1)),
    (wire.SupervisorFrame(committed=wire.Committed(**POSITION)), Committed(4, 1)),
    (wire.SupervisorFrame(exchanged=SHARED), EXCHANGED),
    (wire.SupervisorFrame(call_refused=wire.CallRefused(call=4, reason="no", given_up=True)),
     CallRefused(4, "no", given_up=True)),
    (wire.SupervisorFrame(accepted=wire.Accepted(request_id=4)), None),
    (wire.SupervisorFrame(), None),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "event"), HEARD, ids=lambda each: type(each).__name__)
def test_what_the_supervisor_says_is_read(frame: wire.SupervisorFrame, event: CallEvent | None):
    assert call_protocol.event(frame) == event


def test_an_interruption_of_a_later_protocol_is_an_exception():
    records = [
        wire.FaultRecord(rank=2, interruption="SOFT_TIMEOUT", reason="silent"),
        wire.FaultRecord(rank=3, interruption=9999, reason="new"),  # pyright: ignore[reportArgumentType]
    ]
    heard = call_protocol.event(wire.SupervisorFrame(restart=wire.Restart(**POSITION, records=records)))
    assert heard == Restart(4, 1, (FaultRecord(2, "SOFT_TIMEOUT", "silent"), FaultRecord(3, "EXCEPTION", "new")))
