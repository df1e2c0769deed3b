"""Is each sign found in its own words, and does the quick look at a line never hide one?"""

from __future__ import annotations

import pytest

from supervisor.core.attribution.log_patterns import SIGNS, Sign, is_worth_a_look
from tests.core.attribution.labelled import read

LINES = [line for name in ("labelled_logs.txt", "blind_logs.txt") for log in read(name) for line in log.lines]


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.kind)
def test_each_sign_is_in_a_labelled_log(sign: Sign) -> None:
    assert any(sign.found_in(line.partition(": ")[2]) for line in LINES)


def test_each_line_with_a_sign_has_one_of_the_words() -> None:
    assert not [line for line in LINES if any(sign.found_in(line) for sign in SIGNS) and not is_worth_a_look(line)]


def test_what_was_found_is_told() -> None:
    xid = next(sign for sign in SIGNS if sign.kind == "xid")
    assert xid.found_in("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.") == "79"
    assert xid.found_in("Xid") is None


def test_a_line_may_name_the_faulty_ranks() -> None:
    timeout = next(sign for sign in SIGNS if sign.kind == "collective_timeout")
    assert timeout.accused_in("[Rank 0]: Ranks 5, 7 failed to pass monitoredBarrier in 4000 ms", 0) == (5, 7)
    assert timeout.accused_in("ProcessGroupNCCL's watchdog got stuck for 480 seconds", 2) == (2,)
    assert timeout.accused_in("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=X", 2) == ()


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("gpu_out_of_memory", "RuntimeError: CUDA error: out of memory"),
        (
            "collective_timeout",
            "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout",
        ),
        ("network", "NET/IBP:Got completion from peer 7.6.13.83<36315> with status=12"),
    ],
)
def test_other_versions_say_it_otherwise(kind: str, line: str) -> None:
    assert is_worth_a_look(line)
    assert next(sign.kind for sign in SIGNS if sign.found_in(line)) == kind
