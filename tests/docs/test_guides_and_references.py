"""Does each guide lead to its reference and back, and does the reference have every parameter and option?"""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from supervisor.config import rendezvous_settings
from supervisor.edges.peers.election import etcd_backend
from worker_client import inprocess, lightning, transformers

DOCS = Path(__file__).parents[2] / "docs"


def _reference(name: str) -> str:
    return (DOCS / "reference" / name).read_text()


@pytest.mark.parametrize("name", ["many-nodes.md", "in-process.md", "operating.md"])
def test_a_guide_is_short_and_leads_to_its_reference(name: str) -> None:
    guide = (DOCS / name).read_text()
    assert f"](reference/{name})" in guide
    assert f"](../{name})" in _reference(name)
    assert len(guide.split()) < len(_reference(name).split()) / 2


def test_each_parameter_of_the_wrapper_is_there_with_its_default() -> None:
    table = _reference("in-process.md").partition("## What happens")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
    shown = {name: default.split(", ") for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    parameters = inspect.signature(inprocess.Wrapper).parameters
    assert set(shown) == set(parameters)
    for name, parameter in parameters.items():
        default: object = parameter.default
        match default:
            case timedelta():
                assert shown[name] == [f"{default.total_seconds():g} s"], name
            case None:
                assert "none" in shown[name], name
            case bool():
                assert shown[name] == [str(default)], name
            case _:
                words = re.findall(r"[A-Z]\w+", " ".join(shown[name]))
                assert words, name
                assert all(word in _written(default) for word in words), name


def _written(default: object) -> str:
    return default.__name__ if isinstance(default, type) else repr(default) + type(default).__name__


def test_each_option_of_the_rendezvous_is_there() -> None:
    named = {word for code in _reference("many-nodes.md").split("`")[1::2] for word in re.findall(r"[a-z_0-9]+", code)}
    assert named >= rendezvous_settings.OWN_OPTIONS | rendezvous_settings.IDLE_OPTIONS.keys() | etcd_backend.OPTIONS


@pytest.mark.parametrize(("module", "base"), [(lightning, "_Monitored"), (transformers, "_Hooks")])
def test_each_argument_of_a_callback_is_there(module: ModuleType, base: str) -> None:
    """Autodoc can't show them: the classes that users import are made on top of a framework."""
    section = _reference("python.md").partition(f"\n## {module.__name__}\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert shown == [*inspect.signature(vars(module)[base]).parameters]
