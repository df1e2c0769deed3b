"""How is the TCPStore of one cycle served on a socket that already listens, with the first client waiting?

A fork of a spawner with torch loaded serves it at once; otherwise a separate process loads torch.
"""

from __future__ import annotations

import os
import select
import sys
from typing import NoReturn

STORE_TIMEOUT_S = 300
LIBUV_LISTENS_SINCE = (2, 8)  # torch's older libuv store refuses a listening socket; its other store takes it


def serve(host: str, port: int, listen_fd: int) -> NoReturn:
    """Serves until killed. Raises torch's error if the store can't be created."""
    from datetime import timedelta

    import torch
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - public, but not in __all__

    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=STORE_TIMEOUT_S),
        use_libuv=libuv_listens(torch.__version__),
        master_listen_fd=listen_fd,
    )
    while store.port:  # Always: the store lives as long as this reference.
        select.poll().poll()
    raise AssertionError("cannot serve the store: torch has closed its port; report it with the version of torch")


def libuv_listens(torch_version: str) -> bool:
    """Returns whether the libuv backend of this torch can serve on a socket that already listens."""
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) >= LIBUV_LISTENS_SINCE


def serve_command(python: str, host: str, port: int, listen_fd: int) -> tuple[str, ...]:
    """Returns the command line that serves from a fresh interpreter, for a spawner without the user's modules."""
    return (python, os.path.abspath(__file__), host, str(port), str(listen_fd))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
