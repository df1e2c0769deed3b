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
        """Knows ids at once, and names after `look_up`: see `unknown`."""
        self._words = words
        self._everybody = EVERYBODY in words
        ids = [word for word in words if word.removeprefix("@").isdecimal()]
        self._gids = {int(word[1:]) for word in ids if word.startswith("@")}
        self._uids = {int(word) for word in ids if not word.startswith("@")}
        self.unknown = tuple(word for word in words if word != EVERYBODY and word not in ids)

    def look_up(self) -> None:
        """Looks up the names that this node did not know so far. Blocks on the user database."""
        self.unknown = tuple(word for word in self.unknown if not self._is_found(word))

    def _is_found(self, word: str) -> bool:
        name = word.removeprefix("@")
        try:
            if name != word:
                self._gids.add(grp.getgrnam(name).gr_gid)
            else:
                self._uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            return False
        return True

    def check_known(self) -> None:
        """Raises ConfigurationError for the first name that this node does not know."""
        for word in self.unknown:
            raise ConfigurationError(what_is_unknown(word))

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


def what_is_unknown(word: str) -> str:
    """Returns the error about a user or group of this name that this node does not know."""
    if word.startswith("@"):
        return f"cannot serve group {word[1:]}: this node has no such group; correct --users"
    return f"cannot serve user {word}: this node has no such user; correct --users, and write @{word} for a group"
