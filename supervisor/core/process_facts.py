"""What can be observed from outside of a rank whose job hangs, and of a spawner that does not answer?"""

from __future__ import annotations

import enum

import msgspec


class Frame(msgspec.Struct, frozen=True):
    """One Python frame of a stack."""

    file: str  # with its folder
    name: str
    line: int

    @property
    def place(self) -> tuple[str, str, int]:
        """Identifies the frame alike for every tool: py-spy says `Loader.load`, faulthandler `load`."""
        return self.file, self.name.rpartition(".")[2], self.line

    def __str__(self) -> str:
        return f"{self.name} ({self.file.rpartition('/')[2]}:{self.line})"


class NamedThread(msgspec.Struct, frozen=True):
    """A Python thread that is not the main thread."""

    name: str
    frames: tuple[Frame, ...]  # the innermost last


class RankLook(msgspec.Struct, frozen=True):
    """Where the Python threads of a rank are."""

    rank: int
    frames: tuple[Frame, ...]  # of the main thread, the innermost last
    threads: tuple[NamedThread, ...] = ()


class ProcessState(enum.StrEnum):
    """The state of the main thread as the kernel reports it."""

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
    """What two looks at one process, a moment apart, have shown."""

    state: ProcessState = ProcessState.UNKNOWN  # the state in both looks, or else in the second
    is_still: bool = False  # the main thread neither ran nor was woken between the looks
    cpu_share: float = 0.0  # CPU use of all its threads between the looks; 1.0 is one core
    stop_signal: str = ""  # the signal that stopped it; "": the kernel does not say
    tracer: str = ""  # "gdb (pid 812)"
    kernel_place: str = ""  # the kernel's function in which the main thread waits
    waits_on_futex: bool = False  # in both looks: it waits for a lock, of Python or of a library
    children: tuple[ChildProcess, ...] = ()
    is_idle: bool = False  # for long enough to tell, neither it nor a descendant wrote, and no descendant ran


class RankFacts(msgspec.Struct, frozen=True):
    """Everything that is known about a rank besides its stack."""

    rank: int
    process: ProcessFacts | None = None
    has_exited: bool = False  # with code 0
    is_silent: bool = False  # it has exceeded one of its limits
    sections: tuple[str, ...] = ()  # its open sections
    gil_frames: tuple[Frame, ...] = ()  # of the thread that holds the GIL, the innermost last
    gil_is_main: bool = False  # that thread is the main thread
    answers: bool | None = None  # whether its client answered meanwhile; None: it was not asked
    source_line: str = ""  # the line that the main thread is executing


class SilentSpawner(msgspec.Struct, frozen=True):
    """A spawner that does not answer. `state`: its letter in /proc/PID/stat; `does`: what it does, in words."""

    pid: int
    state: str
    does: str
