"""How long may texts be that ranks tell of a wrapped call? Both ends keep to it: longer ones end the connection."""

from __future__ import annotations

REASON_CHARACTERS_MAX = 512  # cut by whoever says it
EXCHANGE_NAME_CHARACTERS_MAX = 256
EXCHANGE_VALUE_CHARACTERS_MAX = 8192
