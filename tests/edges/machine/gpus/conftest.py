"""Simulated GPUs below the real nvidia-ml-py, and the process that asks about them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from tests.fakes.gpus import Gpus, build

SOCKET = "/s/worker.sock"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(tmp_path: Path, nvml_library: Path) -> Gpus:
    return Gpus(tmp_path, nvml_library)


@pytest.fixture
async def node_gpus(gpus: Gpus, tmp_path: Path) -> AsyncGenerator[NodeGpus]:
    node_gpus = NodeGpus(worker_socket=SOCKET, environment=gpus.environ(), dev=str(tmp_path))
    node_gpus.process.answer_s = node_gpus.cards.answer_s = 20.0  # the machine may be busy
    yield node_gpus
    await node_gpus.aclose()
