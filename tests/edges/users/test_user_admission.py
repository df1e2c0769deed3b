"""Which users does --users admit?"""

from __future__ import annotations

import grp
import pwd
import threading

import pytest

from supervisor.edges.machine.processes.peer_identity import ROOT, Identity
from supervisor.edges.users.user_admission import Admission
from supervisor.errors import ConfigurationError

STRANGER = Identity(54321, 54321, (54330,))


def test_all_lets_everybody_in():
    assert Admission(("all",)).refusal(STRANGER) == ""


@pytest.mark.parametrize("word", ["54321", "@54321", "@54330"])
def test_a_user_comes_in_by_id_or_group(word: str):
    assert Admission((word,)).refusal(STRANGER) == ""
    assert "cannot answer user id 7: the service of this node serves" in Admission((word,)).refusal(Identity(7, 7, ()))


def test_names_are_those_of_the_user_database():
    first, group = pwd.getpwall()[-1], grp.getgrall()[-1]
    admission = Admission((first.pw_name, f"@{group.gr_name}"))
    admission.look_up()
    assert admission.refusal(Identity(first.pw_uid, 1, ())) == ""
    assert admission.refusal(Identity(54321, 1, (group.gr_gid,))) == ""


def test_root_always_comes_in():
    assert Admission(("54321",)).refusal(ROOT) == ""


@pytest.mark.parametrize("word", ["no-such-user", "@no-such-group"])
def test_an_unknown_name_is_told_and_keeps_no_other_out(word: str):
    admission = Admission((word, "54321"))
    admission.look_up()
    assert admission.unknown == (word,)
    assert admission.refusal(STRANGER) == ""
    assert admission.refusal(Identity(7, 7, ())) != ""
    with pytest.raises(ConfigurationError, match="correct --users"):
        admission.check_known()


def test_a_name_that_is_known_later_is_found_then(monkeypatch: pytest.MonkeyPatch):
    first = pwd.getpwall()[-1]
    known = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", dict[str, object]().__getitem__)  # a directory service that is not there yet
    admission = Admission((first.pw_name,))
    admission.look_up()
    user = Identity(first.pw_uid, 1, ())
    assert admission.refusal(user) != ""
    monkeypatch.setattr(pwd, "getpwnam", known)
    admission.look_up()
    assert (admission.unknown, admission.refusal(user)) == ((), "")
    admission.check_known()


def test_a_name_without_an_answer_is_not_unknown_and_bars_no_other(monkeypatch: pytest.MonkeyPatch):
    first, known, may_answer = pwd.getpwall()[-1], pwd.getpwnam, threading.Event()

    def answer(name: str) -> pwd.struct_passwd:
        if name != first.pw_name:
            may_answer.wait(30)
        return known(name)

    monkeypatch.setattr(pwd, "getpwnam", answer)
    admission = Admission(("no-such-user", first.pw_name))
    try:
        admission.look_up(0.2)
        assert (admission.unanswered, admission.unknown) == (("no-such-user",), ())
        assert admission.refusal(Identity(first.pw_uid, 1, ())) == ""
        admission.check_known()
        admission.look_up(0.2)
    finally:
        may_answer.set()
    admission.look_up()
    assert (admission.unanswered, admission.unknown) == ((), ("no-such-user",))
