"""Does the source that holds most connections make room, and is no source kept out by another?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from supervisor.edges.operators.http_connection_limit import Place, Places

MALLORY, ALICE = 1, 2
CONNECTS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
sock = socket.socket()
sock.connect(("127.0.0.1", int(sys.argv[2])))
sock.recv(1)
"""


class Entered:
    """Places, and who has lost one."""

    def __init__(self, most: int) -> None:
        self.places = Places(most)
        self.ended: list[str] = []

    def enter(self, source: int, name: str = "") -> Place | None:
        return self.places.enter(source, lambda: self.ended.append(name))

    def answered(self, source: int, name: str = "") -> Place:
        place = self.enter(source, name)
        assert place is not None
        self.places.answer(place)
        return place


def test_the_source_with_most_gives_up_what_has_waited_longest():
    entered = Entered(4)
    entered.enter(ALICE, "alice")
    for number in range(3):
        entered.enter(MALLORY, f"mallory {number}")
    assert entered.enter(ALICE) is not None
    assert entered.ended == ["mallory 0"]
    assert entered.enter(MALLORY) is not None
    assert entered.ended == ["mallory 0", "mallory 1"]


def test_what_is_answered_ends_only_for_another_source_and_the_newest_first():
    entered = Entered(3)
    for number in range(3):
        entered.answered(MALLORY, f"mallory {number}")
    assert entered.enter(MALLORY) is None
    assert entered.ended == []
    assert entered.enter(ALICE) is not None
    assert entered.ended == ["mallory 2"]


def test_a_connection_that_waits_again_is_the_last_to_go():
    entered = Entered(2)
    first = entered.answered(ALICE, "first")
    entered.enter(ALICE, "second")
    entered.places.wait(first)
    entered.enter(ALICE, "third")
    assert entered.ended == ["second"]


def test_of_as_many_from_each_source_the_longest_waiting_makes_room():
    entered = Entered(2)
    entered.enter(3, "first")
    entered.enter(4, "second")
    assert entered.enter(5) is not None
    assert entered.ended == ["first"]


def test_a_place_is_given_back_once():
    entered = Entered(2)
    place = entered.enter(ALICE)
    assert place is not None
    for _ in range(2):
        entered.places.leave(place)
    entered.places.wait(place)  # It has ended, whatever its answer still does.
    entered.places.answer(place)
    for _ in range(2):
        assert entered.enter(ALICE) is not None
    assert entered.ended == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_source_is_the_login_of_the_user_who_connects():
    places = Places(1, lambda uid: uid - 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", CONNECTS, "54321", str(listener.getsockname()[1])]
        listener.settimeout(30)
        with subprocess.Popen(command):
            client, peer = listener.accept()
            with client:
                assert places.source(peer, client.getsockname()) == 54320
    assert places.source(("192.0.2.1", 1), ("192.0.2.2", 2)) == "192.0.2.1"
