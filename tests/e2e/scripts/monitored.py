"""A worker without torch that uses RankMonitorClient as its arguments say, at a chosen cycle and rank; traces itself.

`cycle:rank/action,action` with "*" for any; ranks that no argument names beat until they are ended.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from odd_bytes import ODD_BYTES

from worker_client import RankMonitorClient, RankMonitorClientError, WorkloadAction, WorkloadControlRequest

RANK = int(os.environ["RANK"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
BEAT_INTERVAL_S = 0.02
ALWAYS_S = 600.0

client = RankMonitorClient()


def trace(what: str, **more: object) -> None:
    """Writes a line. `at` is the system-wide monotonic clock, `at_unix` that of events."""
    line = {"what": what, "rank": RANK, "cycle": CYCLE, "pid": os.getpid(), "at": time.monotonic()}
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps({**line, "at_unix": time.time(), **more}) + "\n")


def beat_for(duration_s: float) -> None:
    """Beats, and notes the slowest call."""
    slowest_s, until_s = 0.0, time.monotonic() + duration_s
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        client.send_heartbeat()
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        time.sleep(BEAT_INTERVAL_S)
    trace("beaten", slowest_s=slowest_s)


def step_for(duration_s: float) -> None:
    """Makes short steps, one after another."""
    until_s = time.monotonic() + duration_s
    while time.monotonic() < until_s:
        client.start_section("step")
        time.sleep(BEAT_INTERVAL_S)
        client.end_section("step")


def hang_in_the_data_loader(how: str) -> None:
    """Hangs; the evidence must contain this name."""
    trace("hangs")
    if how == "sleep":
        time.sleep(ALWAYS_S)
    elif how == "gil":
        hold = ctypes.PyDLL(None).sleep
        while True:
            hold(int(ALWAYS_S))  # a signal handler ends the call early
    elif how == "spin":
        while True:
            pass
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(ALWAYS_S)


def take_part() -> None:
    """Does what healthy ranks do while another one hangs."""
    client.init_workload_monitoring()
    beat_for(ALWAYS_S)


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def note_iteration(value: str) -> None:
    """Writes progress to a checkpoint file, so that no back-off delays the test."""
    path = os.environ["ITERATION_FILE"]
    with open(path) as file:
        iteration = int(file.read())
    with open(path, "w") as file:
        file.write(str(iteration + int(value)))


def beat_in_a_child() -> None:
    """A20: stamps of a forked child are nobody's progress, and its end is nobody's end."""
    if os.fork() == 0:
        try:
            for _ in range(20):
                client.send_heartbeat()
                time.sleep(BEAT_INTERVAL_S)
            try:
                client.send_workload_control_request(
                    WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "from a child")
                )
            finally:
                client.shutdown_workload_monitoring()
            trace("child-done")
        finally:
            os._exit(0)
    os.wait()


def bomb() -> None:
    """A15: children fork children indefinitely; the rank itself ends once no more processes are possible."""
    if os.fork() == 0:
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
    while True:
        try:
            if os.fork() == 0:
                time.sleep(ALWAYS_S)
        except OSError:
            trace("bombed")
            os._exit(3)


def devour() -> None:
    held: list[bytearray] = []
    while True:
        held.append(bytearray(b"x" * (4 << 20)))
        client.send_heartbeat()


def flood(megabytes: float) -> None:
    """Writes as fast as it can, and beats. Notes the slowest of each, and what spawner and supervisor used for it."""
    chunk = (b"y" * 127 + b"\n") * 512
    written, slowest_write_s, slowest_s = 0, 0.0, 0.0
    used_before_s = launcher_cpu_s()
    while written < megabytes * (1 << 20):
        began_s = time.monotonic()
        written += os.write(1, chunk)
        wrote_s = time.monotonic()
        client.send_heartbeat()
        slowest_write_s = max(slowest_write_s, wrote_s - began_s)
        slowest_s = max(slowest_s, time.monotonic() - wrote_s)
    used_s = launcher_cpu_s() - used_before_s
    trace("flooded", slowest_s=slowest_s, slowest_write_s=slowest_write_s, written=written, used_s=used_s)


def launcher_cpu_s() -> float:
    """Returns the CPU time of the spawner, our parent, and of the supervisor, its parent."""
    ticks, pid = 0, os.getppid()
    for _ in range(2):
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        pid = int(fields[1])
    return ticks / os.sysconf("SC_CLK_TCK")


def act(action: str) -> None:
    kind, _, value = action.partition("=")
    if not speak(kind, value):
        behave(kind, value)


def speak(kind: str, value: str) -> bool:  # noqa: C901 - one line for each action
    """Handles actions that go through the client; returns False for others."""
    match kind:
        case "init":
            trace("initialises")
            client.init_workload_monitoring(int(value) if value else None)
            trace("initialised", shared=_shares_page())
        case "shutdown":
            client.shutdown_workload_monitoring()
        case "beat":
            trace("beat")
            client.send_heartbeat()
        case "beat-for":
            beat_for(float(value))
        case "step-for":
            step_for(float(value))
        case "open":
            trace("opens", section=value)
            client.start_section(value)
        case "close":
            client.end_section(value)
        case "close-all":
            client.end_all_sections()
            trace("closed-all")
        case "hang":
            hang_in_the_data_loader(value)
        case "learn-heartbeats":
            client.calculate_and_set_hb_timeouts()
            trace("learned", limits=repr(client.hb_timeouts))
        case "learn-sections":
            client.calculate_and_set_section_timeouts(calc_out_of_section=False)
            trace("learned", limits=repr(client.section_timeouts))
        case "limits":
            trace("limits", heartbeat=repr(client.hb_timeouts), section=repr(client.section_timeouts))
        case "control":
            name, _, description = value.partition(":")
            client.send_workload_control_request(WorkloadControlRequest(WorkloadAction[name], description))
            trace("controlled")
        case "beat-in-a-child":
            beat_in_a_child()
        case "open-again":
            try:
                client.start_section(value)
            except RankMonitorClientError as error:
                trace("misused", error=str(error))
        case _:
            return False
    return True


def behave(kind: str, value: str) -> None:  # noqa: C901 - one line for each action
    match kind:
        case "sleep":
            time.sleep(float(value or ALWAYS_S))
        case "progress":
            note_iteration(value or "1")
        case "garble":
            with open(os.environ["ITERATION_FILE"], "w") as file:
                file.write("half a num")
        case "mark":
            trace("mark")
        case "await-file":
            wait_until(lambda: os.path.exists("go"))
        case "await-socket":
            wait_until(lambda: os.path.exists(os.environ["HOLDFAST_SOCKET"]))
        case "await-page":
            wait_until(_shares_page)
        case "bomb":
            bomb()
        case "devour":
            devour()
        case "flood":
            flood(float(value))
        case "write-odd":
            for data in ODD_BYTES:
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
        case "ignore-term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "exit":
            os._exit(int(value))
        case _:
            raise SystemExit(f"unknown action {kind}")


def _shares_page() -> bool:
    # No user needs to know, tests do.
    monitoring = client._monitoring  # pyright: ignore[reportPrivateUsage]
    return monitoring is not None and monitoring.progress._page.is_shared  # pyright: ignore[reportPrivateUsage]


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    plan = dict(argument.split("/", 1) for argument in sys.argv[1:])
    trace("started", socket=os.environ.get("HOLDFAST_SOCKET"))
    for where in (f"{CYCLE}:{RANK}", f"*:{RANK}", f"{CYCLE}:*", "*:*"):
        if where in plan:
            for action in plan[where].split(","):
                act(action)
            break
    else:
        take_part()
    trace("done")


main()
