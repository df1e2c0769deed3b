"""Which users may have jobs under this node's service?"""

from __future__ import annotations

import grp
import pwd
import threading

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import threads
from supervisor.edges.machine.processes.peer_identity import Identity
from supervisor.errors import ConfigurationError

EVERYBODY = "all"


class Admission:
    """Admits root and the users that --users names: all, user names, and groups with an @ prefix."""

    def __init__(self, words: tuple[str, ...]) -> None:
        """Knows ids at once, and names after `look_up`: see `unknown` and `unanswered`."""
        self._words = words
        self._clock = Clock()
        self._everybody = EVERYBODY in words
        ids = [word for word in words if word.removeprefix("@").isdecimal()]
        self._gids = {int(word[1:]) for word in ids if word.startswith("@")}
        self._uids = {int(word) for word in ids if not word.startswith("@")}
        names = (word for word in words if word != EVERYBODY and word not in ids)
        self._is_known: dict[str, bool | None] = dict.fromkeys(names)  # None: there was no answer yet
        self._asking: dict[str, tuple[threading.Thread, float]] = {}  # and since when
        self._lock = threading.Lock()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Returns the names that this node does not know."""
        return tuple(word for word, is_known in self._is_known.items() if is_known is False)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Returns the names that the user database has never answered about."""
        return tuple(word for word, is_known in self._is_known.items() if is_known is None)

    def look_up(self, timeout_s: float | None = None) -> None:
        """Looks up the names that this node did not know so far, each in a thread: one without an answer bars no other.

        Waits for each until `timeout_s` after it was asked for. Raises OSError without a thread.
        """
        with self._lock:
            for word in (*self.unanswered, *self.unknown):
                if word not in self._asking:
                    thread = threading.Thread(target=self._ask, args=(word,), name="look up user", daemon=True)
                    self._asking[word] = thread, self._clock.now_s()
                    try:
                        threads.start(thread)
                    except OSError:
                        del self._asking[word]
                        raise
            asking = list(self._asking.values())
        for thread, since_s in asking:
            thread.join(None if timeout_s is None else max(0.0, since_s + timeout_s - self._clock.now_s()))

    def _ask(self, word: str) -> None:
        try:
            self._is_known[word] = self._is_found(word)
        finally:
            with self._lock:
                del self._asking[word]

    def _is_found(self, word: str) -> bool:
        name = word.removeprefix("@")
        try:
            if name != word:
                self._gids.add(grp.getgrnam(name).gr_gid)
            else:
                self._uids.add(pwd.getpwnam(name).pw_uid)
        except (KeyError, ValueError):  # ValueError: no name can be so
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
