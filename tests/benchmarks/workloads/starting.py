"""Starts ranks as plain processes on this node, each with a launcher's variables, and ends none of them.

    starting.py WORLD_SIZE SCRIPT [ARGUMENTS …]
    starting.py WORLD_SIZE/NODES/NODE/HOST:PORT SCRIPT [ARGUMENTS …]   (this one of several nodes, from 0)

Its exit code is the highest of the ranks'; a rank that was killed counts as 0, since the others go on without it.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys

PORTS = 40  # ports that a job may use, from MASTER_PORT on


def free_ports() -> int:
    """Returns the first of that many free ports, below the range from which the kernel picks ports itself."""
    while True:
        first = random.randrange(15_000, 30_000, PORTS)
        try:
            for port in range(first, first + PORTS):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def main(which: str, command: list[str]) -> int:
    size, nodes, node, endpoint = which.split("/") if "/" in which else (which, "1", "0", "")
    host, _, port = endpoint.partition(":") if endpoint else ("127.0.0.1", "", str(free_ports()))
    job = {"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": "0"}
    local = int(size) // int(nodes)
    job |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": str(local), "OMP_NUM_THREADS": "1"}
    first = int(node) * local
    ranks = [
        subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **job, "RANK": str(first + rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(local)
    ]
    return max(0, *(rank.wait() for rank in ranks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
