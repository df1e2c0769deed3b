"""Trains train_lm.py on three nodes of this machine while a rank is killed and a whole node loses its power.

The nodes are namespaces with their own networks, host names and processes, or, if those are not allowed, plain
processes on loopback addresses. Two of them train; the third is a hot spare. In the second act (demo_elected.py), the
nodes elect their leader through etcd, and the leader's node is lost. Exits with 0 only if the job restarted after each
fault, the spare replaced the lost node, and the loss continued from the checkpoint.

Run it from the checkout: `make demo-cluster`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from docs.examples.demo import (
    SAME_LOSS,
    DemoError,
    Point,
    holdfast,
    read_curve,
    show_command,
    show_curve,
    wrapped,
    write_report,
)
from supervisor.core.event_weights import Weight, weight
from supervisor.core.terminal_sentences import addition
from tests.cluster import lab
from tests.cluster.lab import Node, Started
from tests.cluster.loopback import LoopbackNode, loopback_nodes

ROOT = Path(__file__).parents[2]
JOB_ID = "demo-cluster"
NODES, TRAINING, RANKS = 3, 2, 2
LEADER, VICTIM, SPARE = 1, 2, 3
PORT = 29400
STEPS = 120
KILL_AT, POWER_LOSS_AT = 0.3, 0.6  # of the steps
LIMIT_S = 160.0
LOOK_EVERY_S = 0.05
UNTOLD_KINDS = ("worker_started", "worker_exited")  # the events about all workers of a node are enough
COLOURS = {1: "\033[36m", 2: "\033[35m", 3: "\033[33m"}
PLAIN, BOLD, RED = "\033[0m", "\033[1m", "\033[31m"


@dataclass
class Cluster:
    """The job as each node runs it."""

    nodes: Mapping[int, Node | LoopbackNode]
    output: Path
    steps: int
    began_s: float
    job_id: str = JOB_ID
    rendezvous: tuple[str, ...] = ()  # how the nodes meet; (): at the first one
    told_by: tuple[int, ...] = (LEADER,)  # whose journals have the whole job
    runs: dict[int, Started | subprocess.Popen[bytes]] = field(
        default_factory=dict[int, "Started | subprocess.Popen[bytes]"]
    )
    said: list[tuple[float, int, str]] = field(default_factory=list[tuple[float, int, str]])

    def say(self, number: int, text: str) -> None:
        """Prints what the demo is doing."""
        self.said.append((time.time(), number, text))
        print(f"{time.time() - self.began_s:7.2f} s  {self.name(number):12} {text}", flush=True)

    def say_steps(self, after: int) -> list[Point]:
        """Prints every twentieth step after the first `after`; returns all."""
        points = read_curve(self.output) if (self.output / "curve.jsonl").exists() else []
        for point in points[after:]:
            if point.resumed or point.step % 20 == 0:
                again = "goes on from the checkpoint at " if point.resumed else ""
                self.say(0, f"{again}step {point.step}, loss {point.loss:.3f}")
        return points

    def name(self, number: int) -> str:
        return self.nodes[number].name if number else ""

    def environment(self, number: int) -> dict[str, str]:
        home = self.output / f"node{number}"
        for place in (home, home / "claims", home / "state", home / "run", home / "tmp"):
            place.mkdir(exist_ok=True, mode=0o700)
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        return kept | {
            "HOLDFAST_CLAIM_DIR": str(home / "claims"),
            "HOLDFAST_STATE_DIR": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "TMPDIR": str(home / "tmp"),
        }

    def flags(self) -> list[str]:
        meet = self.rendezvous or ("--rdzv-endpoint", f"{self.nodes[LEADER].address}:{PORT}")
        meeting = ["--rdzv-id", self.job_id, *meet, "--rdzv-conf", f"token_file={self.output / 'token'}"]
        return [
            "--nnodes", f"{TRAINING}:{NODES}", *meeting, "--nproc-per-node", str(RANKS), "--max-restarts", "5",
            "--preload", "torch,torch._dynamo",
        ]  # fmt: skip

    def start(self, number: int, *more: str) -> None:
        script = [str(ROOT / "docs/examples/train_lm.py"), "--steps", str(self.steps), "--output", str(self.output)]
        script += more
        named = ["--local-addr", self.name(number)] if isinstance(self.nodes[number], LoopbackNode) else []
        with (self.output / f"node{number}.txt").open("wb") as output:
            self.runs[number] = self.nodes[number].start(
                holdfast(), "run", *self.flags(), *named, *script,
                environment=self.environment(number), output=output,
            )  # fmt: skip

    def events(self) -> list[dict[str, Any]]:
        """Returns the whole job's events, oldest first; `on` is the number of the node that each is about."""
        numbers = {name: number for number, node in self.nodes.items() for name in (node.name, node.address)}
        found: dict[str, dict[str, Any]] = {}
        for number in self.told_by:
            told = subprocess.run(
                [holdfast(), "events", self.job_id, "-o", "jsonl"],
                env=self.environment(number), capture_output=True, text=True, check=False,
            )  # fmt: skip
            for line in map(json.loads, told.stdout.splitlines()):
                at_s = datetime.fromisoformat(line["at"]).timestamp()
                key = f"{line['at']} {line['node']} {line['rank']} {line['kind']}"
                found[key] = {**line, "on": numbers.get(line["node"], number), "at": at_s}
        return sorted(found.values(), key=lambda event: event["at"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-cluster-output"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--act", type=int, choices=(1, 2), help="this one alone; default: both")
    given = parser.parse_args()
    output: Path = given.output.absolute()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    write_token(output)
    began_s = time.time()
    faults = 0
    try:
        if given.act != 2:
            with some_nodes(NODES) as nodes:
                cluster = Cluster(nodes, output, given.steps, began_s)
                run_job(cluster)
                show(cluster, "a rank was killed", "a node was lost")
            faults += 2
        if given.act != 1:
            faults += demo_elected.play(output / "elected", given.steps)
    except DemoError as error:
        print(f"\nthe demo failed: {error}; see {output}", file=sys.stderr)
        return 1
    print(f"\nSuccess after {time.time() - began_s:.0f} s, {faults} faults survived. Everything is in {output}")
    return 0


def write_token(output: Path) -> None:
    (output / "token").touch(mode=0o600)
    (output / "token").write_text(secrets.token_hex(32))


@contextmanager
def some_nodes(count: int) -> Generator[Mapping[int, Node | LoopbackNode]]:
    if why := lab.missing():
        print(f"The nodes are processes on loopback addresses; to give each a network of its own {why}.\n")
        with loopback_nodes(count) as nodes:
            yield nodes
    else:
        print("The nodes are namespaces: each has a network, a host name and processes of its own.\n")
        with lab.lab_of(count) as made:
            yield made.nodes


def run_job(cluster: Cluster) -> None:
    """Injects the faults while training runs; returns once all remaining nodes have ended."""
    print("The same on each node:")
    show_command([*cluster.flags(), "docs/examples/train_lm.py"])
    give_up_at_s = time.monotonic() + LIMIT_S
    shown = 0
    struck = set[str]()
    kill = ("--kill-at", str(int(KILL_AT * cluster.steps)))
    cluster.start(LEADER, *kill)
    cluster.say(LEADER, "starts; it listens at the endpoint, so it leads the job")
    await_leader(cluster)
    cluster.start(VICTIM, *kill)
    cluster.say(VICTIM, "starts")
    while any(run.poll() is None for number, run in cluster.runs.items() if number != VICTIM or "power" not in struck):
        if time.monotonic() > give_up_at_s:
            raise DemoError(f"the job has not ended within {LIMIT_S:g} s")
        points = cluster.say_steps(shown)
        shown = len(points)
        if points and SPARE not in cluster.runs:
            cluster.start(SPARE, *kill)
            cluster.say(SPARE, "starts; the job has its nodes, so it is a hot spare")
        if "kill" not in struck and (cluster.output / "struck-kill").exists():
            struck.add("kill")
            cluster.say(LEADER, "* rank 1 is killed (SIGKILL)")
        if "power" not in struck and points and points[-1].step >= POWER_LOSS_AT * cluster.steps:
            struck.add("power")
            cluster.say(VICTIM, "* loses its power: no process is left there, and no goodbye is said")
            cluster.nodes[VICTIM].lose_power()
        time.sleep(LOOK_EVERY_S)
    codes = {number: run.wait(LIMIT_S) for number, run in cluster.runs.items() if number != VICTIM}
    if struck != {"kill", "power"}:
        raise DemoError(f"not every fault struck: {sorted(struck)}")
    if any(codes.values()):
        raise DemoError(f"the job ended with the exit codes {codes}")


def await_leader(cluster: Cluster) -> None:
    """Waits until the first node leads, because on loopback addresses any node could."""
    node = cluster.nodes[LEADER]
    give_up_at_s = time.monotonic() + LIMIT_S
    while isinstance(node, LoopbackNode) and time.monotonic() < give_up_at_s:
        with socket.socket() as probe:
            if probe.connect_ex((node.address, PORT)) == 0:
                return
        time.sleep(LOOK_EVERY_S)


def show(cluster: Cluster, *faults: str) -> None:
    """Shows the timeline, the loss before and after each fault, and its curve; writes the report."""
    events = cluster.events()
    (cluster.output / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    show_timeline(cluster, events)
    points = read_curve(cluster.output)
    check(cluster, points, faults)
    show_curve(points)
    write_report(cluster.output, cluster.job_id, cluster.environment(cluster.told_by[0]))


def show_timeline(cluster: Cluster, events: list[dict[str, Any]]) -> None:
    """Shows what the nodes recorded, and what the demo did (*)."""
    lines = [
        (each["at"], each["on"], each["kind"], each["reason"]) for each in events if each["kind"] not in UNTOLD_KINDS
    ]
    lines += [(at, number, "fault", text) for at, number, text in cluster.said if text.startswith("*")]
    print("\nWhat happened where, and why (* is what the demo did)\n")
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    cause = ""
    for at, number, kind, reason in sorted(lines):
        begin, end = (COLOURS[number], PLAIN) if is_coloured else ("", "")
        if kind == "fault" and is_coloured:
            begin = BOLD + RED
        first = f"{at - cluster.began_s:7.2f} s  {cluster.name(number):9} {kind:18} "
        print(f"{begin}{wrapped(addition(reason, cause), first, len(first))}{end}")
        cause = reason if weight(kind) is Weight.FAULT or kind == "node_lost" else cause


def check(cluster: Cluster, points: list[Point], faults: tuple[str, ...]) -> None:
    """Checks that the job continued after each fault from its checkpoint, with the same loss, to its last step."""
    resumed = [point for point in points if point.resumed]
    if len(resumed) != len(faults):
        raise DemoError(f"the job went on from a checkpoint {len(resumed)} times, and there were {len(faults)} faults")
    print("\nThe loss before each fault, and after it, at the same step:")
    for point, what in zip(resumed, faults, strict=True):
        before = [each for each in points if each.step == point.step and each.at < point.at]
        if not before:
            raise DemoError(f"the job went on at step {point.step}, which it had not reached before")
        last = max(each.at for each in points if each.at < point.at)
        print(
            f"  {what:18} step {point.step:3}: {before[-1].loss:.3f}, {point.loss:.3f}; "
            f"{point.at - last:.2f} s from the last step before to the first one after"
        )
        if abs(before[-1].loss - point.loss) > SAME_LOSS:
            raise DemoError(f"at step {point.step} the loss was {before[-1].loss:.3f} and is {point.loss:.3f}")
    if points[-1].step != cluster.steps - 1:
        raise DemoError(f"the last step was {points[-1].step}, not {cluster.steps - 1}")


if __name__ == "__main__":
    from docs.examples import demo_elected  # Late: it imports this module.

    sys.exit(main())
