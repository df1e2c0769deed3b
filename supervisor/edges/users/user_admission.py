"""Which users may have jobs under this node's service?"""

from __future__ import annotations

import grp
import pwd

from supervisor.edges.machine.processes.peer_identity import Identity
from supervisor.errors import ConfigurationError

EVERYBODY = "all"


class Admission:
    """Admits root and the users that --users names: all, user names, and groups with an @ prefix."""

    def __init__(self, words: tuple[str, ...]) -> None:
        """Raises ConfigurationError for a name that this node does not know. Blocks on the user database."""
        self._words = words
        self._everybody = EVERYBODY in words
        names = [word for word in words if word != EVERYBODY]
        self._gids = {_gid(word[1:]) for word in names if word.startswith("@")}
        self._uids = {_uid(word) for word in names if not word.startswith("@")}

    def refusal(self, identity: Identity) -> str:
        """Returns why the user is not served; "" if it is."""
        if self._everybody or identity.uid == 0 or identity.uid in self._uids:
            return ""
        if self._gids & {identity.gid, *identity.groups}:
            return ""
        return (
            f"cannot answer user id {identity.uid}: the service of this node serves {', '.join(self._words)} alone; "
            "ask its administrator, or run jobs with a supervisor of your own: leave --socket-dir out"
        )


def _uid(word: str) -> int:
    try:
        return int(word) if word.isdecimal() else pwd.getpwnam(word).pw_uid
    except KeyError:
        raise ConfigurationError(
            f"cannot serve user {word}: this node has no such user; correct --users, and write @{word} for a group"
        ) from None


def _gid(word: str) -> int:
    try:
        return int(word) if word.isdecimal() else grp.getgrnam(word).gr_gid
    except KeyError:
        raise ConfigurationError(f"cannot serve group {word}: this node has no such group; correct --users") from None
