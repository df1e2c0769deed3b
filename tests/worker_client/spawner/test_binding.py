"""Is a worker bound to exactly its CPUs and memory, forked or executed?"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from holdfast_wire.spawner_link import ForkAhead, PrepareStore, Spawn, StoreReady

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker

TELLS = """
import json, os, sys
pages = bytearray(1 << 22)
with open("/proc/self/numa_maps") as file:
    policies = {line.split()[1] for line in file}
torch = sys.modules.get("torch")
told = [sorted(os.sched_getaffinity(0)), sorted(policies), torch.THREADS if torch else None]
print(json.dumps(told), flush=True)
"""
TORCH = """
THREADS = 64
class default_generator:
    seed = staticmethod(lambda: 0)
def get_num_threads():
    return THREADS
def set_num_threads(count):
    global THREADS
    THREADS = count
"""
MINE = sorted(os.sched_getaffinity(0))


def told(rig: Rig) -> list[Any]:
    assert rig.process.stdout is not None
    return json.loads(rig.process.stdout.readline())


def has_numa_maps() -> bool:
    return os.path.exists("/proc/self/numa_maps")


needs_numa = pytest.mark.skipif(not has_numa_maps(), reason="this kernel knows no NUMA policy")


@needs_numa
@pytest.mark.parametrize("method", ["fork", "exec"])
def test_a_worker_gets_its_cpus_and_its_memory(script: Script, method: str) -> None:
    with Rig(script(TELLS), method=method) as rig:
        rig.run(worker()._replace(cpus=(MINE[-1],), memory_node=0))
        cpus, policies, _ = told(rig)
        assert cpus == [MINE[-1]]
        assert "bind:0" in policies
        rig.run(worker()._replace(memory_node=0, memory_strict=False))
        cpus, policies, _ = told(rig)
        assert cpus == MINE
        assert "bind:0" not in policies
        assert "local" in policies


@needs_numa
def test_a_worker_that_stood_ready_is_bound_as_it_gets_its_rank(script: Script) -> None:
    with Rig(script(TELLS)) as rig:
        rig.send(PrepareStore(0, "127.0.0.1"))
        rig.receive(StoreReady)
        rig.send(ForkAhead(0, 1))
        rig.send(Spawn(0, (worker()._replace(cpus=(MINE[0],), memory_node=0),)))
        assert rig.exited(0).code == 0
        cpus, policies, _ = told(rig)
    assert cpus == [MINE[0]]
    assert "bind:0" in policies


@needs_numa
def test_it_never_gets_more_than_the_spawner_has(script: Script) -> None:
    with Rig(script(TELLS)) as rig:
        rig.run(worker()._replace(cpus=(MINE[0], 1000), memory_node=900))
        assert told(rig)[0] == [MINE[0]]
        rig.run(worker()._replace(cpus=(1000, 1001), memory_node=0))
        cpus, policies, _ = told(rig)
        assert cpus == MINE
        assert "bind:0" not in policies, "its CPUs are not ours: its memory is not bound either"


@needs_numa
def test_torch_that_was_loaded_before_uses_no_more_threads_than_there_are_cpus(
    script: Script, env: dict[str, str]
) -> None:
    path = os.path.join(env["PYTHONPATH"], "torch.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(TORCH)
    with Rig(script("import torch\n" + TELLS), env=env, preload="torch") as rig:
        rig.run(worker()._replace(cpus=(MINE[0],)))
        assert told(rig)[2] == 1
        rig.run(worker())
        assert told(rig)[2] == 64
        rig.run(worker(OMP_NUM_THREADS="5")._replace(cpus=(MINE[0],)))
        assert told(rig)[2] == 5
