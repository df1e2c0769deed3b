"""Frames of a wrapped call: every message there and back, every order as a rank decodes it, and bounds on both."""

from __future__ import annotations

import math

import pytest
from holdfast_wire.call_bounds import REASON_CHARACTERS_MAX
from holdfast_wire.framing import HEADER_BYTES, SUPERVISOR_FRAME_BYTES_MAX
from holdfast_wire.v1 import worker_pb2
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.wrapped_calls import call_messages
from supervisor.edges.workers.channel import worker_codec as codec
from supervisor.edges.workers.channel.worker_frames import WorkerProtocolError


def decoded(frame: worker_pb2.WorkerFrame) -> object:
    return codec.decode(frame.SerializeToString())


SETTINGS = worker_pb2.CallSettings(
    last_call_wait_s=1.0,
    soft_timeout_s=60.0,
    hard_timeout_s=90.0,
    termination_grace_s=5.0,
    barrier_timeout_s=120.0,
    heartbeat_timeout_s=30.0,
)


def entering(**changed: float) -> worker_pb2.WorkerFrame:
    frame = worker_pb2.WorkerFrame()
    frame.call_enter.CopyFrom(worker_pb2.CallEnter(call=1, initial_rank=2, initial_world_size=4, settings=SETTINGS))
    for name, value in changed.items():
        setattr(frame.call_enter.settings, name, value)
    return frame


def test_every_word_of_a_rank_means_what_it_says() -> None:
    wire = worker_pb2
    enter = entering()
    enter.call_enter.stage = wire.CallEnter.UNWINDING
    enter.call_enter.iteration, enter.call_enter.rank, enter.call_enter.world_size = 5, 1, 3
    assert decoded(enter) == call_messages.CallEnter(
        1, 2, 4, call_messages.CallSettings(), call_messages.Stage.UNWINDING, 5, 1, 3, False
    )
    began = wire.IterationBegan(call=1, iteration=2, rank=3, world_size=8, active_world_size=4)
    assert decoded(wire.WorkerFrame(iteration_began=began)) == call_messages.IterationBegan(1, 2, 3, 8, None, 4)
    began.active_rank = 0
    assert decoded(wire.WorkerFrame(iteration_began=began)) == call_messages.IterationBegan(1, 2, 3, 8, 0, 4)
    fault = wire.RankFault(call=1, iteration=2, rank=3, interruption=wire.BASE_EXCEPTION, reason="r" * 9999)
    told = decoded(wire.WorkerFrame(rank_fault=fault))
    cut = "r" * REASON_CHARACTERS_MAX
    assert told == call_messages.RankFault(1, 2, 3, call_messages.Interruption.BASE_EXCEPTION, cut)
    reported = wire.WorkerFrame(faults_reported=wire.FaultsReported(call=1, iteration=2))
    assert decoded(reported) == call_messages.FaultsReported(1, 2)
    arrival = wire.BarrierArrive(call=1, iteration=2, barrier=wire.BarrierArrive.ITERATION, rank=3, active=True)
    assert decoded(wire.WorkerFrame(barrier_arrive=arrival)) == call_messages.BarrierArrive(
        1, 2, call_messages.Barrier.ITERATION, 3, True
    )
    leave = wire.CallLeave(call=1, iteration=2, why=wire.CallLeave.DISCARDED, reason="out")
    assert decoded(wire.WorkerFrame(call_leave=leave)) == call_messages.CallLeave(
        1, 2, call_messages.Leaving.DISCARDED, "out"
    )
    leave = wire.CallLeave(call=1, iteration=2, why=wire.CallLeave.FAULT, reason="sick", unfit=True)
    told = call_messages.CallLeave(1, 2, call_messages.Leaving.FAULT, "sick", unfit=True)
    assert decoded(wire.WorkerFrame(call_leave=leave)) == told
    value = wire.ExchangeValue(call=1, iteration=2, name="tree/1", rank=3, value="{}")
    assert decoded(wire.WorkerFrame(exchange_value=value)) == call_messages.ExchangeValue(1, 2, "tree/1", 3, "{}")


@pytest.mark.parametrize(
    "kind", [call_messages.Stage, call_messages.Interruption, call_messages.Barrier, call_messages.Leaving]
)
def test_the_numbers_are_those_of_the_wire(kind: type[call_messages.Stage]) -> None:
    wire = {
        "Stage": worker_pb2.CallEnter.Stage,
        "Interruption": worker_pb2.Interruption,
        "Barrier": worker_pb2.BarrierArrive.Barrier,
        "Leaving": worker_pb2.CallLeave.Why,
    }[kind.__name__]
    assert dict(wire.items()) == {each.name: each.value for each in kind}


@given(
    name=st.sampled_from(["soft_timeout_s", "hard_timeout_s", "barrier_timeout_s", "heartbeat_timeout_s"]),
    timeout_s=st.floats() | st.sampled_from([0.0, -1.0, math.inf, math.nan]),
)
def test_a_timeout_that_is_no_time_is_refused(name: str, timeout_s: float) -> None:
    if math.isfinite(timeout_s) and timeout_s > 0:
        assert isinstance(decoded(entering(**{name: timeout_s})), call_messages.CallEnter)
    else:
        with pytest.raises(WorkerProtocolError):
            decoded(entering(**{name: timeout_s}))


def test_what_is_out_of_bounds_is_refused() -> None:
    wire = worker_pb2
    for frame in (
        wire.WorkerFrame(faults_reported=wire.FaultsReported(call=0)),
        wire.WorkerFrame(faults_reported=wire.FaultsReported(call=1, iteration=2**32 - 1)),
        wire.WorkerFrame(rank_fault=wire.RankFault(call=1, rank=-1)),
        wire.WorkerFrame(exchange_value=wire.ExchangeValue(call=1, name="n" * 300)),
        wire.WorkerFrame(exchange_value=wire.ExchangeValue(call=1, value="v" * 9000)),
    ):
        with pytest.raises(WorkerProtocolError):
            decoded(frame)


def test_a_fault_and_a_leave_of_a_newer_client_are_known_whatever_they_are_called() -> None:
    fault = codec.decode(b"\x92\x01\x09\x08\x01\x18\x02\x20\x63\x2a\x01r")  # interruption 99
    assert fault == call_messages.RankFault(1, 0, 2, call_messages.Interruption.EXCEPTION, "r")
    leave = codec.decode(b"\xaa\x01\x07\x08\x01\x18\x63\x22\x01r")  # why 99
    assert leave == call_messages.CallLeave(1, 0, call_messages.Leaving.FAULT, "r")


def parsed(frame: bytes) -> worker_pb2.SupervisorFrame:
    return worker_pb2.SupervisorFrame.FromString(frame[HEADER_BYTES:])


def test_every_order_reaches_the_rank_as_it_was_given() -> None:
    begin = call_messages.BeginIteration(1, 3, 8, (2, 5), anew=True)
    exchanged = call_messages.Exchanged(1, 3, "tree/1", ((0, "x"), (4, "y")))
    entered = parsed(codec.encode_order(call_messages.Entered(1, 3, (begin,), (exchanged,)))).entered
    assert (entered.call, entered.iteration) == (1, 3)
    assert (entered.history[0].world_size, list(entered.history[0].terminated_ranks)) == (8, [2, 5])
    assert entered.history[0].anew
    assert not parsed(codec.encode_order(call_messages.BeginIteration(1, 3, 8))).begin_iteration.anew
    assert parsed(codec.encode_order(call_messages.CallUnderway(1))).call_underway.call == 1
    assert dict(entered.exchanges[0].values) == {0: "x", 4: "y"}
    assert parsed(codec.encode_order(call_messages.Interrupt(1, 2))).interrupt.iteration == 2
    record = call_messages.FaultRecord(3, call_messages.Interruption.SOFT_TIMEOUT, "slow")
    restart = parsed(codec.encode_order(call_messages.Restart(1, 2, (record,)))).restart
    assert (restart.records[0].rank, restart.records[0].interruption) == (3, worker_pb2.SOFT_TIMEOUT)
    assert parsed(codec.encode_order(begin)).begin_iteration.iteration == 3
    assert parsed(codec.encode_order(call_messages.CallCompleted(1, 2))).call_completed.iteration == 2
    assert parsed(codec.encode_order(call_messages.Committed(1, 2))).committed.iteration == 2
    assert parsed(codec.encode_order(exchanged)).exchanged.name == "tree/1"
    for given_up in (False, True):
        refused = parsed(codec.encode_order(call_messages.CallRefused(1, "no", given_up))).call_refused
        assert (refused.reason, refused.given_up) == ("no", given_up)


def test_an_order_that_no_frame_holds_is_a_refusal_with_the_sizes() -> None:
    values = tuple((rank, "v" * 8000) for rank in range(140))
    frame = codec.encode_order(call_messages.Exchanged(1, 0, "tree/1", values))
    assert len(frame) < SUPERVISOR_FRAME_BYTES_MAX
    refused = parsed(frame).call_refused
    assert refused.call == 1
    assert "and a frame holds 1048576" in refused.reason
