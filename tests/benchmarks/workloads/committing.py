"""What does a checkpoint cost that is written with `commit`, beside the same one renamed by hand?"""

from recording import STARTED_NS, record

record("first_line", STARTED_NS)

import os  # noqa: E402  (after the first line)
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

from timing import timed  # noqa: E402

from worker_client import commit  # noqa: E402

BLOCK = 10  # checkpoints of one kind before the next kind's turn, so that all kinds meet the same disturbances
checkpoints, content = int(sys.argv[1]), bytes(int(sys.argv[2]))
folder = Path(tempfile.mkdtemp(dir=os.getcwd()))
path = folder / "last"


def with_commit() -> None:
    with commit(path) as temporary:
        temporary.write_bytes(content)


def flushed() -> None:
    beside = folder / "beside"
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def renamed() -> None:
    beside = folder / "beside"
    beside.write_bytes(content)
    beside.replace(path)


kinds: dict[str, Callable[[], None]] = {"commit": with_commit, "commit_flushed": flushed, "commit_renamed": renamed}
took_ns: dict[str, list[int]] = {name: [] for name in kinds}
for _ in range(0, checkpoints, BLOCK):
    for name, kind in kinds.items():
        took_ns[name] += timed(kind, BLOCK, 0.0)
for name, took in took_ns.items():
    record(name, p50_ns=sorted(took)[len(took) // 2])
record("done")
