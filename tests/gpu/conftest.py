"""Tests on a real NVIDIA GPU, with the installed torch: `make gpu PYTHON=python3`. Skipped without a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervisor.config.device_count import has_gpu_driver
from tests.e2e.launch import Launch, launched

Start = Callable[..., Launch]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_gpu_driver(os.environ):
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA driver"))


@pytest.fixture
def start(tmp_path: Path, no_supervisor_of_the_node: None) -> Generator[Start]:
    """Starts `holdfast run` with the arguments; ends it with all its processes after the test."""
    del no_supervisor_of_the_node
    with ExitStack() as stack:

        def begin(*arguments: str, environment: dict[str, str] | None = None) -> Launch:
            folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(launched(folder, *arguments, environment=environment, python=sys.executable))

        yield begin
