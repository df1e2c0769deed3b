"""How does one run of the bench fill its rows? It runs every subject in turn, again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.benchmarks import figures
from tests.benchmarks.launch import RunFailedError, say
from tests.benchmarks.rows import Row
from tests.benchmarks.subjects import Subject

START_LIMIT_S = 90.0
RECOVERY_LIMIT_S = 40.0
EXIT_LIMIT_S = 30.0

Measured: TypeAlias = Mapping[str, "float | Sequence[float]"]  # a row's key → its sample, or samples


@dataclass(frozen=True, slots=True)
class Bench:
    subjects: Sequence[Subject]
    quick: bool = False
    runs_override: int | None = None

    def runs(self, full: int, quick: int = 2) -> int:
        """Returns how often one subject runs."""
        if self.runs_override is not None:
            return self.runs_override
        return min(full, quick) if self.quick else full

    def length(self, full: float, quick: float) -> float:
        """Returns how long or how many, where that is not a number of runs."""
        return quick if self.quick else full

    def counts(self, full: int, quick: int = 2, *, only: Sequence[str] = ()) -> dict[str, int]:
        """Returns the same number of runs for each subject (of `only`)."""
        count = self.runs(full, quick)
        return {subject.key: count for subject in self.subjects if not only or subject.key in only}

    def turns(self, counts: Mapping[str, int]) -> Iterator[Subject]:
        """Yields the subjects in the order in which they run; one that can't run here has no turn."""
        here = {subject.key: subject for subject in self.subjects}
        for key, _ in figures.interleave({key: count for key, count in counts.items() if key in here}):
            yield here[key]

    def fill(self, rows: Sequence[Row], counts: Mapping[str, int], once: Callable[[Subject], Measured]) -> None:
        """Runs `once` for every turn and keeps what it returns by the rows' keys; a failed run is kept as failed.

        One run may give several samples of a row.
        """
        failures: dict[str, list[str]] = {}
        for subject in self.turns(counts):
            try:
                measured = once(subject)
            except RunFailedError as error:
                failures.setdefault(subject.label, []).append(str(error))
                say(f"    {error}")
                for row in rows:
                    row.add(subject.key, None)
                continue
            samples = {key: found if isinstance(found, Sequence) else [found] for key, found in measured.items()}
            shown = ", ".join(f"{key} {' '.join(f'{value:.4g}' for value in found)}" for key, found in samples.items())
            say(f"    {subject.label}: {shown}")
            for row in rows:
                for sample in samples.get(row.key, ()):
                    row.add(subject.key, sample)
        for label, errors in failures.items():
            rows[0].notes.append(f"{label}: {len(errors)} failed; the first: {errors[0].splitlines()[0]}")


def settle() -> None:
    """Waits a random time until start-up has ended, so that faults fall at every point of a poller's phase."""
    time.sleep(random.uniform(0.3, 0.8))


def seconds(from_ns: int, to_ns: int) -> float:
    return (to_ns - from_ns) / 1e9
