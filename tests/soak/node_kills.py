"""Is anything lost of a job of several nodes if the supervisor of one of them is killed at random, again and again?

The jobs are those of supervisor_kills.py, on nodes with a daemon each; node 1 leads, or etcd elects the leader. A node
whose supervisor stays away for more than AWAY_MAX_S may be lost by right: a job that has met that is not judged.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.report.timeline.event_ordering import ARRIVED
from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes_daemons import HOLDFAST, Node
from tests.etcd_server import etcd, free_ports
from tests.soak import kill_verdicts
from tests.soak.supervisor_kills import ENDS_WITHIN_S, LIVES_MAX_S, SCRIPTS, SILENT_S, WRAPPED_SHARE, Kills

RANKS = 2  # of each node
AWAY_MAX_S = 3.0  # the fence is 4 s, and the last heartbeat was up to a second before the kill


def run(chance: random.Random, *, nodes: int, elects: bool, seconds: float, kills_max: int, cycles: int) -> Kills:
    """Jobs, one after the other, and kills all the while."""
    kills = Kills()
    until_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="node-kills-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        endpoint = stack.enter_context(etcd(folder / "etcd")).endpoint if elects else ""
        started = stack.enter_context(_daemons(folder, nodes))
        for number in itertools.count():
            if kills.wrong or kills.kills >= kills_max or time.monotonic() > until_s:
                break
            kills.jobs += 1
            job = _Job(folder, number, started, endpoint, cycles, wrapped=chance.random() < WRAPPED_SHARE)
            kills.wrong += job.run(chance, kills)
    return kills


@contextmanager
def _daemons(folder: Path, count: int) -> Generator[list[Node]]:
    started: list[Node] = []
    try:
        started += [Node(folder, number, HOLDFAST) for number in range(1, count + 1)]
        for node in started:
            wait_until(lambda node=node: node.is_serving, timeout_s=ENDS_WITHIN_S, what="a daemon")
        yield started
    finally:
        for node in started:
            node.end()


class _Job:
    def __init__(self, folder: Path, number: int, nodes: list[Node], etcd: str, cycles: int, *, wrapped: bool) -> None:
        self._nodes, self._cycles, self._wrapped = nodes, cycles, wrapped
        self._trace = folder / f"trace{number}.jsonl"
        self._is_slow = False  # a supervisor was away for too long
        (port,) = free_ports(1)
        self.job_id = f"job{number}-{port}"
        script = SCRIPTS / ("wrapped_as_planned.py" if wrapped else "failing_as_planned.py")
        silence = () if wrapped else ("--ft-rank-heartbeat-timeout", SILENT_S)
        meet = ["--nnodes", str(len(nodes)), "--rdzv-endpoint", etcd or f"{nodes[0].address}:{port}"]
        meet += ["--rdzv-backend", "etcd"] if etcd else []
        for node in nodes:
            node.environment |= {"TRACE": str(self._trace), "LAST_CYCLE": str(cycles)}
            restarts = ("--max-restarts", str(cycles), *silence)
            node.run(self.job_id, *meet, "--local-addr", node.address, *restarts, str(script))
        self._runs = [node.runs[-1] for node in nodes]

    def run(self, chance: random.Random, kills: Kills) -> list[str]:
        wait_until(self._has_begun, timeout_s=ENDS_WITHIN_S, what="the job's first cycle")
        deadline_s = time.monotonic() + ENDS_WITHIN_S
        while self._is_running() and not self._is_slow and time.monotonic() < deadline_s:
            self._kill_one(chance, kills)
        if self._is_slow:
            print(f"{self.job_id} is not judged: a supervisor was away for more than {AWAY_MAX_S:g} s")
            self._give_up()
            return []
        if self._is_running():
            return [f"{self.job_id} has not ended", *self._explained()]
        codes = [run.wait() for run in self._runs]
        wrong = self._judged()
        if any(codes):
            wrong.append(f"{self.job_id} ended with exit codes {codes}")
        return [*wrong, *self._explained()] if wrong else []

    def _give_up(self) -> None:
        for node in self._nodes:
            with contextlib.suppress(subprocess.CalledProcessError):  # It has ended there.
                node.holdfast("stop", self.job_id)
        for run in self._runs:
            run.wait(ENDS_WITHIN_S)

    def _is_running(self) -> bool:
        return any(run.poll() is None for run in self._runs)

    def _has_begun(self) -> bool:
        return len(self._traced("started")) >= RANKS * len(self._nodes) or not self._is_running()

    def _kill_one(self, chance: random.Random, kills: Kills) -> None:
        lives_until_s = time.monotonic() + chance.uniform(0, LIVES_MAX_S)
        while time.monotonic() < lives_until_s and self._is_running():
            time.sleep(0.01)
        if not self._is_running():
            return
        node = chance.choice(self._nodes)
        killed_s = time.monotonic()
        node.kill()
        node.start_again()
        away_s = time.monotonic() - killed_s
        kills.kills += 1
        kills.ready_s.append(away_s)
        self._is_slow = self._is_slow or away_s > AWAY_MAX_S

    # --- what came of it

    def _judged(self) -> list[str]:
        ranks = RANKS * len(self._nodes)
        wrong: list[str] = []
        told: list[dict[str, Any]] = []
        for node in self._nodes:  # The one that leads may end the job before the last news of a node that was away.
            known = self._events(node)
            wrong += kill_verdicts.numbers(known)
            told += [event for event in known if ARRIVED not in event["details"]]
        for number, event in enumerate(told, 1):
            event["sequence"] = number
        judge = kill_verdicts.wrapped_as_planned if self._wrapped else kill_verdicts.failing_as_planned
        wrong += judge(told, self._traced(None if self._wrapped else "started"), cycles=self._cycles, ranks=ranks)
        lost = [event for event in told if event["kind"] in ("node_lost", "events_missing")]
        if lost:
            wrong.append(f"nodes or events were lost: {lost}")
        said = "".join(node.said(self.job_id) for node in self._nodes)
        return wrong + kill_verdicts.output(said, where="terminals", cycles=self._cycles, ranks=ranks)

    def _events(self, node: Node) -> list[dict[str, Any]]:
        return [json.loads(line) for line in node.holdfast("events", self.job_id, "-o", "jsonl").splitlines()]

    def _traced(self, what: str | None) -> list[dict[str, Any]]:
        if not self._trace.exists():
            return []
        lines = [json.loads(line) for line in self._trace.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if what in (None, line["what"])]

    def _explained(self) -> list[str]:
        told: list[str] = []
        for node in self._nodes:
            with contextlib.suppress(Exception):  # It explains what is wrong already.
                told.append("\n".join(json.dumps(event) for event in self._events(node)))
            told.append(f"{node.address}:\n{node.said(self.job_id)[-3000:]}\n{node.daemon_said[-4000:]}")
        return told
