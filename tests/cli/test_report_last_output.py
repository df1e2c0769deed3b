"""Are secrets hidden in the last words of a report, those of the job's own environment too?"""

from __future__ import annotations

from supervisor.cli import report_last_output
from supervisor.edges.operators.log_follower import LogPiece

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----"


def test_they_are_hidden_before_anything_is_cut() -> None:
    text = f"{KEY}\nrefused: s0meV4lue\n{'x' * 480} hf_abcdefgh1jklmnopqrstuvwxyz1234\n"
    lines = report_last_output.last_lines([LogPiece(1, 2, True, text.encode())], ("s0meV4lue",))
    assert lines[:2] == ("***", "refused: ***")
    assert "hf_" not in lines[2]
