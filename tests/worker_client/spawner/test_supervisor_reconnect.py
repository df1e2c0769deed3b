"""What does a spawner keep, and in which state does a returning supervisor find it?"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from holdfast_wire import spawner_link as link
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX, Decoder
from holdfast_wire.spawner_settings import SpawnerSettings

from worker_client.spawner.supervisor_reconnect import SupervisorReconnect, listen

READY = link.Ready(1, 1, "3.11", "fork", "it is a test", (), "")
SPAWNED = link.Spawned(0, 0, 77, 0, "fork")


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "listener"))
    return listener


def welcomed(reconnect: SupervisorReconnect, tmp_path: Path) -> tuple[link.WelcomeBack, tuple[link.Message, ...]]:
    """Returns what a returning supervisor gets."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as supervisor:
        supervisor.connect(str(tmp_path / "listener"))
        found = reconnect.accept(is_awaited=True)
        assert found is not None
        (welcome,) = Decoder(frame_bytes_max=SPAWNER_FRAME_BYTES_MAX).feed(supervisor.recv(65536))
        socket.socket(fileno=found.fd).close()
    greeting = link.decode(welcome)
    assert isinstance(greeting, link.WelcomeBack)
    return greeting, found.messages


def returned(reconnect: SupervisorReconnect, tmp_path: Path) -> tuple[dict[str, str], list[link.Message]]:
    """Returns the texts and reports."""
    greeting, messages = welcomed(reconnect, tmp_path)
    texts = {each.name: each.text for each in messages if isinstance(each, link.Kept)}
    assert greeting.texts == len(texts)
    return texts, [each for each in messages if not isinstance(each, link.Kept)]


def test_texts_stay_until_they_change_or_are_removed(tmp_path: Path, listener: socket.socket) -> None:
    with listener:
        reconnect = SupervisorReconnect(SpawnerSettings("j", ("t.py",), return_fd=listener.fileno()))
        listen(listener.fileno())
        for report in (READY, SPAWNED):
            reconnect.note(report)
        reconnect.keep(link.Keep({"a": "1", "b": "1"}, 1))
        reconnect.keep(link.Keep({"b": "", "c": "1"}, 1))
        assert returned(reconnect, tmp_path) == ({"a": "1", "c": "1"}, [SPAWNED])


def test_reports_are_confirmed_without_a_text(tmp_path: Path, listener: socket.socket) -> None:
    """As to a spawner that was replaced: else each supervisor that returns hears them again."""
    with listener:
        reconnect = SupervisorReconnect(SpawnerSettings("j", ("t.py",), return_fd=listener.fileno()))
        listen(listener.fileno())
        closed = link.CycleLogClosed(0, "/logs/cycle_0.log", 9, 1, 0, "")
        reconnect.note(READY)
        reconnect.keep(link.Keep({"a": "1"}, 1))
        for report in (closed, SPAWNED):
            reconnect.note(report)
        assert returned(reconnect, tmp_path) == ({"a": "1"}, [closed, SPAWNED])
        reconnect.keep(link.Keep({}, 2))
        assert returned(reconnect, tmp_path) == ({"a": "1"}, [SPAWNED])


def test_a_message_in_several_parts_counts_only_once_the_last_has_come(tmp_path: Path, listener: socket.socket) -> None:
    """Its supervisor may be killed in between: the next one finds the state before it."""
    with listener:
        path = tmp_path / "kept"
        reconnect = SupervisorReconnect(
            SpawnerSettings("j", ("t.py",), return_fd=listener.fileno(), keep_path=str(path))
        )
        listen(listener.fileno())
        reconnect.note(READY)
        reconnect.keep(link.Keep({"a": "1", "b": "1"}, 0))
        reconnect.keep(link.Keep({"a": "2"}, 1, more=True))
        reconnect.save()
        assert json.loads(path.read_bytes()) == {
            "texts": {"a": "1", "b": "1"}, "taken": 0, "reports": [link.encode(READY).decode()], "cgroup": ""
        }  # fmt: skip
        assert returned(reconnect, tmp_path) == ({"a": "1", "b": "1"}, [READY])
        reconnect.keep(link.Keep({"b": "3"}, 1))
        assert returned(reconnect, tmp_path) == ({"a": "1", "b": "3"}, [])
        reconnect.keep(link.Keep({"a": "4"}, 1, more=True))
        reconnect.keep(link.Keep({"b": "4"}, 1))
        assert returned(reconnect, tmp_path) == ({"a": "4", "b": "4"}, [])


def test_values_that_a_script_has_set_are_in_no_file_but_reach_the_next_supervisor(
    tmp_path: Path, listener: socket.socket
) -> None:
    with listener:
        path = tmp_path / "kept"
        reconnect = SupervisorReconnect(
            SpawnerSettings("j", ("t.py",), return_fd=listener.fileno(), keep_path=str(path))
        )
        listen(listener.fileno())
        learned = link.Learned(("TOKEN=s3cret", "torch"), ("/lib",), "every worker imports torch")
        for report in (READY, learned, SPAWNED):
            reconnect.note(report)
        reconnect.keep(link.Keep({"a": "1"}, 0))
        reconnect.save()
        assert "s3cret" not in path.read_text()
        kept = [link.decode(report.encode()) for report in json.loads(path.read_bytes())["reports"]]
        assert kept == [READY, learned._replace(steps=()), SPAWNED]
        assert returned(reconnect, tmp_path) == ({"a": "1"}, [READY, learned, SPAWNED])


def test_what_was_learned_is_told_to_each_supervisor(tmp_path: Path, listener: socket.socket) -> None:
    """The process that was loading it has ended with the supervisor before."""
    with listener:
        reconnect = SupervisorReconnect(SpawnerSettings("j", ("t.py",), return_fd=listener.fileno()))
        listen(listener.fileno())
        learned = link.Learned(("torch",), ("/lib",), "every worker imports torch")
        for report in (READY, learned, link.Learned((), (), "nothing more is loaded ahead")):
            reconnect.note(report)
        reconnect.keep(link.Keep({"a": "1"}, 1))
        assert welcomed(reconnect, tmp_path)[0].learned is None, "it is among the reports"
        reconnect.keep(link.Keep({}, 3))
        for _ in range(2):
            assert welcomed(reconnect, tmp_path)[0].learned == learned
