"""How much may a rank report about a wrapped call? Both ends enforce it."""

from __future__ import annotations

REASON_CHARACTERS_MAX = 512  # the rank truncates it
EXCHANGE_NAME_CHARACTERS_MAX = 256
EXCHANGE_VALUE_CHARACTERS_MAX = 8192
EXCHANGE_NAMES_MAX = 128  # in the rank assignment of one iteration; a rank that exceeds it is refused
