"""Is the framework's own counter read where it counts, and left alone where it does not?"""

from __future__ import annotations

import sys
import types

import pytest

from worker_client import training_iteration


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"curr_iteration": 7, "iteration": 3}, 7),
        ({"curr_iteration": None, "iteration": 3}, 3),
        ({"iteration": 0}, 0),
        ({"iteration": "three"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_megatron_s_counter_counts_once_it_has_begun(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object] | None, expected: int | None
):
    module = types.ModuleType("global_vars")
    if arguments is not None:
        vars(module)["_GLOBAL_ARGS"] = types.SimpleNamespace(**arguments)
    monkeypatch.setitem(sys.modules, training_iteration.MEGATRON_MODULE, module)
    assert training_iteration.current() == expected


def test_without_megatron_there_is_none_and_it_is_not_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, training_iteration.MEGATRON_MODULE, raising=False)
    assert training_iteration.current() is None
    assert training_iteration.MEGATRON_MODULE not in sys.modules
