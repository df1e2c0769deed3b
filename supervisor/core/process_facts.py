"""What can be seen from outside of a rank while its job stands still: its process, its threads, its last words?"""

from __future__ import annotations

import enum

import msgspec


class Frame(msgspec.Struct, frozen=True):
    """One Python frame of a stack."""

    file: str  # with its folders
    name: str
    line: int

    @property
    def place(self) -> tuple[str, str, int]:
        """The same for every tool: py-spy says `Loader.load`, faulthandler `load`."""
        return self.file, self.name.rpartition(".")[2], self.line

    def __str__(self) -> str:
        return f"{self.name} ({self.file.rpartition('/')[2]}:{self.line})"


class ProcessState(enum.StrEnum):
    """As the kernel shows the main thread."""

    RUNNING = "R"
    SLEEPING = "S"
    UNINTERRUPTIBLE = "D"
    STOPPED = "T"
    TRACED = "t"
    ZOMBIE = "Z"
    UNKNOWN = ""


class ChildProcess(msgspec.Struct, frozen=True):
    pid: int
    state: ProcessState


class ProcessFacts(msgspec.Struct, frozen=True):
    """Two looks at one process, a moment apart."""

    state: ProcessState = ProcessState.UNKNOWN  # the same in both looks, else that of the second
    is_still: bool = False  # the main thread neither ran nor was woken between the looks
    cpu_share: float = 0.0  # of one core that all its threads together took between the looks
    stop_signal: str = ""  # that stopped it; "": the kernel does not say
    tracer: str = ""  # "gdb (pid 812)"
    kernel_place: str = ""  # the kernel's function in which the main thread waits
    waits_on_futex: bool = False  # in both looks: for a lock, of Python or of a library
    children: tuple[ChildProcess, ...] = ()


class RankFacts(msgspec.Struct, frozen=True):
    """Everything that is known of one rank besides its stack."""

    rank: int
    process: ProcessFacts | None = None
    has_exited: bool = False  # with code 0
    is_silent: bool = False  # one of its limits has run out
    sections: tuple[str, ...] = ()  # that it has open
    gil_frames: tuple[Frame, ...] = ()  # of the thread that has the GIL, the innermost last
    gil_is_main: bool = False  # that thread is the main one
    answers: bool | None = None  # whether its client answered while it was looked at; None: it was not asked
    source_line: str = ""  # at which the main thread stands
