"""What was found, does it matter, and what should the user type?"""

from __future__ import annotations

import enum

import msgspec


class Grade(enum.StrEnum):
    OK = "ok"
    NOTE = "note"  # good to know
    WARNING = "warning"  # works, with limits
    PROBLEM = "problem"  # a job would fail
    SKIPPED = "skipped"  # there is nothing to look at


class DoctorFinding(msgspec.Struct, frozen=True):
    """One thing that was checked. `why` and `remedy` are set for anything that is not ok."""

    area: str  # "kernel"
    check: str  # "open files", in a few words
    grade: Grade
    found: str  # a sentence, without a full stop
    why: str = ""  # the effect on a job
    remedy: str = ""  # what the user should type


class Area:
    """The findings of one area, added by its checks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.findings: list[DoctorFinding] = []

    def ok(self, check: str, found: str) -> None:
        self.findings.append(DoctorFinding(self.name, check, Grade.OK, found))

    def skip(self, check: str, why: str) -> None:
        self.findings.append(DoctorFinding(self.name, check, Grade.SKIPPED, why))

    def note(self, check: str, found: str, *, why: str = "", remedy: str = "") -> None:
        self.findings.append(DoctorFinding(self.name, check, Grade.NOTE, found, why, remedy))

    def warn(self, check: str, found: str, *, why: str, remedy: str) -> None:
        self.findings.append(DoctorFinding(self.name, check, Grade.WARNING, found, why, remedy))

    def problem(self, check: str, found: str, *, why: str, remedy: str) -> None:
        self.findings.append(DoctorFinding(self.name, check, Grade.PROBLEM, found, why, remedy))
