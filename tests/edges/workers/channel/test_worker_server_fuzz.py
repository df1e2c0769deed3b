"""Malformed input of every kind closes its own connection; other ranks' pages, frames and limits stay untouched.

20,000 inputs here; HOLDFAST_FUZZ_INPUTS=1000000 for the long run.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import anyio
import pytest
from holdfast_wire import page_layout
from holdfast_wire.v1 import worker_pb2

from tests.edges.workers.worker_side import JOB_ID, Served, WorkerSide, hello, serve, until

INPUTS = int(os.environ.get("HOLDFAST_FUZZ_INPUTS", "20000"))
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))
PER_CONNECTION = 8  # the first malformed one ends a connection


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def _input(dice: random.Random, good: bytes) -> bytes:
    match dice.randrange(7):
        case 0:
            return dice.randbytes(dice.randrange(1, 60))
        case 1:
            return _frame(dice.randbytes(dice.randrange(60)))
        case 2:  # a false length
            return dice.choice((0xFFFFFFFF, 1 << 31, 65537, 2**24)).to_bytes(4, "big") + good
        case 3:  # flipped bits in a good one
            spoilt = bytearray(good)
            for _ in range(dice.randrange(1, 6)):
                spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
            return _frame(bytes(spoilt))
        case 4:  # cut off
            return _frame(good[: dice.randrange(len(good))])
        case 5:
            return _frame(good + dice.randbytes(dice.randrange(40)))
        case _:
            return _frame(b"")


def _good_ones(dice: random.Random) -> list[bytes]:
    progress = worker_pb2.Progress(heartbeats=dice.getrandbits(64), initialised_age_ns=dice.getrandbits(63))
    progress.open_sections.add(slot=dice.getrandbits(32), age_ns=-dice.getrandbits(62))
    limits = worker_pb2.Limits(heartbeat_s=dice.choice((float("nan"), float("inf"), -1.0, 0.0, 1e308)))
    return [
        hello(1, token=dice.randbytes(32)).SerializeToString(),
        hello(dice.getrandbits(32)).SerializeToString(),
        worker_pb2.WorkerFrame(progress=progress).SerializeToString(),
        worker_pb2.WorkerFrame(limits_calculated=worker_pb2.LimitsCalculated(limits=limits)).SerializeToString(),
        worker_pb2.WorkerFrame(stacks_answer=worker_pb2.StacksAnswer(request_id=1, text="x")).SerializeToString(),
    ]


async def _attack(served: Served, dice: random.Random, inputs: int) -> None:
    """Half of the connections attack as an admitted rank 1, half as strangers."""
    while inputs > 0:
        rank = WorkerSide(served.path)
        try:
            if dice.random() < 0.5:
                await rank.join(1, can_share_page=dice.random() < 0.5)
            count = min(inputs, PER_CONNECTION)
            inputs -= count
            await rank.send_bytes(b"".join(_input(dice, dice.choice(_good_ones(dice))) for _ in range(count)))
        except OSError:
            pass  # dropped during the attack, as it should be
        finally:
            rank.close()


@pytest.mark.timeout(120 + INPUTS // 200)
async def test_malformed_input_harms_its_own_connection_only(tmp_path: Path):
    async with serve(tmp_path) as served:
        paged, framed = served.connect(), served.connect()
        await paged.join(0)
        await framed.join(2, can_share_page=False)
        paged.stamp(page_layout.WORD_HEARTBEATS, 1)
        await until(lambda: len(served.posted) == 2)
        dice = random.Random(SEED)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(_attack, served, random.Random(dice.random()), INPUTS // 4)
        # Both innocent ranks are still connected, and their stamps and frames count.
        paged.stamp(page_layout.WORD_HEARTBEATS, 2)
        told = worker_pb2.Progress(heartbeats=5, heartbeat_age_ns=1)
        await framed.send(worker_pb2.WorkerFrame(progress=told))
        await until(lambda: _heartbeats(served, 2) == 5)
        assert _heartbeats(served, 0) == 2
        touched = {event.local_rank for event in served.posted[2:] if hasattr(event, "local_rank")}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        assert touched == {1}
        assert served.server.counters.malformed > INPUTS / PER_CONNECTION / 4
        await until(lambda: served.server.connected <= 2)


def _heartbeats(served: Served, local_rank: int) -> int:
    progress = served.server.read_progress(JOB_ID, 0, local_rank)
    assert progress is not None
    return progress.heartbeats
