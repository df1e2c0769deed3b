"""Which words in a log are the sign of which cause?

The table begins with the signs that explain most: a GPU that has fallen off the bus explains the CUDA error that
follows, which explains the timeouts of all others. An echo is what a rank prints when another one has failed.
Sources: the messages of PyTorch 2, NCCL 2 and the Linux kernel; NVIDIA's list of Xid errors.
"""

from __future__ import annotations

import enum
import re

import msgspec


class Weight(enum.IntEnum):
    """How much a sign explains; a smaller weight explains a greater one."""

    HARDWARE = 0
    RESOURCE = 1
    ERROR = 2
    NUMBERS = 3
    NETWORK = 4
    HANG = 5
    ECHO = 6


class Advice(enum.StrEnum):
    """The words of the interface."""

    STOP = "STOP"
    RESTART = "RESTART"
    CONTINUE = "CONTINUE"
    UNKNOWN = "UNKNOWN"


class Sign(msgspec.Struct, frozen=True):
    """A sign of a cause. `means` is shown to people, with the match in place of {}."""

    kind: str
    weight: Weight
    means: str
    pattern: re.Pattern[str]
    advice: Advice

    def found_in(self, text: str) -> str | None:
        """Returns what was found, or None: the group "told" of the pattern if it matched, else the whole match."""
        found = self.pattern.search(text)
        if found is None:
            return None
        return found.groupdict().get("told") or found[0]

    def accused_in(self, text: str, rank: int | None) -> tuple[int, ...]:
        """Returns the ranks that a line of `rank` blames: those of the group "accused", or `rank` with "itself"."""
        found = self.pattern.search(text)
        groups = found.groupdict() if found else {}
        if groups.get("itself") and rank is not None:
            return (rank,)
        return tuple(int(each) for each in re.findall(r"\d{1,6}", groups.get("accused") or ""))


def _sign(kind: str, weight: Weight, means: str, *words: str, advice: Advice = Advice.RESTART) -> Sign:
    return Sign(kind, weight, means, re.compile("|".join(words), re.IGNORECASE), advice)


# Xid errors that only record something: a row of memory is remapped, many single bits were corrected.
RECORDING_XIDS = frozenset(("63", "92"))
# Xid errors that a program itself causes; the others come from the GPU, its memory or its links.
PROGRAM_XIDS = frozenset(("13", "31", "43", "45", "68", "69"))
_BROKEN = r"[-+]?(?:nan|inf(?:inity)?)\b"

SIGNS = (
    _sign("xid", Weight.HARDWARE, "the driver reported Xid {}", r"NVRM: Xid \(PCI:[0-9a-f:.]+\): (?P<told>\d+)"),
    _sign(
        "ecc", Weight.HARDWARE, "the GPU's memory failed ({})",
        r"uncorrectable ECC error", r"double[- ]bit ECC", r"row remapp\w+ failure",
    ),
    _sign(
        "gpu_lost", Weight.HARDWARE, "a GPU is not usable ({})",
        r"GPU is lost", r"fallen off the bus", r"CUDA-capable device\(s\) is/are busy or unavailable",
        r"Unable to determine the device handle for GPU", r"No CUDA GPUs are available",
        r"no CUDA-capable device is detected",
    ),
    _sign(
        "shared_memory", Weight.RESOURCE, "/dev/shm is too small ({})",
        r"insufficient shared memory \(shm\)", r"Error while creating shared memory segment /dev/shm",
        r"No space left on device.{1,40}/dev/shm/",
        r"DataLoader worker \(pid.{1,200}?\) is killed by signal: Bus error", advice=Advice.STOP,
    ),
    _sign(
        "full_disk", Weight.RESOURCE, "a disk is full ({})",
        r"No space left on device", r"Disk quota exceeded", advice=Advice.STOP,
    ),
    _sign(
        "gpu_out_of_memory", Weight.RESOURCE, "the GPU's memory did not suffice ({})",
        r"CUDA (?:error: )?out of memory(?:\. Tried to allocate [\d.]+ \w+)?", r"CUBLAS_STATUS_ALLOC_FAILED",
        r"cudaErrorMemoryAllocation", r"Cuda failure (?:\d+ )?'out of memory'",
    ),
    _sign(
        "out_of_memory", Weight.RESOURCE, "the node's memory did not suffice ({})",
        r"oom-kill", r"Out of memory: Killed process \d+",
        r"DataLoader worker \(pid.{1,200}?\) is killed by signal: Killed",
        r"DefaultCPUAllocator: can't allocate memory", r"Cannot allocate memory", r"^MemoryError\b",
        r"Unable to allocate [\d.]+ \w+ for an array",
    ),
    _sign(
        "open_files", Weight.RESOURCE, "too many files are open ({})", r"Too many open files", advice=Advice.STOP
    ),
    _sign(
        "cuda_error", Weight.ERROR, "CUDA failed ({})",
        r"CUDA error: (?P<told>[^.]+)", r"device-side assert triggered", r"CUDNN_STATUS_(?!SUCCESS)\w+",
        r"CUBLAS_STATUS_(?!SUCCESS)\w+", r"Cuda failure (?:\d+ )?'[^']+'",
    ),
    _sign(
        "nan", Weight.NUMBERS, "the numbers are broken ({})",
        rf"\b(?:[a-z]\w*[ _/])?loss\b['\"]?\s*(?:is|was|became|[:=])\s*(?:tensor\()?{_BROKEN}",
        rf"\bgrad(?:ient)?[ _]?norm\b['\"]?\s*(?:is|was|became|[:=])\s*(?:tensor\()?{_BROKEN}",
        r"\b(?:found|detected|encountered) (?:nan|inf)\b", r"\bnan (?:found|detected|encountered)\b",
        r"\breturned nan values\b", r"loss scale already at minimum",
    ),
    _sign(
        "network", Weight.NETWORK, "the network failed ({})",
        r"ibv_\w+ failed", r"NET/IBP? ?: ?Got completion", r"IBV_WC_RETRY_EXC_ERR",
        r"(?P<itself>Connect to \S+ failed : (?!Connection refused)[^.]+|failed to connect to any network address|"
        r"The client socket has timed out after \d+)",
    ),
    _sign(
        "collective_timeout", Weight.HANG, "a collective did not end in time ({})",
        r"Watchdog caught collective operation timeout: WorkNCCL\((?P<told>(?:SeqNum=\d+, )?OpType=\w+)",
        r"Timed out waiting \d+ ?ms for (?:recv|send) operation", r"wait timeout after \d+ ?ms",
        r"DistStoreError: Timed out",
        r"Ranks? (?P<accused>\d+(?:, ?\d+)*) failed to pass monitoredBarrier",
        r"(?P<itself>watchdog got stuck for \d+ seconds)",
    ),
    _sign(
        "stacks", Weight.HANG, "a rank hung and printed its stacks ({})",
        r"^Timeout \(\d+:\d+:\d+\)!", r"Dumping stacks of all threads",
    ),
    _sign(
        "peer_lost", Weight.ECHO, "another rank went away ({})",
        r"Connection (?:reset|closed|refused)(?: by (?:remote )?peer)?", r"connectFullMesh failed", r"ncclRemoteError",
        r"remote process exited", r"NCCL communicator was aborted", r"Broken pipe",
        r"successfully reached monitoredBarrier, but received errors",
    ),
    _sign(
        "nccl_system_error", Weight.ECHO, "a system call of NCCL failed ({})", r"ncclSystemError",
        r"unhandled system error",
    ),
)  # fmt: skip

# An exception with these words was raised because of the numbers, whatever its name.
ABOUT_NUMBERS = re.compile(r"\bnan\b|\binf\b|infinit|finite|FloatingPoint|diverge", re.IGNORECASE)

# A line without any of these words has no sign. Searching for plain words is much faster than a pattern.
_WORDS = (
    "xid", "gpu is", "fallen", "busy or", "no space", "quota", "memory", "cublas", "cudnn", "cuda", "oom", "killed",
    "allocat", "bus error", "too many", "assert", "infinity", "timeout", "timed out", "dumping", "ibv_", "net/ib",
    "nccl", "system error", "connection", "mesh", "remote", "pipe", "remapp", "device handle", "shm", "loss scale",
    "socket", "failed :", "failed to connect", "monitoredbarrier", "stuck",
)  # fmt: skip
_SHORT_WORDS = re.compile(r"(?:ecc|nan|inf)\b")


def is_worth_a_look(text: str) -> bool:
    """Returns whether the line may contain a sign."""
    small = text.lower()
    return any(word in small for word in _WORDS) or _SHORT_WORDS.search(small) is not None
