"""The second act of `make demo-cluster`: the nodes elect their leader through etcd, and the leader's node loses power.

An additional node runs an etcd with one member. The new leader learns from the nodes what they run, and the spare
steps in.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

from docs.examples.demo import DemoError, show_command
from docs.examples.demo_cluster import LIMIT_S, LOOK_EVERY_S, Cluster, show, some_nodes, write_token
from tests.cluster.loopback import LoopbackNode

JOB_ID = "demo-elected"
LEADER, SECOND, SPARE, ETCD = 1, 2, 3, 4
POWER_LOSS_AT = 0.5  # of the steps


def play(output: Path, steps: int) -> int:
    """Runs the second act. Returns how many faults the job survived. Raises DemoError."""
    print("\n--- The second act: no node must be there to the end ---\n")
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        print("It is left out: it needs etcd (Debian: etcd-server etcd-client).")
        return 0
    output.mkdir()
    write_token(output)
    with some_nodes(ETCD) as nodes:
        etcd = f"{nodes[ETCD].address}:2379"
        rendezvous = ("--rdzv-backend", "etcd", "--rdzv-endpoint", etcd)
        cluster = Cluster(nodes, output, steps, time.time(), JOB_ID, rendezvous, told_by=(SECOND, SPARE))
        run_job(cluster, f"http://{etcd}")
        show(cluster, "the leader's node was lost")
    return 1


def run_job(cluster: Cluster, etcd: str) -> None:
    """Runs the job; returns once the remaining nodes have ended."""
    start_etcd(cluster, etcd)
    print("The same on each node:")
    show_command([*cluster.flags(), "docs/examples/train_lm.py"])
    cluster.start(LEADER)
    cluster.say(LEADER, "starts")
    await_leader(cluster, etcd, LEADER)
    cluster.start(SECOND)
    cluster.say(SECOND, "starts")
    give_up_at_s, shown, lost_at_s, again_s = time.monotonic() + LIMIT_S, 0, 0.0, 0.0
    while not lost_at_s or any(cluster.runs[number].poll() is None for number in (SECOND, SPARE)):
        if time.monotonic() > give_up_at_s:
            raise DemoError(f"the job has not ended within {LIMIT_S:g} s")
        points = cluster.say_steps(shown)
        shown = len(points)
        if points and SPARE not in cluster.runs:
            cluster.start(SPARE)
            cluster.say(SPARE, "starts; the job has its nodes, so it is a hot spare")
        if not lost_at_s and points and points[-1].step >= POWER_LOSS_AT * cluster.steps:
            cluster.say(LEADER, "* the leader's node loses its power")
            lost_at_s = time.time()
            cluster.nodes[LEADER].lose_power()
            leader = await_leader(cluster, etcd, SECOND, SPARE)
            cluster.say(leader, f"leads the job now, {time.time() - lost_at_s:.1f} s after the loss")
        if lost_at_s and not again_s and points[-1].at > lost_at_s and points[-1].step > POWER_LOSS_AT * cluster.steps:
            again_s = points[-1].at - lost_at_s
            cluster.say(0, f"trains again, {again_s:.1f} s after the loss")
        time.sleep(LOOK_EVERY_S)
    codes = {number: cluster.runs[number].wait(LIMIT_S) for number in (SECOND, SPARE)}
    if any(codes.values()):
        raise DemoError(f"the job ended with the exit codes {codes}")


def start_etcd(cluster: Cluster, etcd: str) -> None:
    peer = etcd.replace(":2379", ":2380")
    command = ["etcd", "--name", "m", "--data-dir", str(cluster.output / "etcd"), "--logger", "zap"]
    command += ["--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
    with (cluster.output / "etcd.log").open("wb") as log:
        cluster.nodes[ETCD].start(*command, environment={"PATH": "/usr/bin:/bin"}, output=log)
    cluster.say(ETCD, "starts an etcd of one member")


def await_leader(cluster: Cluster, etcd: str, *numbers: int) -> int:
    """Returns which of these nodes leads according to etcd."""
    names = {cluster.name(number): number for number in numbers}
    ask = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", etcd, "get", "--print-value-only"]
    ask.append(f"/holdfast/{JOB_ID}/leader")
    node = cluster.nodes[ETCD]
    command = ask if isinstance(node, LoopbackNode) else node.command(*ask)
    give_up_at_s = time.monotonic() + LIMIT_S
    while time.monotonic() < give_up_at_s:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if told and (name := json.loads(told)["node"]) in names:
            return names[name]
        time.sleep(LOOK_EVERY_S)
    raise DemoError(f"none of {', '.join(names)} leads the job")
