"""Workers forked with torch loaded: what does a script see, and how fast does a group meet?"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from holdfast_wire.spawner_link import Emptied, KillTree, PrepareStore, Ready, StoreReady

from tests.worker_client.spawner.rig import Rig, clean_env, with_env

# One script for all tests here, chosen by a variable: loading torch takes seconds, so it is done once.
SCRIPT = """
    import json, os, sys
    import torch
    import torch.distributed as dist
    import numpy

    def look():
        product = (numpy.ones((400, 400)) @ numpy.ones((400, 400)))[0, 0]
        product += float((torch.ones(300, 300) @ torch.ones(300, 300))[0, 0])
        import multiprocessing
        return {
            "product": product,
            "threads": torch.get_num_threads(),
            "interop": torch.get_num_interop_threads(),
            "seed": torch.initial_seed(),
            "torch_draw": torch.rand(1).item(),
            "numpy_draw": numpy.random.rand(),
            "authkey": multiprocessing.current_process().authkey.hex(),
            "argv": sys.argv, "path": sys.path, "main": sys.modules["__main__"].__file__,
            "detail": str(dist.get_debug_level()),
            "bad_fork": torch.cuda._is_in_bad_fork(),
            "grad": torch.autograd.functional.jacobian(lambda x: x * x, torch.ones(2)).tolist(),
        }

    def meet():
        dist.init_process_group("gloo")
        dist.barrier()
        return dist.get_world_size()

    def load():
        from torch.utils.data import DataLoader
        return sorted(float(x) for x in DataLoader(torch.arange(6.0), num_workers=2))

    def twice(x):
        return x * 2

    def pool():
        import torch.multiprocessing as mp
        with mp.get_context("spawn").Pool(1) as workers:
            return workers.map(twice, [torch.ones(1).item()])

    if __name__ == "__main__":
        result = {"look": look, "meet": meet, "load": load, "pool": pool}[os.environ["DO"]]()
        with open(os.environ["RESULT"], "w") as file:
            json.dump(result, file)
        if dist.is_initialized():
            dist.destroy_process_group()
"""
DRAWN = ("seed", "torch_draw", "numpy_draw", "authkey")
ENV = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("job") / "train.py"
    file.write_text(dedent(SCRIPT))
    return str(file)


@pytest.fixture(scope="module")
def rig(path: str) -> Iterator[Rig]:
    with Rig(path, "--epochs", "1", env=clean_env() | ENV, stdout=None, stderr=None) as rig:
        ready = rig.receive(Ready, wait_s=90)
        assert ready.method == "fork", ready.method_reason
        assert ready.preloaded == ("torch", "torch.distributed", "numpy")
        yield rig


def results(rig: Rig, tmp_path: Path, do: str, cycle: int, ranks: int = 1, **env: str) -> list[Any]:
    plans = [with_env(rank, env | {"DO": do, "RESULT": str(tmp_path / f"{rank}.json")}) for rank in range(ranks)]
    ends = rig.run(*plans, cycle=cycle)
    assert [end.code for end in ends] == [0] * ranks
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]


def test_a_worker_sees_what_plain_python_shows(rig: Rig, path: str, tmp_path: Path) -> None:
    (seen,) = results(rig, tmp_path, "look", 1)
    env = clean_env() | ENV | {"RANK": "0", "DO": "look", "RESULT": str(tmp_path / "plain.json")}
    subprocess.run([sys.executable, "-u", path, "--epochs", "1"], env=env, check=True, timeout=90)
    expected = json.loads((tmp_path / "plain.json").read_text())
    for drawn in DRAWN:
        assert seen.pop(drawn) != expected.pop(drawn)
    assert seen == expected


def test_ranks_and_cycles_draw_differently(rig: Rig, tmp_path: Path) -> None:
    drawn = [*results(rig, tmp_path, "look", 2, ranks=2), *results(rig, tmp_path, "look", 6)]
    for name in DRAWN:
        assert len({each[name] for each in drawn}) == 3, name


def test_a_ranks_own_thread_count_is_set(rig: Rig, tmp_path: Path) -> None:
    (seen,) = results(rig, tmp_path, "look", 3, OMP_NUM_THREADS="3")
    assert seen["threads"] == 3


def test_a_data_loader_with_workers(rig: Rig, tmp_path: Path) -> None:
    assert results(rig, tmp_path, "load", 4) == [[0, 1, 2, 3, 4, 5]]


def test_a_spawned_pool(rig: Rig, tmp_path: Path) -> None:
    assert results(rig, tmp_path, "pool", 5) == [[2.0]]


def test_four_ranks_meet_again_and_again_each_time_in_a_fresh_store(rig: Rig, tmp_path: Path) -> None:
    took_s: list[float] = []
    seen_ports: set[int] = set()
    for cycle in range(10, 15):
        began = time.monotonic()
        rig.send(PrepareStore(cycle, "127.0.0.1"))
        port = rig.receive(StoreReady).port
        group = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env = (
            {"DO": "meet"} | group | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(cycle)}
        )
        folder = tmp_path / str(cycle)
        folder.mkdir()
        plans = [with_env(rank, env | {"RESULT": str(folder / f"{rank}.json")}) for rank in range(4)]
        rig.spawn(*plans, cycle=cycle)
        while not all((folder / f"{rank}.json").exists() for rank in range(4)):
            assert time.monotonic() - began < 30
            time.sleep(0.002)
        took_s.append(time.monotonic() - began)
        assert [rig.exited(rank).code for rank in range(4)] == [0] * 4
        rig.send(KillTree(cycle))
        rig.receive(Emptied)
        seen_ports.add(port)
    assert len(seen_ports) > 1
    print(f"prepare store to barrier passed by 4 forks: {sorted(took_s)}")
    assert min(took_s) < 1  # one import of torch alone takes longer


def test_the_memory_of_torch_is_shared(rig: Rig, tmp_path: Path) -> None:
    rollup = Path(f"/proc/{rig.process.pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    assert sizes["Rss"] > 100 * 1024  # torch is loaded here, once
