"""How many supervisors, and folders, may one user have on this node, and how many may all users have together?"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.errors import ExhaustedError

SUPERVISORS_MAX = 1_024
SUPERVISORS_OF_ONE_MAX = 8  # of one login: with other groups, or with its subordinate user ids
FOLDERS_OF_ONE_MAX = 64  # of one login; each stays, with a file system that is mounted there, until the node reboots


def check(logins: Sequence[int], login: int, uid: int) -> None:
    """Raises ExhaustedError if `uid`, which counts for `login`, may not have one more.

    Args:
        logins: for which login each supervisor counts, those that are about to be restarted included.
    """
    if len(logins) >= SUPERVISORS_MAX:
        raise ExhaustedError(
            f"cannot answer user id {uid}: {SUPERVISORS_MAX} users have supervisors on this node; try again later"
        )
    if logins.count(login) >= SUPERVISORS_OF_ONE_MAX:
        raise ExhaustedError(
            f"cannot answer user id {uid}: its login, with other groups and subordinate user ids, has "
            f"{SUPERVISORS_OF_ONE_MAX} supervisors on this node; wait until one of them has had no job for a minute"
        )


def check_folders(count: int, uid: int) -> None:
    """Raises ExhaustedError if `uid`, whose login has `count` folders, may not have one more."""
    if uid and count >= FOLDERS_OF_ONE_MAX:
        raise ExhaustedError(
            f"cannot start the supervisor of user id {uid}: its login has come with {FOLDERS_OF_ONE_MAX} different "
            "sets of groups or subordinate user ids since this node has booted; use one of them"
        )
