"""Are the last words of a report those of the culprit, without secrets, those of the job's own environment too?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from supervisor.cli import report_last_output
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.report.timeline.timeline import Outcome
from supervisor.report.timeline.timeline_builder import life_of
from tests.report.timeline.jobs import BEGAN_NS, killed_and_hung

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----"


def test_they_are_hidden_before_anything_is_cut() -> None:
    text = f"{KEY}\nrefused: s0meV4lue\n{'x' * 480} hf_abcdefgh1jklmnopqrstuvwxyz1234\n"
    lines = report_last_output.last_lines([LogPiece(1, 2, True, text.encode())], ("s0meV4lue",))
    assert lines[:2] == ("***", "refused: ***")
    assert "hf_" not in lines[2]


def test_lines_that_a_rank_printed_after_a_restart_inside_the_processes_are_not_quoted() -> None:
    """A rank, or the process that replaces it, goes on in the same files."""
    asked: list[LogChoice] = []

    def read(choice: LogChoice) -> Iterator[LogPiece]:
        asked.append(choice)
        yield LogPiece(choice.cycle or 0, choice.rank or 0, True, b"step 1000\n")

    job = killed_and_hung()
    life = life_of(job.report(), job.events, now_ns=BEGAN_NS + 10**12)
    first, second = life.incidents
    inside = msgspec.structs.replace(first, outcome=Outcome.INSIDE, culprits=(2,))
    told = report_last_output.with_last_words(msgspec.structs.replace(life, incidents=(inside, second)), read)
    (said,) = told.incidents[0].last_words
    assert said.lines == ()
    assert said.note.endswith(f"holdfast logs job --rank 2 --cycle {first.cycle} shows them")
    assert [words.lines for words in told.incidents[1].last_words] == [("step 1000",)]
    assert [choice.cycle for choice in asked] == [second.cycle]
