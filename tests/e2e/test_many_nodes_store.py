"""The store of a job on several nodes: one per cycle, by IP, served only by the node of group rank 0.

The endpoint is an IPv6 address here, if there are any; names are in test_own_address.py. Each
`holdfast run` has its own folders, as nodes do.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

import psutil

from tests.e2e.test_many_nodes import LIMIT_S, nodes

# Every rank leaves a key in the store that it was given; rank 3 fails once.
SCRIPT = """
import os, sys, time
from datetime import timedelta
from torch.distributed import TCPStore
folder = sys.argv[1]
rank, cycle = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60))
is_fresh = not store.check([f"of cycle {int(cycle) - 1}"])
store.set(f"of cycle {cycle}", "")
store.add("ranks", 1)
while store.add("ranks", 0) < 4:
    time.sleep(0.01)
open(f"{folder}/new-{cycle}-{rank}", "w").write(f"{rank} of {os.environ['WORLD_SIZE']} {is_fresh} {host} {port}")
os.rename(f"{folder}/new-{cycle}-{rank}", f"{folder}/{cycle}-{rank}")
deadline = time.monotonic() + 60
while time.monotonic() < deadline and not os.path.exists(f"{folder}/seen-{cycle}"):
    time.sleep(0.02)
sys.exit(rank == 3 and cycle == "0")
"""


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def listens(port: int) -> set[int]:
    """Returns the processes with a listening socket at this port."""
    found = psutil.net_connections("tcp")
    listening = [each for each in found if each.status == "LISTEN" and tuple(each.laddr)[1:2] == (port,)]
    return {each.pid for each in listening if each.pid is not None}


def test_each_cycle_has_a_store_of_its_own_at_one_address_of_the_first_node(tmp_path: Path):
    with nodes(tmp_path, "2") as job:
        (tmp_path / "train.py").write_text(SCRIPT)
        job.endpoint = f"{'[::1]' if has_ipv6() else 'localhost'}:{job.port}"
        processes = [job.start(number) for number in (1, 2)]
        told: list[tuple[str, int]] = []
        for cycle in (0, 1):
            job.until_running(cycle, 4)
            words = {tuple((tmp_path / f"{cycle}-{rank}").read_text().split()[3:]) for rank in range(4)}
            ((is_fresh, address, port),) = words
            assert is_fresh == "True"
            assert ipaddress.ip_address(address).is_loopback
            (server,) = listens(int(port))
            ancestors = {each.pid for each in psutil.Process(server).parents()}
            assert processes[0].pid in ancestors, "group rank 0 is the first by name"
            assert processes[1].pid not in ancestors
            told.append((address, int(port)))
            (tmp_path / f"seen-{cycle}").touch()
        assert told[0] != told[1]
        assert [process.wait(LIMIT_S) for process in processes] == [0, 0], job.output(1)
