"""Is each later group's token greater?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

import worker_client
from worker_client import fencing_tokens


@pytest.fixture(autouse=True)
def _no_iteration() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    before = fencing_tokens.iteration()
    fencing_tokens.begin_iteration(0, 0)
    yield
    fencing_tokens.begin_iteration(*before)


def token(epoch: int, cycle: int, call: int = 0, iteration: int = 0) -> int:
    fencing_tokens.begin_iteration(call, iteration)
    return fencing_tokens.token({"HOLDFAST_FENCING_EPOCH": str(epoch), "HOLDFAST_CYCLE": str(cycle)})


def test_tokens_grow_by_epoch_then_cycle_then_call_then_iteration():
    groups = [
        (1, 0), (1, 0, 1, 0), (1, 0, 1, 1), (1, 0, 1, 63), (1, 0, 2, 0), (1, 0, 31, 5), (1, 1), (1, 1, 1, 9),
        (1, 511, 31, 63), (2, 0), (2, 7), (1_800_000_000_000, 3),
    ]  # fmt: skip
    tokens = [token(*group) for group in groups]
    assert all(earlier < later for earlier, later in pairwise(tokens)), tokens
    assert [fencing_tokens.epoch_of(each) for each in tokens] == [group[0] for group in groups]


def test_tokens_never_fall_where_the_numbers_have_no_room():
    groups = [
        (1, 0, 1, 63),
        (1, 0, 1, 64),
        (1, 0, 1, 5000),
        (1, 0, 32, 0),
        (1, 0, 900, 70),
        (1, 1),
        (1, 512),
        (1, 9000),
    ]
    tokens = [token(*group) for group in groups]
    assert all(earlier <= later for earlier, later in pairwise(tokens)), tokens


def test_a_token_of_this_century_fits_into_64_bits():
    assert token(4_000_000_000_000, 511, 99, 99) < 2**63


@pytest.mark.parametrize("epoch", [None, "", "0", "x"])
def test_without_a_supervisor_or_with_one_that_knows_no_epoch_there_is_no_token(
    epoch: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_CYCLE", "7")
    monkeypatch.delenv("HOLDFAST_FENCING_EPOCH", raising=False)
    if epoch is not None:
        monkeypatch.setenv("HOLDFAST_FENCING_EPOCH", epoch)
    assert worker_client.fencing_token() == 0
