"""Does every message of the spawner link survive its frames, and long ones several frames?"""

from __future__ import annotations

import pytest
from holdfast_wire.spawner_link import (
    Exited,
    Fence,
    ForkAhead,
    Keep,
    KillTree,
    Message,
    PrepareStore,
    Spawn,
    SpawnerProtocolError,
    StreamPlan,
    Unknown,
    WorkerPlan,
    decode,
    encode,
    payloads,
)

FRAME_BYTES_MAX = 4 * 1024 * 1024


def _plans(count: int, *, own_characters: int, shared_characters: int) -> tuple[WorkerPlan, ...]:
    shared = {f"SHARED_{each}": "s" * 1000 for each in range(shared_characters // 1000)}
    return tuple(
        WorkerPlan(
            each, each, {**shared, "RANK": str(each), "TORCHELASTIC_ERROR_FILE": str(each) + "e" * own_characters}
        )
        for each in range(count)
    )


@pytest.mark.parametrize(
    "message",
    [
        PrepareStore(3, "127.0.0.1", 0, serve=False),
        ForkAhead(3, 8),
        Fence(2**62),
        Fence(2**62, 2**61),
        Spawn(1, (WorkerPlan(0, 5, {"A": "\udcff"}, StreamPlan(file="/x"), exec_prefix=("numactl",)),)),
        Spawn(1, _plans(3, own_characters=5, shared_characters=2000), more=True),
        Exited(0, 1, 2, 1, None, False, False, 9, "ValueError: no", 1.5, 8.25, 60.0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_each_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message)) == message


def test_an_order_for_many_workers_is_split_and_says_so() -> None:
    order = Spawn(4, _plans(1024, own_characters=8000, shared_characters=0))
    parts = payloads(order, bytes_max=FRAME_BYTES_MAX)
    assert len(parts) > 1
    assert max(map(len, parts)) <= FRAME_BYTES_MAX
    orders = [decode(part) for part in parts]
    assert [isinstance(each, Spawn) and each.more for each in orders] == [True] * (len(orders) - 1) + [False]
    assert sum((each.workers for each in orders if isinstance(each, Spawn)), start=()) == order.workers


def test_what_all_workers_have_alike_is_sent_once() -> None:
    (payload,) = payloads(
        Spawn(0, _plans(1024, own_characters=9, shared_characters=100_000)), bytes_max=FRAME_BYTES_MAX
    )
    assert len(payload) < 600_000


def test_one_worker_alone_can_be_too_long() -> None:
    (payload,) = payloads(Spawn(0, _plans(1, own_characters=2000, shared_characters=0)), bytes_max=1000)
    assert len(payload) > 1000


def test_what_a_later_version_says_is_known_as_such_and_spoils_nothing_beside_it() -> None:
    assert decode(b'{"type":"Rewind","cycle":3}') == Unknown("Rewind")
    orders = b'[{"type":"Rewind"},{"type":"KillTree","cycle":3,"how":1}]'
    assert decode(b'{"type":"Keep","texts":{},"taken":0,"orders":' + orders + b"}") == Keep({}, 0, (KillTree(3),))


def test_garbage_is_refused() -> None:
    with pytest.raises(SpawnerProtocolError):
        decode(b'{"type":7}')
    with pytest.raises(SpawnerProtocolError):
        decode(b'{"type":"Spawn","cycle":0,"workers":[{}]}')
    with pytest.raises(SpawnerProtocolError):
        decode(b'{"type":' + b"[" * 30_000)


def test_texts_to_keep_that_are_too_long_for_a_frame_come_in_several_and_the_orders_with_the_last() -> None:
    texts = {str(number): '"' * 400 for number in range(9)}
    message = Keep(texts, 3, (KillTree(1),))
    parts = [decode(payload) for payload in payloads(message, bytes_max=4000)]
    assert all(len(payload) <= 4000 for payload in payloads(message, bytes_max=4000))
    found: dict[str, str] = {}
    for part in parts:
        assert isinstance(part, Keep)
        assert (part.more, part.orders) == ((False, (KillTree(1),)) if part is parts[-1] else (True, ()))
        found |= part.texts
    assert found == texts
    assert len(payloads(Keep(texts, 3), bytes_max=4 * 4000)) == 1
