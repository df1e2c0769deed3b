"""Asks as root does, in turn, by holdfast's own commands; writes a line of JSON for each answer, until stdin ends.

argv: the pid of the service.

The commands run in this process, whose modules are loaded, so that the time is the service's and not the interpreter's.
"""

import contextlib
import io
import json
import select
import sys
import time
from pathlib import Path

from supervisor.cli import main

PAUSE_S = 0.2
SERVICE = sys.argv[1]
COMMANDS = (("jobs", "-o", "json"), ("status",), ("nodes",), ("jobs",), ("status", "-o", "json"))


def waited_s() -> float:
    """Returns how long this process and the service were ready to run without a processor."""
    told = [Path("/proc", each, "schedstat").read_text().split()[1] for each in ("self", SERVICE)]
    return sum(map(int, told)) / 1e9


while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
    for command in COMMANDS:
        print(json.dumps({"asks": command}), file=sys.__stdout__, flush=True)
        out, err = io.StringIO(), io.StringIO()
        before_s, began_s = waited_s(), time.monotonic()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(command)
            except BaseException as error:  # noqa: BLE001 - a command that crashes is a finding
                code, _ = 1000, err.write(repr(error))
        took_s = time.monotonic() - began_s
        answer = {"command": command, "code": code, "took_s": took_s, "withheld_s": waited_s() - before_s}
        print(json.dumps({**answer, "out": out.getvalue(), "err": err.getvalue()}), file=sys.__stdout__, flush=True)
