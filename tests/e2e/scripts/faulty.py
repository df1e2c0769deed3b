"""A worker without torch that performs its arguments' actions at a chosen cycle and rank, and traces what it sees."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

RANK = int(os.environ["RANK"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def trace(what: str, **more: object) -> None:
    line = {"what": what, "rank": RANK, "cycle": CYCLE, "pid": os.getpid(), "at": time.monotonic(), **more}
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps(line) + "\n")


def meanwhile() -> None:
    """Does what healthy ranks do while another one fails."""
    time.sleep(600)


def act(action: str) -> None:  # noqa: C901 - one case for each fault
    kind, _, value = action.partition("=")
    match kind:
        case "exit":
            os._exit(int(value))
        case "kill":
            os.kill(os.getpid(), int(value))
            time.sleep(600)
        case "raise":
            raise ValueError(value)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(float(value or 600))
        case "gil":
            ctypes.PyDLL(None).sleep(600)
        case "spin":
            while True:
                pass
        case "ignore-term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            trace("ignoring")
            meanwhile()
        case "escape":
            # A grandchild in a separate session, its parent gone: only a subreaper or a cgroup finds it.
            if os.fork() == 0:
                os.setsid()
                if os.fork() != 0:
                    os._exit(0)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                trace("escaped")
                time.sleep(600)
            os.wait()
        case "hold-pipe":
            subprocess.Popen(["sleep", "600"])
            trace("holding")
            os._exit(int(value or 3))
        case "memory":
            held: list[bytearray] = []
            while True:
                held.append(bytearray(8 << 20))
        case "write":
            sys.stdout.write(value + "\n")
        case _:
            raise SystemExit(f"unknown action {action}")


def main() -> None:
    plan: dict[str, list[str]] = {}  # "cycle:rank" -> actions; "*" stands for any
    rest = "sleep"
    for argument in sys.argv[1:]:
        where, _, actions = argument.partition("/")
        if where == "else":
            rest = actions
            continue
        plan[where] = actions.split(",")
    trace("started")
    for where in (f"{CYCLE}:{RANK}", f"*:{RANK}", f"{CYCLE}:*", "*:*"):
        if where in plan:
            for action in plan[where]:
                act(action)
            break
    else:
        if rest == "sleep":
            meanwhile()
        elif rest != "pass":
            act(rest)
    trace("done")


main()
