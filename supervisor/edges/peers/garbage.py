"""How often does the leader of thousands of nodes look for garbage that counting references does not find?

Each full look visits all objects of all nodes, 0.3 s for 10,240 of them, while nobody is served; and with Python's own
pace one comes in every round. What a round leaves behind is freed by counting, so a look in many rounds is enough.
"""

from __future__ import annotations

import gc

NODES_MIN = 256  # fewer are looked at in milliseconds
FULL_LOOKS_EACH = 100  # looks at what is younger; Python's own pace is 10


def look_seldom(nodes: int) -> None:
    """For this process, if that many nodes may come to it."""
    young, middle, full = gc.get_threshold()
    if nodes >= NODES_MIN and full < FULL_LOOKS_EACH:
        gc.set_threshold(young, middle, FULL_LOOKS_EACH)
