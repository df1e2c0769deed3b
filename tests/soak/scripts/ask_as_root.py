"""Asks as root does, in turn, by holdfast's own commands; writes a line of JSON for each answer, until stdin ends.

argv: the pid of the service, and the user id of somebody whose supervisor may wait as long as she likes.

The commands run in this process, whose modules are loaded, so that the time is the service's and not the interpreter's.
"""

import contextlib
import io
import json
import os
import select
import sys
import time
from pathlib import Path

from supervisor.cli import main

PAUSE_S = 0.2
SERVICE, HOSTILE = sys.argv[1:3]
COMMANDS = (("jobs", "-o", "json"), ("status",), ("nodes",), ("jobs",), ("status", "-o", "json"))
OF_LIES = (("status", "lied"), ("events", "lied"), ("report", "lied"), ("logs", "lied"))


def waited_s() -> dict[str, float]:
    """Returns how long this process, the service and the users' supervisors were ready to run without a processor."""
    found: dict[str, float] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            is_asked = b"serve-user" in Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            is_asked = is_asked and f"Uid:\t{HOSTILE}\t" not in Path("/proc", pid, "status").read_text()
            if is_asked or pid in (SERVICE, str(os.getpid())):
                found[pid] = int(Path("/proc", pid, "schedstat").read_text().split()[1]) / 1e9
    return found


def withheld_s(before: dict[str, float]) -> float:
    """Returns what the machine withheld since then: of the supervisors, which work side by side, only the most."""
    waited = {pid: at_s - before.get(pid, 0.0) for pid, at_s in waited_s().items()}
    own_s = sum(waited.pop(pid, 0.0) for pid in (SERVICE, str(os.getpid())))
    return own_s + max(waited.values(), default=0.0)


round_number = 0
while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
    round_number += 1
    for command in (*COMMANDS, OF_LIES[round_number % len(OF_LIES)]):
        print(json.dumps({"asks": command}), file=sys.__stdout__, flush=True)
        out, err = io.StringIO(), io.StringIO()
        before, began_s = waited_s(), time.monotonic()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(command)
            except BaseException as error:  # noqa: BLE001 - a command that crashes is a finding
                code, _ = 1000, err.write(repr(error))
        took_s = time.monotonic() - began_s
        answer = {"command": command, "code": code, "took_s": took_s, "withheld_s": withheld_s(before)}
        print(json.dumps({**answer, "out": out.getvalue(), "err": err.getvalue()}), file=sys.__stdout__, flush=True)
