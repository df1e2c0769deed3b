"""What do the driver's reports on a job's GPUs mean for the node: healthy, unhealthy, or nothing?

`Known` keeps what later looks are compared with: errors present at the first look do not count against a GPU, and a
link that was down then belongs to how the node is built. An Xid event counts until the GPU is reset. Values that the
driver does not know mean nothing, but a GPU of which it refuses all of them has not answered.
"""

from __future__ import annotations

import itertools

import msgspec

from supervisor.core.node_check_facts import Health, HealthFinding

CHECK = "gpu"
LOST_LOOKS_MIN = 2  # before a GPU that is there again counts as reset
# Xid events after which a GPU needs a reset; programs cause the others, or the driver repairs them.
# https://docs.nvidia.com/deploy/xid-errors
FATAL_XIDS = {
    46: "the GPU has stopped processing",
    48: "an uncorrectable memory error",
    54: "its power cable is not connected",
    62: "its microcontroller has halted",
    64: "a memory row could not be remapped",
    79: "it has fallen off the bus",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    140: "an unrecovered memory error",
    143: "its initialisation has failed",
}


class GpuWords(msgspec.Struct, frozen=True):
    """What the driver reports on one GPU; None: unknown. `action` "": it asks for none."""

    name: str
    uuid: str
    is_lost: bool = False
    action: str | None = None
    ecc_errors: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    refusal: str = ""  # why the driver refuses every value, if it does not merely lack them
    whole: str = ""  # of a slice: the UUID of its GPU
    links: tuple[bool | None, ...] = ()  # None: this link and the later ones can't be read

    @property
    def whole_uuid(self) -> str:
        """Returns the UUID of the whole GPU, to which all but the name belongs."""
        return self.whole or self.uuid


class Look(msgspec.Struct, frozen=True):
    gpus: tuple[GpuWords, ...]
    lost: tuple[tuple[str, str], ...] = ()  # (name, UUID or "") of whole GPUs that no longer respond
    xids: tuple[tuple[str, int], ...] = ()  # (UUID, Xid) of the Xid events that this look has read, of all GPUs
    earlier_xids: tuple[tuple[str, int], ...] = ()  # those that looks have read which were not answered


class Past(msgspec.Struct, frozen=True):
    """What earlier looks have shown of one GPU."""

    errors_first: int | None = None  # uncorrectable errors at the first look
    errors_last: int | None = None
    links: tuple[bool, ...] = ()  # whether each link was ever up
    xids: tuple[int, ...] = ()  # the fatal ones since its last reset
    lost_looks: int = 0  # at how many looks in a row it was lost
    has_action: bool = False  # at the last look, the driver asked for a recovery action


class Known(msgspec.Struct, frozen=True):
    """What earlier looks have shown, by UUID."""

    names: tuple[tuple[str, str], ...] = ()  # of all GPUs and slices seen so far that a job with these GPUs may see
    pasts: tuple[tuple[str, Past], ...] = ()  # of all GPUs, whichever job they were checked for


def judge(look: Look, known: Known, *, took_s: float) -> tuple[tuple[HealthFinding, ...], Known]:
    """Returns one finding for each GPU, and what is known from now on."""
    # What a GPU reports while it does not tell its UUID is only compared, not believed.
    names = dict(known.names) | {gpu.uuid: gpu.name for gpu in look.gpus if gpu.uuid}
    pasts = _learn(look, dict(known.pasts))
    gpus = _recognised(look.gpus, names)
    findings: list[HealthFinding] = []
    for gpu in gpus:
        past = pasts.get(gpu.whole_uuid, Past())
        first = past.errors_first if past.errors_first is not None else gpu.ecc_errors or 0
        reasons = [*_reasons(gpu, first, past.links), *(f"Xid {xid}: {FATAL_XIDS[xid]}" for xid in past.xids)]
        findings.append(_finding(gpu.name, reasons, took_s, note=_note(gpu, first), refusal=gpu.refusal))
    seen = {gpu.uuid for gpu in gpus}
    # CUDA's order ends at a lost GPU, so the ones after it are not looked at: they are not lost.
    gone = [name for name, _ in look.lost if name not in {gpu.name for gpu in gpus}]
    gone = gone or [name for uuid, name in names.items() if uuid not in seen]
    findings += [
        _finding(name, ["the driver has lost it; reset it, or restart the node"], took_s)
        for name in dict.fromkeys(gone)
    ]
    if not findings:
        findings.append(HealthFinding(CHECK, Health.SKIPPED, "the driver shows no GPU of this job", took_s))
    # By its UUID, since no slice has its name; by its name, if only an earlier process was told its UUID.
    lost = {gpu.whole_uuid for gpu in gpus if gpu.is_lost} | {uuid for _, uuid in look.lost}
    lost |= {uuid for uuid, name in names.items() if name in dict(look.lost)}
    for uuid in lost & pasts.keys():
        pasts[uuid] = msgspec.structs.replace(pasts[uuid], lost_looks=pasts[uuid].lost_looks + 1)
    return tuple(findings), Known(tuple(names.items()), tuple(pasts.items()))


def has_flighty(findings: tuple[HealthFinding, ...]) -> bool:
    """Returns whether a finding may be gone at the next look: a link is retraining, or a GPU is being reset."""
    return any(
        each.health is Health.UNHEALTHY and ("NVLink" in each.reason or "lost" in each.reason) for each in findings
    )


def confirmed(first: tuple[HealthFinding, ...], second: tuple[HealthFinding, ...]) -> tuple[HealthFinding, ...]:
    """Returns the second findings; a GPU that only these call unhealthy stays undecided until the next look."""
    before = {each.subject: each for each in first}
    return tuple(
        each
        if each.health is not Health.UNHEALTHY or _was_unhealthy(before.get(each.subject))
        else msgspec.structs.replace(each, health=Health.HEALTHY, reason=f"seen once: {each.reason}")
        for each in second
    )


def _was_unhealthy(finding: HealthFinding | None) -> bool:
    return finding is not None and finding.health is Health.UNHEALTHY


def _learn(look: Look, pasts: dict[str, Past]) -> dict[str, Past]:
    """Returns what is known of each GPU after the look. An event of this look may be later than a reset."""
    _add_fatal(look.earlier_xids, pasts)
    for gpu in look.gpus:
        if gpu.uuid:
            pasts[gpu.whole_uuid] = _learn_of(gpu, pasts.get(gpu.whole_uuid, Past()))
    _add_fatal(look.xids, pasts)
    return pasts


def _add_fatal(xids: tuple[tuple[str, int], ...], pasts: dict[str, Past]) -> None:
    for uuid, xid in xids:
        if uuid and xid in FATAL_XIDS:
            past = pasts.get(uuid, Past())
            pasts[uuid] = msgspec.structs.replace(past, xids=tuple(sorted({*past.xids, xid})))


def _learn_of(gpu: GpuWords, past: Past) -> Past:
    counts = [count for count in (past.errors_first, gpu.ecc_errors) if count is not None]
    return Past(
        errors_first=min(counts, default=None),  # A counter falls only if the driver was reloaded.
        errors_last=gpu.ecc_errors if gpu.ecc_errors is not None else past.errors_last,
        links=tuple(bool(was or is_up) for was, is_up in itertools.zip_longest(past.links, gpu.links)),
        xids=() if _was_reset(gpu, past) else past.xids,
        lost_looks=past.lost_looks if gpu.is_lost or gpu.refusal else 0,
        has_action=bool(gpu.action) if gpu.action is not None else past.has_action,
    )


def _was_reset(gpu: GpuWords, past: Past) -> bool:
    """Returns whether the GPU was reset since the last look. One that was lost at a single look may not have been."""
    has_fewer_errors = gpu.ecc_errors is not None and gpu.ecc_errors < (past.errors_last or 0)
    is_back = past.lost_looks >= LOST_LOOKS_MIN and not gpu.is_lost and not gpu.refusal
    return has_fewer_errors or is_back or (past.has_action and gpu.action == "")


def _recognised(gpus: tuple[GpuWords, ...], names: dict[str, str]) -> tuple[GpuWords, ...]:
    """Returns the GPUs; one whose UUID the driver does not tell has the UUID that was known by its name."""
    seen = {gpu.uuid for gpu in gpus}
    missing = {name: uuid for uuid, name in names.items() if uuid not in seen}
    return tuple(gpu if gpu.uuid else msgspec.structs.replace(gpu, uuid=missing.get(gpu.name, "")) for gpu in gpus)


def _reasons(gpu: GpuWords, first_errors: int, links_once_up: tuple[bool, ...]) -> list[str]:
    reasons: list[str] = []
    if gpu.is_lost:
        reasons.append("the driver has lost it; reset it, or restart the node")
    if gpu.action:
        reasons.append(f"the driver asks for a recovery action: {gpu.action}")
    if gpu.remap_failed:
        reasons.append("a memory row could not be remapped; the GPU has to be replaced")
    if gpu.ecc_errors is not None and gpu.ecc_errors > first_errors:
        reasons.append(f"{gpu.ecc_errors - first_errors} uncorrectable memory errors since the first look; reset it")
    down = [number for number, was_up in enumerate(links_once_up) if was_up and _is_down(gpu, number)]
    if down:
        numbers = ", ".join(map(str, down))
        reasons.append(f"NVLink {numbers} of {len(links_once_up)} went down; check nvidia-smi nvlink -s")
    return reasons


def _is_down(gpu: GpuWords, link: int) -> bool:
    """Returns whether a link that was up is down; False if the driver refuses to say."""
    if link < len(gpu.links):
        return gpu.links[link] is False
    return not gpu.refusal and None not in gpu.links


def _note(gpu: GpuWords, first_errors: int) -> str:
    """Returns what does not count against the GPU but is good to know."""
    notes: list[str] = []
    if first_errors:
        notes.append(f"{first_errors} uncorrectable memory errors were there before")
    if gpu.remap_pending:
        notes.append("a memory row will be remapped at the next reset")
    return "; ".join(notes)


def _finding(subject: str, reasons: list[str], took_s: float, *, note: str = "", refusal: str = "") -> HealthFinding:
    if reasons:
        return HealthFinding(CHECK, Health.UNHEALTHY, f"{subject}: {'; '.join(reasons)}", took_s, subject)
    if refusal:
        reason = f"{subject}: the driver refuses all of its values: {refusal}"
        return HealthFinding(CHECK, Health.UNANSWERED, reason, took_s, subject)
    return HealthFinding(CHECK, Health.HEALTHY, note, took_s, subject)
