"""Batch jobs of an ordinary user of the lab: how are they submitted, and how did they end?"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.slurm_lab import HOME, ROOT, USER_ID, SlurmLab

EXAMPLES = ROOT / "deploy/slurm"
TRAIN = ROOT / "tests/slurm/scripts/train.py"
LIMIT_S = 110.0
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")


@dataclass(frozen=True)
class Job:
    """One job, in its own folder in the user's home."""

    slurm: SlurmLab
    folder: Path
    number: str

    def shown(self) -> dict[str, str]:
        """Returns what Slurm reports about it."""
        (line,) = self.slurm.ask("scontrol", "show", "job", "-o", self.number).stdout.splitlines()
        return {name: value for name, _, value in (word.partition("=") for word in line.split())}

    @property
    def state(self) -> str:
        return self.shown()["JobState"]

    def end(self) -> tuple[str, str]:
        """Returns state and exit code once it has ended."""
        self.until(lambda: self.state in OVER, "the end of the job")
        shown = self.shown()
        return shown["JobState"], shown["ExitCode"]

    def until(self, condition: object, what: str, limit_s: float = LIMIT_S) -> None:
        try:
            self.slurm.until(condition, what, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.shown()}\n{self.log()}") from None

    def until_noted(self, what: str, count: int, **where: object) -> list[dict[str, object]]:
        """Returns the ranks' notes once there are that many."""
        self.until(lambda: len(self.noted(what, **where)) >= count, f"{count} x {what} {where}")
        return self.noted(what, **where)

    def noted(self, what: str, **where: object) -> list[dict[str, object]]:
        trace = self.folder / "trace"
        lines = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
        return [
            line for line in lines if line["what"] == what and all(line[name] == is_ for name, is_ in where.items())
        ]

    def let_end(self) -> None:
        (self.folder / "end").touch()

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


def submit(slurm: SlurmLab, name: str, example: str, *words: str, flags: tuple[str, ...] = ()) -> Job:
    """Submits a job. `example` is a file of deploy/slurm, or the text of a script; `words` follow it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=slurm.home))  # a test that is run again has another one
    os.chown(folder, USER_ID, USER_ID)
    if "\n" in example:
        script = folder / "script"
        script.write_text(example)
        path = HOME / folder.name / "script"
    else:
        path = EXAMPLES / example
    told = slurm.ask("sbatch", "--parsable", *flags, str(path), *words, user=True, folder=HOME / folder.name)
    return Job(slurm, folder, told.stdout.strip())
