"""Row: torchrun's own restart on two nodes, with its c10d rendezvous and with ours in torchrun's process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.bench import Bench
from tests.benchmarks.launch import Run
from tests.benchmarks.rows import OURS, Group, Row, Target, Unit
from tests.benchmarks.speed_restart import restart_s
from tests.benchmarks.speed_two_nodes import FOLLOWER
from tests.benchmarks.subjects import JobOptions, Subject, torchrun
from tests.cluster import lab
from tests.torchrun.installed import entry_point


def measure_plugin(bench: Bench) -> list[Row]:
    row = Row(
        "torchrun_plugin",
        Group.SPEED,
        "two torchruns, 2 ranks each with torch: a rank kills itself → the new workers' gloo barrier",
        Unit.SECONDS,
        Target(share_of={"torchrun": 1.0, "torchrun_tuned": 1.0}),
        notes=[
            "Each is torchrun with its defaults, or tuned; holdfast is tuned torchrun with --rdzv-backend=holdfast. "
            "torchrun starts the new workers: most of the time goes into loading torch.",
        ],
    )
    if why := lab.missing():
        row.notes.append(f"Not measured: a node of its own {why}.")
        return [row]
    with tempfile.TemporaryDirectory(prefix="bench-plugin-") as folder:
        installed = {"PYTHONPATH": str(entry_point(Path(folder)))}

        def once(subject: Subject) -> Mapping[str, float]:
            options, variables = JobOptions(nodes=2), FOLLOWER
            if subject.key == OURS:
                subject = replace(torchrun()[-1], key=OURS, label="torchrun with the plug-in")
                options, variables = JobOptions(nodes=2, plugin=True), FOLLOWER | installed
            with Run(subject, "restart_torch", options, variables=variables) as run:
                return {row.key: restart_s(run, ready="barrier", recovered="barrier")}

        bench.fill([row], bench.counts(3, only=("torchrun", "torchrun_tuned", OURS)), once)
    return [row]
