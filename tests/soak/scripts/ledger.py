"""A rank of somebody whose neighbour is hostile: it notes each step and its moment until the file `stop` exists.

argv: a folder, and a word that nobody else may read; the word is printed, too.
"""

import os
import sys
import time
from pathlib import Path

PACE_S = 0.05
STEPS_PER_WORD = 20

folder, word = Path(sys.argv[1]), sys.argv[2]
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with (folder / f"{rank}.ledger").open("a", buffering=1) as ledger:
    step = 0
    while not (folder / "stop").exists():
        step += 1
        ledger.write(f"{cycle} {os.getpid()} {step} {time.monotonic()}\n")
        if step % STEPS_PER_WORD == 0:
            print(f"step {step} {word}", flush=True)
        time.sleep(PACE_S)
