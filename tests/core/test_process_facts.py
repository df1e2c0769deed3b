"""Does each tool see the same frame, written as people write it?"""

from __future__ import annotations

from supervisor.core.process_facts import Frame


def test_a_frame_has_its_place_and_its_words() -> None:
    said_by_py_spy, said_by_itself = Frame("/app/data.py", "Loader.load", 8), Frame("/app/data.py", "load", 8)
    assert said_by_py_spy.place == said_by_itself.place
    assert str(said_by_itself) == "load (data.py:8)"
