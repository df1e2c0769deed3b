"""Starts ranks as plain processes on this node, each with what a launcher would tell it, and ends none of them.

    starting.py WORLD_SIZE SCRIPT [ARGUMENTS …]

Its exit code is the highest of the ranks'; a rank that was killed counts as 0, since the others go on without it.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys

PORTS = 40  # that a job may use, from MASTER_PORT on


def free_ports() -> int:
    """The first of so many that are free, below those that the kernel gives to whoever asks for any."""
    while True:
        first = random.randrange(15_000, 30_000, PORTS)
        try:
            for port in range(first, first + PORTS):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def main(world_size: int, command: list[str]) -> int:
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports()), "TORCHELASTIC_RESTART_COUNT": "0"}
    job |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(world_size)
    ]
    return max(0, *(rank.wait() for rank in ranks))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
