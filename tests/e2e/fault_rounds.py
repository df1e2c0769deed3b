"""Do all ranks agree, whatever dies in which step of a restart? Reads the output of scripts/faulty_restart.py.

    python -m tests.e2e.fault_rounds --rounds 1000 --seed 3 --nproc-per-node 8

runs that many random faults in one job, and prints the result; exit code 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.launch import SCRIPTS, Launch, launched

SCRIPT = SCRIPTS / "faulty_restart.py"
NO_PROGRESS_S = 60.0


@dataclass(frozen=True)
class Traces:
    """All lines of all processes, each line with `process`, the name of its file."""

    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Traces:
        lines: list[dict[str, Any]] = []
        for path in sorted(folder.glob("*.jsonl")):
            whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
            lines += [{"process": path.stem, **json.loads(line)} for line in whole]
        return cls(lines)

    def all(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["what"] == what]

    def problems(self) -> list[str]:
        """Returns violations. `initialize` notes `began`, the function notes `fn`, from its environment."""
        found: list[str] = []
        for what in ("began", "fn"):
            by_iteration: dict[int, list[dict[str, Any]]] = defaultdict(list)
            for line in self.all(what):
                by_iteration[line["iteration"]].append(line)
            for iteration, lines in by_iteration.items():
                sizes = {int(line["world_size"]) for line in lines}
                ranks = sorted(int(line["rank"]) for line in lines)
                if len(sizes) != 1:
                    found.append(f"{what}: iteration {iteration} has the world sizes {sorted(sizes)}")
                elif len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(*sizes)):
                    found.append(f"{what}: iteration {iteration} of {sizes} ranks has {ranks}")
        return found + self._problems_at_the_end()

    def _problems_at_the_end(self) -> list[str]:
        ends = {line["iteration"] for line in self.all("returned")}
        if len(ends) != 1:
            return [f"survivors have returned from the iterations {sorted(ends)}, not from one"]
        last = [line for line in self.all("fn") if line["iteration"] in ends]
        ranks, size = sorted(int(line["rank"]) for line in last), {int(line["world_size"]) for line in last}
        if ranks != list(range(*size)) or {line["process"] for line in last} != self._returned():
            return [f"iteration {ends} of {size} ranks was entered by {ranks}, and left by {sorted(self._returned())}"]
        return []

    def _returned(self) -> set[str]:
        return {line["process"] for line in self.all("returned")}

    def last_world_size(self) -> int:
        return len(self._returned())


@contextmanager
def running(folder: Path, *arguments: str, nproc: int, max_restarts: int) -> Generator[tuple[Launch, Path]]:
    """Runs `holdfast run` with the script; yields it and the folder with its traces."""
    traces = folder / "traces"
    traces.mkdir(parents=True)
    options = ("--nproc-per-node", str(nproc), "--max-restarts", str(max_restarts), "--preload", "none")
    with launched(folder, *options, str(SCRIPT), *arguments, environment={"TRACES": str(traces)}) as launch:
        yield launch, traces


def wait_while_it_goes_on(launch: Launch, traces: Path) -> int:
    """Returns the exit code, however long it takes, as long as new lines are written."""
    size, since_s = -1, time.monotonic()
    while launch.process.poll() is None:
        if (now := sum(path.stat().st_size for path in traces.glob("*.jsonl"))) != size:
            size, since_s = now, time.monotonic()
        assert time.monotonic() - since_s < NO_PROGRESS_S, f"nothing goes on any more\n{launch.explained()[-20_000:]}"
        time.sleep(0.05)
    return launch.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nproc-per-node", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="an empty folder for traces and logs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        arguments = ("--seed", str(given.seed), "--rounds", str(given.rounds))
        began_s = time.monotonic()
        folder = given.keep or Path(temporary)
        with running(folder, *arguments, nproc=given.nproc_per_node, max_restarts=2 * given.rounds) as (launch, path):
            code = wait_while_it_goes_on(launch, path)
            told = launch.stderr_text()
        traces = Traces.read(path)
        problems = traces.problems() + ([] if code == 0 else [f"exit code {code}: {told[-2000:]}"])
    faults = Counter(f"{line['step']}:{line['kind']}" for line in traces.all("fault"))
    report = {
        "rounds": given.rounds, "faults": faults.total(), "seconds": round(time.monotonic() - began_s, 1),
        "processes": len({line["process"] for line in traces.lines}), "ranks_at_the_end": traces.last_world_size(),
        "problems": problems, "by_kind": dict(sorted(faults.items())),
    }  # fmt: skip
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
