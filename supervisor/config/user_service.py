"""Which users does a node's service serve, and how much may all jobs of one user use together?"""

from __future__ import annotations

import re

import msgspec

from supervisor.config import values

USERS_FLAG = "--users"
USERS_KIND = values.text("USERS", empty=False)
USERS_MEANING = (
    "as root: serve these users, each by a supervisor that runs as that user: all, or names and @groups, with commas"
)
MEMORY_FLAG, TASKS_FLAG, CPUS_FLAG = "--user-memory-gib", "--user-tasks", "--user-cpus"
MEMORY_KIND = values.number(0.0, 1_000_000.0, "GiB")
TASKS_KIND = values.integer(0, 4_194_304, "tasks")
CPUS_KIND = values.number(0.0, 100_000.0, "CPUs")
MEMORY_MEANING = "with --users: memory of all jobs of one user together; 0: no limit"
TASKS_MEANING = "with --users: processes and threads of one user together; 0: no limit"
CPUS_MEANING = "with --users: CPUs of all jobs of one user together; 0: no limit"
UNIT_FLAG, UNIT_VARIABLE = "--user-unit", "HOLDFAST_USER_UNIT"
UNIT_MEANING = "with --users: systemd starts each user's supervisor as an instance of this unit, holdfast-user@.service"
_TEMPLATE = re.compile(r"([A-Za-z0-9:_.\\-]{1,100}@)(\.service)?")


def _template(text: str) -> str:
    """Returns the template's name without .service."""
    found = _TEMPLATE.fullmatch(text)
    if found is None:
        raise values.ValueProblem("it is not the name of a template unit", "write holdfast-user@.service")
    return found[1]


UNIT_KIND = values.Kind("UNIT", "", values.Shape.TEXT, _template)


class UserShares(msgspec.Struct, frozen=True):
    """The shares of one user; 0 means no limit."""

    memory_gib: float = 0.0
    tasks: int = 0
    cpus: float = 0.0


class UserService(msgspec.Struct, frozen=True):
    """The service of several users. With `users` (), the daemon serves only its own user."""

    users: tuple[str, ...] = ()
    shares: UserShares = UserShares()
    unit: str = ""  # a template, up to the @; "": the service starts supervisors itself
    handover_fd: int = -1  # of the supervisor of one of the users: where root's process sends its clients


def names_in(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
