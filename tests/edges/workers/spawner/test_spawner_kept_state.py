"""What is sent to a spawner to keep? The changes, with the number of reports that they include."""

from __future__ import annotations

import json

from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX

from supervisor.edges.workers.spawner.spawner_kept_state import STATE, WORKERS, SpawnerKeptState

SPAWNED = wire.Spawned(0, 1, 77, 0, "fork")
EXITED = wire.Exited(0, 1, 77, 0, None, False, False, 0)
KILL = wire.KillTree(0)


def test_only_what_has_changed_is_sent_with_the_orders_in_one_message() -> None:
    keeping = SpawnerKeptState()
    keeping.turn({"a": "1", "b": "1"})
    assert keeping.message((KILL,)) == (wire.Keep({"a": "1", "b": "1", WORKERS: "[]"}, 0, (KILL,)), ())
    assert keeping.message(()) == (None, ())
    keeping.turn({"a": "1", "b": "2"})
    assert keeping.message(()) == (wire.Keep({"b": "2"}, 0), ())


def test_a_report_counts_from_the_turn_on_that_follows_it() -> None:
    keeping = SpawnerKeptState()
    keeping.turn({"a": "1"})
    keeping.note(SPAWNED)
    keeping.change({"b": "1"})
    message, _ = keeping.message(())
    assert message is not None
    assert (message.taken, message.texts[WORKERS]) == (0, "[]")
    keeping.turn({"a": "2"})
    message, _ = keeping.message(())
    assert message is not None
    assert (message.taken, json.loads(message.texts[WORKERS])) == (1, [[0, 1, 77]])


def test_the_next_supervisor_goes_on_with_it() -> None:
    keeping = SpawnerKeptState.of({"a": "1", WORKERS: "[[0,1,77]]"}, taken=5)
    assert [*keeping.workers()] == [(0, 1, 77)]
    keeping.note(EXITED)
    keeping.turn({"a": "1"})
    assert keeping.message(()) == (wire.Keep({WORKERS: "[]"}, 6), ())


def test_what_no_frame_holds_is_not_kept_and_the_orders_leave_all_the_same() -> None:
    keeping = SpawnerKeptState()
    keeping.turn({"a": "1", STATE: "x" * SPAWNER_FRAME_BYTES_MAX})
    assert keeping.message((KILL,)) == (wire.Keep({STATE: ""}, 0), (KILL,))
    assert keeping.message((KILL,)) == (None, (KILL,))
    keeping.turn({STATE: "x"})
    assert keeping.message(()) == (wire.Keep({"a": "1", STATE: "x", WORKERS: "[]"}, 0), ())


def test_what_is_not_named_stays_and_an_empty_text_is_removed() -> None:
    keeping = SpawnerKeptState()
    keeping.turn({"a": "1", "b": "1"})
    keeping.message(())
    keeping.turn({"b": "", "c": ""})
    assert keeping.message(()) == (wire.Keep({"b": ""}, 0), ())
    assert keeping.message(()) == (None, ())
    keeping.turn({"a": "2"})
    keeping.turn({"a": "1"})
    assert keeping.message(()) == (None, ())


def test_what_the_previous_supervisor_left_is_removed_unless_it_is_among_all_texts() -> None:
    keeping = SpawnerKeptState.of({"a": "1", "b": "1", WORKERS: "[]"}, taken=0)
    keeping.turn({"a": "1", "c": "1"}, are_all=True)
    assert keeping.message(()) == (wire.Keep({"b": "", "c": "1"}, 0), ())


def test_many_texts_that_no_frame_holds_are_kept_all_the_same() -> None:
    keeping = SpawnerKeptState()
    texts = {str(number): "x" * (SPAWNER_FRAME_BYTES_MAX // 4) for number in range(6)}
    keeping.turn(texts)
    assert keeping.message((KILL,)) == (wire.Keep({**texts, WORKERS: "[]"}, 0, (KILL,)), ())


def test_reports_are_confirmed_to_a_spawner_that_gets_no_texts_any_more_up_to_the_turn_that_has_their_effects() -> None:
    keeping, sent = SpawnerKeptState(), list[wire.Keep]()
    keeping.turn({"a": "1"})
    keeping.note(SPAWNED)
    confirm = keeping.confirmation(sent.append)
    keeping.note(EXITED)
    confirm()
    confirm()
    assert sent == [wire.Keep({}, 1)]
