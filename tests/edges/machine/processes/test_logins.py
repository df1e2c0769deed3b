"""Which login owns a subordinate user id?"""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

from supervisor.edges.machine.processes.logins import Logins

NOBODY = pwd.getpwnam("nobody").pw_uid


def test_a_subordinate_id_counts_for_the_login_that_owns_its_range(tmp_path: Path):
    file = tmp_path / "subuid"
    file.write_text("1001:200000:65536\nnobody:100000:65536\n1001:500000:10\n")
    logins = Logins(file)
    assert [logins.of(uid) for uid in (99_999, 100_000, 165_535, 165_536, 200_000, 265_535, 265_536)] == [
        99_999, NOBODY, NOBODY, 165_536, 1001, 1001, 265_536,
    ]  # fmt: skip
    assert [logins.of(uid) for uid in (0, 1001, NOBODY, 500_009, 500_010)] == [0, 1001, NOBODY, 1001, 500_010]


def test_a_range_of_root_or_of_nobody_known_and_nonsense_make_nobody_responsible(tmp_path: Path):
    """Containers of many users may have the ids of such a range."""
    file = tmp_path / "subuid"
    file.write_text("root:100000:65536\nno-such-login:200000:65536\n\n# comment\n1001:x:1\n1001:7\n")
    logins = Logins(file)
    assert [logins.of(uid) for uid in (100_005, 200_005, 7)] == [100_005, 200_005, 7]
    assert Logins(tmp_path / "none").of(100_000) == 100_000


def test_a_changed_file_is_read_again(tmp_path: Path):
    file = tmp_path / "subuid"
    file.write_text("1001:100000:65536\n")
    logins = Logins(file)
    fresh = tmp_path / "subuid+"
    fresh.write_text("1001:100000:65536\n1002:165536:65536\n")
    os.rename(fresh, file)
    deadline_s = time.monotonic() + 20
    while logins.of(165_537) != 1002:
        assert time.monotonic() < deadline_s
