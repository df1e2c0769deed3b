"""Is a module that records its rank when it is loaded found, and is a known one told its rank later?"""

from __future__ import annotations

import os
import sys
import types

import pytest

from worker_client.spawner import rank_reads


def load(source: str, name: str = "module") -> None:
    """Runs `source` as the body of a module of that name."""
    module = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))


@pytest.mark.parametrize(
    "source",
    [
        "import os; os.environ.get('RANK')",
        "import os; os.environ['RANK'] if 'RANK' in os.environ else 0",
        "import os; os.getenv('RANK')",
        "import os; dict(os.environ)",
    ],
)
def test_each_way_to_read_is_seen(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with rank_reads.watched() as read:
        load(source)
    assert read == {"RANK": "module"}


@pytest.mark.parametrize(
    ("variable", "is_a_worker_s"),
    [
        ("RANK", True), ("LOCAL_RANK", True), ("GROUP_WORLD_SIZE", True), ("MASTER_PORT", True),
        ("TORCHELASTIC_RUN_ID", True), ("HOLDFAST_CYCLE", True),
        ("HOME", False), ("OMP_NUM_THREADS", False), ("MY_RANK", False), ("HOLDFAST_JOB_ID", False),
    ],
)  # fmt: skip
def test_only_what_differs_between_workers_counts(variable: str, is_a_worker_s: bool) -> None:
    with rank_reads.watched() as read:
        load(f"import os; os.environ.get({variable!r})")
    assert (variable in read) is is_a_worker_s


def test_the_first_reader_is_named_and_known_ones_are_not() -> None:
    with rank_reads.watched() as read:
        load("import os; os.environ.get('RANK')", "fsspec.config")
        assert read == {}
        load("import os; os.environ.get('RANK')", "first")
        load("import os; os.environ.get('RANK')", "second")
    assert read == {"RANK": "first"}


def test_afterwards_nothing_is_watched() -> None:
    before = type(os.environ).__getitem__
    with pytest.raises(ValueError, match="a module fails"), rank_reads.watched() as read:
        raise ValueError("a module fails")
    assert type(os.environ).__getitem__ is before
    os.environ.get("RANK")
    assert read == {}


def test_a_known_module_is_told_the_worker_s_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_zero_only() -> None: ...

    rank_zero_only.rank = 0  # pyright: ignore[reportFunctionMemberAccess]
    module = types.ModuleType("prints")
    vars(module)["rank_zero_only"] = rank_zero_only
    monkeypatch.setitem(sys.modules, "torchmetrics.utilities.prints", module)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    rank_reads.tell_ranks()
    assert vars(rank_zero_only)["rank"] == 0
    monkeypatch.setenv("LOCAL_RANK", "5")
    rank_reads.tell_ranks()
    assert vars(rank_zero_only)["rank"] == 5
