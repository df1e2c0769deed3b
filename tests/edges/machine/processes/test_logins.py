"""Which login owns a subordinate user id?"""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.edges.machine.processes import logins as logins_module
from supervisor.edges.machine.processes.logins import Logins

NOBODY = pwd.getpwnam("nobody").pw_uid


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s


def test_a_subordinate_id_counts_for_the_login_that_owns_its_range(tmp_path: Path):
    file = tmp_path / "subuid"
    file.write_text("1001:200000:65536\nnobody:100000:65536\n1001:500000:10\n")
    logins = Logins(file)
    until(lambda: logins.of(100_000) == NOBODY)
    assert [logins.of(uid) for uid in (99_999, 100_000, 165_535, 165_536, 200_000, 265_535, 265_536)] == [
        99_999, NOBODY, NOBODY, 165_536, 1001, 1001, 265_536,
    ]  # fmt: skip
    assert [logins.of(uid) for uid in (0, 1001, NOBODY, 500_009, 500_010)] == [0, 1001, NOBODY, 1001, 500_010]


def test_an_id_that_is_a_login_counts_for_itself_though_it_lies_in_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A directory service may number its users from 100,000 on, where useradd has given that range to another one."""
    asked: list[int] = []

    def look_up(uid: int) -> None:
        asked.append(uid)
        if uid != 120_000:
            raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    file = tmp_path / "subuid"
    file.write_text("1001:100000:65536\n")
    logins = Logins(file)
    assert [logins.of(uid) for uid in (120_000, 120_001)] == [1001, 1001]
    until(lambda: logins.of(120_000) == 120_000)
    until(lambda: 120_001 in asked)
    assert [logins.of(120_001) for _ in range(3)] == [1001] * 3
    assert logins.of(7) == 7
    assert [asked.count(uid) for uid in (7, 120_000, 120_001)] == [0, 1, 1], "each once, and nobody outside a range"


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets names be looked up once the event is set."""
    may_answer, answer = threading.Event(), pwd.getpwnam

    def wait(name: str) -> pwd.struct_passwd:
        assert may_answer.wait(30)
        return answer(name)

    monkeypatch.setattr(pwd, "getpwnam", wait)
    yield may_answer
    may_answer.set()


def test_a_name_without_an_answer_holds_nobody_up_and_its_ids_count_for_one_login(
    tmp_path: Path, hanging: threading.Event
):
    file = tmp_path / "subuid"
    file.write_text("1001:200000:65536\nnobody:100000:65536\nsomebody:300000:9\nroot:400000:9\n")
    logins = Logins(file)
    assert [logins.of(uid) for uid in (200_000, 400_000)] == [1001, 400_000]
    assert logins.of(100_000) == logins.of(100_001) < 0
    assert logins.of(100_000) != logins.of(300_000) < 0
    hanging.set()
    until(lambda: logins.of(100_000) == NOBODY)


def test_a_name_that_the_database_does_not_know_yet_is_looked_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A directory service may start after the process that asks."""
    monkeypatch.setattr(logins_module, "UNKNOWN_S", 0.2)
    answer, is_there = pwd.getpwnam, threading.Event()
    asked: list[str] = []

    def look_up(name: str) -> pwd.struct_passwd:
        asked.append(name)
        if not is_there.is_set():
            raise KeyError(name)
        return answer(name)

    monkeypatch.setattr(pwd, "getpwnam", look_up)
    file = tmp_path / "subuid"
    file.write_text("nobody:100000:65536\n")
    logins = Logins(file)
    until(lambda: asked == ["nobody"])
    assert logins.of(100_000) == logins.of(100_001) < 0
    is_there.set()
    until(lambda: logins.of(100_000) == NOBODY)


def test_one_owner_of_a_range_keeps_no_others_look_ups_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked, may_answer = list[int](), threading.Event()

    def look_up(uid: int) -> None:
        asked.append(uid)
        may_answer.wait(30)
        if uid not in (165_000, 220_000):
            raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    file = tmp_path / "subuid"
    file.write_text("1001:100000:65536\n1002:200000:65536\n")
    logins = Logins(file)
    assert {logins.of(100_000 + number) for number in range(5_000)} == {1001}
    assert logins.of(220_000) == 1002
    until(lambda: asked == [100_000])
    may_answer.set()
    until(lambda: logins.of(220_000) == 220_000)
    assert asked.index(220_000) < 3, "each owner has its turn"
    until(lambda: len(asked) == logins_module.OF_ONE_MAX + 1)
    assert {logins.of(100_000 + number) for number in range(5_000)} == {1001}
    assert logins.of(220_000) == 220_000
    assert len(asked) == logins_module.OF_ONE_MAX + 1


def test_a_count_for_a_login_is_certain_and_takes_no_turn_of_other_look_ups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []

    def look_up(uid: int) -> None:
        asked.append(uid)
        if uid not in range(120_000, 120_100):
            raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    file = tmp_path / "subuid"
    file.write_text("1001:100000:65536\n1002:200000:65536\n")
    logins, own = Logins(file), [1001, 1001, 100_001, 100_001]
    uids = [*own, *range(120_000, 120_100), 7, 1002, 200_001]
    assert logins.count(1002, uids, 3) == 2
    assert asked == [], "there are fewer in any case"
    assert logins.count(1001, uids, 64) == logins.count(100_002, uids, 64) == len(own)
    assert logins.count(120_099, uids, 64) == 1
    assert set(asked).isdisjoint((7, 1001, 1002, 200_001))
    assert logins.of(120_050) == 120_050
    assert logins.of(165_000) == 1001
    until(lambda: 165_000 in asked)


def test_a_range_of_root_and_nonsense_make_nobody_responsible(tmp_path: Path):
    """Containers of many users may have the ids of such a range."""
    file = tmp_path / "subuid"
    file.write_text("root:100000:65536\n\n# comment\n1001:x:1\n1001:7\nno-such-login:200000:9\nnobody:300000:1\n")
    logins = Logins(file)
    until(lambda: logins.of(300_000) == NOBODY)
    assert [logins.of(uid) for uid in (100_005, 7)] == [100_005, 7]
    assert logins.of(200_005) == logins.of(200_006) < 0
    assert Logins(tmp_path / "none").of(100_000) == 100_000


def test_a_changed_file_is_read_again(tmp_path: Path):
    file = tmp_path / "subuid"
    file.write_text("1001:100000:65536\n")
    logins = Logins(file)
    fresh = tmp_path / "subuid+"
    fresh.write_text("1001:100000:65536\n1002:165536:65536\n")
    os.rename(fresh, file)
    until(lambda: logins.of(165_537) == 1002)
