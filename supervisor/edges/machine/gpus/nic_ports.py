"""What is the state of each InfiniBand port, and how often did its link go down?

A disposable process reads it from sysfs: the driver asks the card, which may not answer.
"""

from __future__ import annotations

import os
from contextlib import suppress

Answer = list[list[object]]  # for each port: name, state ("" if it can't be read), link_downed (or None)


def read_ports(folder: str, *, state_template: str = "", counter_template: str = "") -> Answer | None:
    """Returns all ports of all cards in `folder` (/sys/class/infiniband); None if it can't be read.

    If a template is given, its file is read for each card and stands for the card's one port.
    """
    try:
        cards = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError:
        return None
    found: Answer = []
    for card in cards:
        for port in _ports(folder, card) if not (state_template or counter_template) else ["1"]:
            place = f"{folder}/{card}/ports/{port}"
            state = _read(state_template.replace("{nic}", card) or f"{place}/state")
            counter = _read(counter_template.replace("{nic}", card) or f"{place}/counters/link_downed")
            found.append([f"{card} port {port}", _word(state), int(counter) if counter.isdecimal() else None])
    return found


def _ports(folder: str, card: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(f"{folder}/{card}/ports"))
    return []


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read(256).strip()
    return ""


def _word(state: str) -> str:
    """Returns the word of a state: "4: ACTIVE" → "ACTIVE"."""
    return state.rpartition(":")[2].strip()
