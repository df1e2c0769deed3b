"""Are the stores torch's, with the reference product's names and arguments, and do they report a missing server?

Each case runs in a separate interpreter: torch's stores must not share one with other tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker_client.inprocess.store_process import ran
from worker_client.inprocess.store import FileStore, PrefixStore, StoreMixin, TCPStore


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
    assert "it is not a torch.distributed.Store" in ran(script, tmp_path)


@pytest.mark.parametrize("kind", [TCPStore, FileStore, PrefixStore])
def test_names_are_shown_as_documented(kind: type[StoreMixin]):
    assert kind.__module__ == "worker_client.inprocess.store"
    assert kind.__doc__
