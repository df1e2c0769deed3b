"""What do the states and counters of the InfiniBand ports mean for the node?

A port that was down from the start belongs to how the node is built and does not count against it. A link that went
down and came back is only noted; one that does so repeatedly makes the node unhealthy.
"""

from __future__ import annotations

import msgspec

from supervisor.core.node_check_facts import Health, HealthFinding

CHECK = "nic"
ACTIVE = "ACTIVE"
FLAPS_MAX = 2  # more than this within the window are too many
WINDOW_S = 600.0
FLAPS_KEPT_MAX = 64


class Port(msgspec.Struct, frozen=True):
    """A port. `name`: such as "mlx5_0 port 1". `state`: as in sysfs, without its number; "": it can't be read."""

    name: str
    state: str
    link_downs: int | None = None  # how often its link went down; None: unknown


class Known(msgspec.Struct, frozen=True):
    active: tuple[str, ...] = ()  # ports that have been active
    link_downs: tuple[tuple[str, int], ...] = ()  # at the last look
    flaps: tuple[tuple[str, float, int], ...] = ()  # (port, when, how often) within the window


def judge(
    ports: tuple[Port, ...], known: Known, *, now_s: float, states: bool, counters: bool, took_s: float
) -> tuple[tuple[HealthFinding, ...], Known]:
    """Returns one finding for each port, and what is known from now on. `states`, `counters`: what to judge."""
    flaps = _flaps(ports, known, now_s)
    findings: list[HealthFinding] = []
    for port in ports:
        reasons: list[str] = []
        if states and port.name in known.active and port.state not in (ACTIVE, ""):
            reasons.append(f"was ACTIVE and is {port.state}; check cable and switch port")
        times = sum(count for name, _, count in flaps if name == port.name)
        if counters and times > FLAPS_MAX:
            reasons.append(f"went down {times} times within {WINDOW_S / 60:g} minutes; check cable and switch port")
        note = f"went down {times} times within {WINDOW_S / 60:g} minutes" if counters and times else ""
        findings.append(_finding(port.name, reasons, took_s, note))
    present = {port.name for port in ports}
    if states:
        findings += [
            _finding(name, ["was ACTIVE and is no longer there; check lspci and the kernel log"], took_s)
            for name in known.active
            if name not in present
        ]
    if not findings:
        findings.append(HealthFinding(CHECK, Health.SKIPPED, "", took_s))
    active = dict.fromkeys((*known.active, *(port.name for port in ports if port.state == ACTIVE)))
    downs = dict(known.link_downs) | {port.name: port.link_downs for port in ports if port.link_downs is not None}
    return tuple(findings), Known(tuple(active), tuple(downs.items()), flaps)


def _flaps(ports: tuple[Port, ...], known: Known, now_s: float) -> tuple[tuple[str, float, int], ...]:
    before = dict(known.link_downs)
    new = [
        (port.name, now_s, port.link_downs - before[port.name])
        for port in ports
        if port.link_downs is not None and port.link_downs > before.get(port.name, port.link_downs)
    ]
    kept = [each for each in known.flaps if each[1] > now_s - WINDOW_S]
    return tuple([*kept, *new][-FLAPS_KEPT_MAX:])


def _finding(name: str, reasons: list[str], took_s: float, note: str = "") -> HealthFinding:
    if reasons:
        return HealthFinding(CHECK, Health.UNHEALTHY, f"{name} {'; '.join(reasons)}", took_s, name)
    return HealthFinding(CHECK, Health.HEALTHY, note and f"{name} {note}", took_s, name)
