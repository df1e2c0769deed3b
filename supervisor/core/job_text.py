"""What do people read about a rank's requests, about calculated limits, and about a success?"""

from __future__ import annotations

from supervisor.core.facts import HangLimits

RANKS_SHOWN_MAX = 8  # in a sentence, unless they are consecutive


def control_sentence(action: str, description: str, *, rank: int, node: str) -> str:
    purposes = {
        "continue": "to continue",
        "exclude_this_node": f"to exclude node {node}",
        "shutdown_workload": "to shut the workload down",
    }
    purpose = purposes.get(action, f"for {action!r}, which has no effect here")
    return f"rank {rank} asked {purpose}" + (f": {description}" if description else "")


def limits_sentence(limits: HangLimits) -> str:
    """Returns "first heartbeat 60.0 s, heartbeat 12.5 s, section 'step' 3.0 s, outside of sections off"."""
    values = [
        ("first heartbeat", limits.initial_heartbeat_s),
        ("heartbeat", limits.heartbeat_s),
        *((f"section '{name}'", limit_s) for name, limit_s in limits.sections),
        ("outside of sections", limits.out_of_section_s),
    ]
    return ", ".join(f"{name} {'off' if limit_s is None else f'{limit_s:.1f} s'}" for name, limit_s in values)


def named_ranks(ranks: tuple[int, ...]) -> str:
    """Returns "rank 3", "ranks 0 to 7", or "ranks 0, 2, 5"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - RANKS_SHOWN_MAX} more" if len(ranks) > RANKS_SHOWN_MAX else ""
    return f"ranks {', '.join(map(str, ranks[:RANKS_SHOWN_MAX]))}{more}"


def running_again_sentence(cycle: int, took_s: float, used: int, budget: int) -> str:
    """Returns "running again after 0.09 s, cycle 1, restarts 1 of 3"."""
    took = f"{took_s:.2f} s" if took_s < 10 else f"{took_s:.0f} s"
    return f"running again after {took}, cycle {cycle}, restarts {used} of {budget}"


def succeeded_sentence(whose: str, lost: tuple[int, ...]) -> str:
    """Returns "all ranks exited with code 0"; `lost`: ranks that the job went on without."""
    if not lost:
        return f"all ranks {whose}exited with code 0"
    return f"all ranks {whose}that remained exited with code 0; the job went on without {named_ranks(lost)}"
