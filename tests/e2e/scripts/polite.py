"""A worker that saves its work and exits with 0 when it is asked to stop."""

import json
import os
import signal
import sys


def trace(what: str) -> None:
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps({"what": what, "rank": int(os.environ["RANK"])}) + "\n")


def save(number: int, frame: object) -> None:
    trace("saved")
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
trace("started")
signal.pause()
