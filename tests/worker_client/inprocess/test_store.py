"""Are the stores torch's, with the reference product's names and arguments, and do they report a missing server?

Each case runs in a separate interpreter: torch's stores must not share one with other tests.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from worker_client.inprocess.store import BarrierError, FileStore, PrefixStore, StoreMixin, TCPStore

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 90

# A rank's start: no launcher, one rank, a free port.
PREAMBLE = """
import os, socket, subprocess, sys, threading
from datetime import timedelta
from worker_client.inprocess import store
from worker_client.inprocess.store import BarrierOverflow, BarrierTimeout, FileStore, PrefixStore, StoreMixin, TCPStore
SECOND = timedelta(seconds=1)
def raised(kind, run):
    try:
        run()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")
"""


def ran(script: str, folder: Path, **environment: str) -> str:
    """Returns its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "HOLDFAST"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]), "MASTER_ADDR": "127.0.0.1"}
    env |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(free_port()), **environment}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script], env=env, cwd=folder, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_the_classes_are_one_family_without_torch(tmp_path: Path):
    assert all(issubclass(each, StoreMixin) for each in (TCPStore, FileStore, PrefixStore))
    assert BarrierError.__mro__[1].__name__ == "RestartError"
    ran("assert 'torch' not in sys.modules and 'logging' not in sys.modules, sys.modules", tmp_path)


def test_rank_0_serves_and_the_others_connect(tmp_path: Path):
    script = """
other = '''
from worker_client.inprocess.store import TCPStore
store = TCPStore()
store.set("greeting", "hello")
'''
mine = TCPStore(wait_for_workers=False)
subprocess.run([sys.executable, "-c", other], env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"}, check=True)
import torch.distributed as dist
assert isinstance(mine, (TCPStore)) and isinstance(mine, dist.TCPStore) and isinstance(mine, dist.Store)
assert type(mine).__name__ == "TCPStore" and type(mine).__module__ == TCPStore.__module__
assert (mine.host, mine.port) == ("127.0.0.1", int(os.environ["MASTER_PORT"]))
print(mine.get("greeting").decode())
"""
    assert ran(script, tmp_path) == "hello\n"


def test_a_client_may_come_before_its_server(tmp_path: Path):
    script = """
import torch.distributed as dist
port = int(os.environ["MASTER_PORT"])
opened = []
thread = threading.Thread(target=lambda: opened.append(TCPStore()))
thread.start()
thread.join(0.5)
assert not opened
server = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
thread.join(60)
opened[0].set("a", "b")
print(server.get("a").decode())
"""
    assert ran(script, tmp_path, RANK="1") == "b\n"


def test_a_launchers_store_is_used_and_not_fought_for(tmp_path: Path):
    script = """
import torch.distributed as dist
launchers = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
for agent_store in ("True", "False"):  # told, and found out at the busy port
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = agent_store
    TCPStore().set(agent_store, "seen")
    print(launchers.get(agent_store).decode())
"""
    assert ran(script, tmp_path) == "seen\nseen\n"


def test_a_port_that_something_else_has_is_a_loud_error(tmp_path: Path):
    script = """
store.ANSWER_TIMEOUT_S = 1.0
listener = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
print(raised(RuntimeError, TCPStore), flush=True)
os._exit(0)  # torch still waits for an answer, in a thread
"""
    told = ran(script, tmp_path)
    assert "cannot serve a store at 127.0.0.1:" in told
    assert "the server there is not a TCPStore" in told
    assert "store_kwargs={'port': …}" in told


def test_nobody_to_connect_to_and_no_port(tmp_path: Path):
    script = """
print(raised(RuntimeError, lambda: TCPStore(timeout=SECOND)))
del os.environ["MASTER_PORT"]
print(raised(RuntimeError, TCPStore))
"""
    nobody, no_port = ran(script, tmp_path, RANK="1").splitlines()
    assert "check that rank 0 opens the store, too" in nobody
    assert "MASTER_PORT='' is not a port" in no_port


def test_subclasses_of_ours_and_of_torchs_with_the_mixin(tmp_path: Path):
    script = """
class Mine(FileStore):
    made = 0
    def __init__(self, name, *, folder="."):
        Mine.made += 1
        super().__init__(os.path.join(folder, name))
        self.name = name
first, second = Mine("shared"), Mine("shared", folder=os.getcwd())
assert type(first) is type(second) and Mine.made == 2 and first.name == "shared"
first.set("a", "1")
assert second.get("a") == b"1"

import torch.distributed as dist
for bases in ((dist.FileStore, StoreMixin), (StoreMixin, dist.FileStore)):
    class Theirs(*bases):
        def __init__(self, path):
            super().__init__(path, -1)
    theirs = Theirs("shared")
    assert theirs.get("a") == b"1"
    assert Theirs.barrier is StoreMixin.barrier  # torch has one of another meaning
    theirs.barrier([0], f"name {bases}", 1, SECOND)
"""
    ran(script, tmp_path)


def test_a_prefix_keeps_iterations_apart(tmp_path: Path):
    script = """
base = FileStore("shared")
first, second = PrefixStore(0, base), PrefixStore(1, base)
first.set("a", "1")
assert not second.check(["a"]) and base.get("_inprocess_0/a") == b"1"
assert first.base_store is base and first.iteration == 0
class NoStoreOfTorchs(StoreMixin): ...
print(raised(TypeError, lambda: PrefixStore(0, NoStoreOfTorchs())))
"""
    assert "it has to be a torch.distributed.Store" in ran(script, tmp_path)


def test_each_rank_of_a_barrier_waits_for_the_others(tmp_path: Path):
    script = """
base = FileStore("shared")
def both(barrier):
    thread = threading.Thread(target=lambda: barrier([1], "both", 2, 60 * SECOND))
    thread.start()
    barrier([0], "both", 2, timedelta.max)
    thread.join()
store_a, store_b = PrefixStore("a", base), PrefixStore("b", base)
both(store_a.barrier)
both(store_b.reentrant_barrier)
assert "3 ranks came, but it was made for 2" in raised(BarrierOverflow, lambda: store_a.barrier([0], "both", 2, SECOND))
store_b.reentrant_barrier([0], "both", 2, SECOND)  # once more
assert "3 ranks" in raised(BarrierOverflow, lambda: store_b.reentrant_barrier([2], "both", 2, SECOND))
base.barrier([0, 1], "for others", 2, SECOND)
base.barrier([0], "only arrives", 2, 0 * SECOND)
base.barrier([1], "only arrives", 2, 0 * SECOND)
base.barrier([], "only arrives", 2, SECOND)
print(raised(BarrierTimeout, lambda: base.barrier([0], "late", 2, 0.3 * SECOND, timeout_chunk=0.1 * SECOND)))
"""
    assert ran(script, tmp_path) == "cannot pass barrier 'late': 1 of 2 ranks came within 0:00:00.300000\n"


@pytest.mark.parametrize("kind", [TCPStore, FileStore, PrefixStore])
def test_names_are_shown_as_documented(kind: type[StoreMixin]):
    assert kind.__module__ == "worker_client.inprocess.store"
    assert kind.__doc__
