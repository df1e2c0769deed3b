"""What was observed of the memory of a job's GPUs before a restart of its workers, and how is it reported?"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from supervisor.core.node_check_facts import Health, HealthFinding

CHECK = "gpu_memory"
MIB = 1024 * 1024
HOLDERS_SHOWN_MAX = 8


class MemoryRules(msgspec.Struct, frozen=True):
    """How long a restart waits for free memory, and what counts as free."""

    timeout_s: float
    tolerance_bytes: int
    look_s: float  # longest time between two looks


class GpuMemory(msgspec.Struct, frozen=True):
    """The memory in use on one GPU at the first look, at the last, and at its maximum; None: it can't be read."""

    gpu: str
    first_bytes: int | None = None
    last_bytes: int | None = None
    most_bytes: int | None = None


class Holder(msgspec.Struct, frozen=True):
    """A process that holds memory on a GPU. `name` "": it is in another container. `used_bytes` None: unknown."""

    pid: int
    gpu: str
    used_bytes: int | None = None
    name: str = ""
    user: str = ""


class MemoryReport(msgspec.Struct, frozen=True):
    """What the wait for free memory found. `unknown`: why the memory could not be read, "" otherwise."""

    is_free: bool
    gpus: tuple[GpuMemory, ...] = ()
    holders: tuple[Holder, ...] = ()  # on GPUs that are not free
    ended: tuple[int, ...] = ()  # leftover processes of the job itself, which were killed
    looks: int = 0
    took_s: float = 0.0
    unknown: str = ""


def details(report: MemoryReport) -> tuple[tuple[str, str], ...]:
    """Returns statistics for each GPU."""
    return tuple((each.gpu, _statistics(each)) for each in report.gpus)


def statistics_sentence(report: MemoryReport) -> str:
    """Returns "GPU 0: first 600 MiB, last 0 MiB, at most 600 MiB; GPU 1: …"; no full stop."""
    return "; ".join(f"{gpu}: {statistics}" for gpu, statistics in details(report))


def free_sentence(report: MemoryReport) -> str:
    count = len(report.gpus)
    gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    return f"the memory of {gpus} is free (waited {report.took_s:.3f} s)"


def held_sentence(report: MemoryReport, tolerance_bytes: int) -> str:
    """Returns "GPU 0 has 40960 MiB in use, held by pid 12 (python, user ada, 40000 MiB)"; no full stop."""
    busy = [each for each in report.gpus if (each.last_bytes or 0) > tolerance_bytes]
    return "; ".join(f"{each.gpu} has {_mib(each.last_bytes)} in use, {_by(each.gpu, report.holders)}" for each in busy)


def findings(report: MemoryReport, rules: MemoryRules) -> tuple[HealthFinding, ...]:
    """Returns the outcome of the wait as a check of the node, with one finding for each GPU."""
    if report.unknown:
        return (HealthFinding(CHECK, Health.UNANSWERED, f"GPU memory can't be read: {report.unknown}", report.took_s),)
    return tuple(_finding(each, report, rules) for each in report.gpus)


def is_suspect(found: Iterable[HealthFinding]) -> bool:
    return any(each.health is Health.SUSPECT for each in found)


def suspect_text(node: str, found: Iterable[HealthFinding], rules: MemoryRules) -> str:
    held = [each.subject for each in found if each.health is Health.SUSPECT]
    if not held:
        return f"node {node} is no longer suspect: the memory of its GPUs is free"
    return (
        f"node {node} is suspect: memory of {', '.join(held)} was still in use after {rules.timeout_s:g} s; "
        "it stays in the job, suspect until a restart finds the memory free; end what holds the memory, "
        f"or keep the node out of later cycles with holdfast cordon {node}"
    )


def ended_sentence(report: MemoryReport) -> str:
    pids = ", ".join(map(str, report.ended))
    plural = len(report.ended) != 1
    return (
        f"process{'es' if plural else ''} {pids}, left over from this job, still held GPU memory and "
        f"{'were' if plural else 'was'} killed"
    )


def _finding(memory: GpuMemory, report: MemoryReport, rules: MemoryRules) -> HealthFinding:
    if memory.last_bytes is None:
        return HealthFinding(CHECK, Health.SKIPPED, "its memory can't be read", report.took_s, memory.gpu)
    if memory.last_bytes <= rules.tolerance_bytes:
        return HealthFinding(CHECK, Health.HEALTHY, "", report.took_s, memory.gpu)
    held = f"{_mib(memory.last_bytes)} in use after {rules.timeout_s:g} s, {_by(memory.gpu, report.holders)}"
    reason = f"{held}; nothing checks it before the next restart"  # until then, the job's own ranks use the memory
    return HealthFinding(CHECK, Health.SUSPECT, reason, report.took_s, memory.gpu)


def _by(gpu: str, holders: Iterable[Holder]) -> str:
    named = [_named(each) for each in holders if each.gpu == gpu]
    if not named:
        return "held by no process that can be seen from here"
    rest = len(named) - HOLDERS_SHOWN_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return f"held by {', '.join(named[:HOLDERS_SHOWN_MAX])}{more}"


def _named(holder: Holder) -> str:
    used = "" if holder.used_bytes is None else f", {_mib(holder.used_bytes)}"
    if not holder.name:
        return f"pid {holder.pid} as the host counts{used and f' ({used[2:]})'}"
    return f"pid {holder.pid} ({holder.name}, user {holder.user.removeprefix('user ')}{used})"


def _statistics(memory: GpuMemory) -> str:
    if memory.first_bytes is None:
        return "can't be read"
    return f"first {_mib(memory.first_bytes)}, last {_mib(memory.last_bytes)}, at most {_mib(memory.most_bytes)}"


def _mib(amount_bytes: int | None) -> str:
    return f"{(amount_bytes or 0) / MIB:.0f} MiB"
