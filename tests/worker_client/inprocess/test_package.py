"""Which names does `worker_client.inprocess` offer, and what does it load for them?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker_client import inprocess

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "numpy", "asyncio", "multiprocessing", "google.protobuf", "logging", "dataclasses")

SCRIPT = """
import json, sys
sys.path[:0] = [{checkout!r}, {proto!r}]
{statement}
print(json.dumps([name for name in {heavy!r} if name in sys.modules]))
"""


def loaded_by(statement: str) -> list[str]:
    script = SCRIPT.format(checkout=str(ROOT), proto=str(ROOT / "proto"), statement=statement, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_the_package_alone_loads_nothing():
    assert loaded_by("from worker_client import inprocess") == []


def test_rank_assignment_needs_neither_torch_nor_a_connection():
    assert loaded_by("from worker_client import inprocess; inprocess.rank_assignment.Tree") == ["dataclasses"]


def test_every_name_leads_somewhere():
    for name in inprocess.__all__:
        value = getattr(inprocess, name)
        assert value.__name__.rpartition(".")[2] == name
        assert name in dir(inprocess)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = inprocess.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_errors_by_their_modules():
    restart = inprocess.exception.RestartError
    for error in (
        inprocess.exception.HealthCheckError,
        inprocess.exception.InternalError,
        inprocess.exception.TimeoutError,
        inprocess.rank_assignment.RankDiscarded,
        inprocess.store.BarrierError,
        inprocess.store.BarrierTimeout,
        inprocess.store.BarrierOverflow,
    ):
        assert issubclass(error, restart)
    assert issubclass(inprocess.store.BarrierTimeout, inprocess.store.BarrierError)
    assert not issubclass(inprocess.exception.RestartAbort, Exception)
    assert not issubclass(inprocess.exception.TimeoutError, TimeoutError)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("initialize", "Initialize"),
        ("abort", "Abort"),
        ("finalize", "Finalize"),
        ("health_check", "HealthCheck"),
        ("completion", "Completion"),
        ("terminate", "Terminate"),
    ],
)
def test_each_family_is_reached_by_its_module_and_is_abstract(name: str, kind: str):
    family = getattr(getattr(inprocess, name), kind)
    with pytest.raises(TypeError, match="abstract"):
        family()
