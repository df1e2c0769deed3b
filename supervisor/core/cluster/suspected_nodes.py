"""Which node is suspected, because faults of a job recur on it, so that people look at its hardware?"""

from __future__ import annotations

NODE_SUSPECTED = "node_suspected"  # the kind of the event
SUSPECT_FAULTS = 3
SUSPECT_WINDOW_S = 600.0
SUSPECT_NODES_MAX = 1024  # remembered at once; beyond it, the node whose last fault is oldest is forgotten

NodeFaults = dict[str, tuple[float, ...]]  # the newest faults of each node, the node that failed last at the end


def note_fault(faults: NodeFaults, node: str, *, before_s: float, now_s: float) -> str | None:
    """Notes a fault of the node, in place. Returns a warning if the node is suspected from now on.

    Warns once of a node that fails repeatedly within the window, until it has had no fault for the window. `before_s`
    is the time of the fault before this one, on any node. For each node, only as many faults are kept as make it a
    suspect, and each fault drops nodes whose window is over. So a fault costs the same after thousands of them, and
    among thousands of nodes.
    """
    earlier = faults.pop(node, ())
    was_suspect = _is_often(earlier, before_s)
    own = faults[node] = (*earlier, now_s)[-SUSPECT_FAULTS:]
    while True:
        oldest = next(iter(faults))
        if len(faults) <= SUSPECT_NODES_MAX and now_s - faults[oldest][-1] < SUSPECT_WINDOW_S:
            break
        del faults[oldest]
    if was_suspect or not _is_often(own, now_s):
        return None
    often = f"failed {SUSPECT_FAULTS} times within {SUSPECT_WINDOW_S / 60:.0f} min"
    return f"node {node} {often}; look at its hardware and at the output of its ranks"


def _is_often(times: tuple[float, ...], now_s: float) -> bool:
    return len(times) == SUSPECT_FAULTS and now_s - times[0] < SUSPECT_WINDOW_S
