"""Cycle 0 fails as soon as a process has opened the FIFO `go`; any later cycle ends well."""

import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
cycle = int(os.environ["HOLDFAST_CYCLE"])
print(f"cycle {cycle} runs", flush=True)
(folder / f"began-{cycle}").touch()
if cycle == 0:
    with (folder / "go").open() as fifo:
        fifo.read()
    sys.exit(1)
