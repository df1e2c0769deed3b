"""What is known about a setting: its names, its kind, its default, and whether it has an effect yet?"""

from __future__ import annotations

import enum
from functools import cache

import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.config.values import Kind


class Group(enum.StrEnum):
    """The headings of the help, in their order."""

    WORKERS = "Workers"
    RESTART = "Stop and restart"
    HANGS = "Hang detection"
    OUTPUT = "Output"
    NODES = "Nodes and rendezvous"
    HEALTH = "Node health"
    RUN = "This command"
    INERT = "Accepted without effect"
    LATER = "Not supported yet (an error when asked for)"


class Status(enum.Enum):
    WORKS = "works"
    INERT = "no effect"  # a warning says so
    LATER = "not supported yet"  # an error, unless the value asks for nothing


class Setting(msgspec.Struct, frozen=True):
    """One setting. `path` leads to its field in JobSpec; "" if resolve.py treats it by name."""

    flag: str  # the spelling that help and messages use
    kind: Kind
    meaning: str  # one line; for INERT why it does nothing, for LATER what is missing ("X are")
    group: Group = Group.RUN
    path: str = ""
    default: object = None  # where there is no path
    default_words: str = ""  # what help says instead of the default's value
    short: str = ""  # -m
    other_flags: tuple[str, ...] = ()  # same meaning, no warning
    old_flags: tuple[str, ...] = ()  # same meaning, a warning
    keys: tuple[str, ...] = ()  # under fault_tolerance, the first one is written
    other_variables: tuple[str, ...] = ()  # read where PET_<NAME> is not set
    has_pet_variable: bool = True
    harmless: tuple[object, ...] = ()  # LATER: values beside the default that ask for nothing
    tolerated: tuple[object, ...] = ()  # LATER: values that people copy along; a warning
    status: Status = Status.WORKS
    is_switch: bool = False  # the flag alone means true

    @property
    def name(self) -> str:
        """ "ft_rank_heartbeat_timeout" """
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def variables(self) -> tuple[str, ...]:
        """Returns the variables; the first that is set counts."""
        own = ("PET_" + self.name.upper(),) if self.has_pet_variable else ()
        return own + self.other_variables

    def default_value(self) -> object:
        return value_at(_defaults(), self.path) if self.path else self.default

    def default_text(self) -> str:
        """Returns the default as the user would write it; "" if there is none."""
        if self.default_words:
            return self.default_words
        value = self.default_value()
        if value is None:
            return "none" if self.kind.none_is_value else ""
        return self.kind.show(value)


@cache
def _defaults() -> JobSpec:
    return JobSpec(job_id="job", command=("script.py",))


def value_at(spec: JobSpec, path: str) -> object:
    """Returns the field of `spec` at a dotted path."""
    value: object = spec
    for part in path.split("."):
        value = getattr(value, part)
    return value
