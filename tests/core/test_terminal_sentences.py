"""What does a terminal show of an event's sentence?"""

from supervisor.core.terminal_sentences import addition, terminal_sentence


def test_what_was_just_told_is_not_told_again() -> None:
    assert addition("rank 1 failed; restarting at once", "rank 1 failed") == "restarting at once"
    assert addition("rank 1 failed; restarting at once", "rank 2 failed") == "rank 1 failed; restarting at once"
    assert addition("rank 1 failed", "rank 1 failed") == "rank 1 failed"
    assert addition("; x", "") == "; x"


def test_the_end_of_a_job_does_not_repeat_the_failure_that_was_just_told() -> None:
    ended = "rank 1 failed; restarts used 0 of 0"
    assert terminal_sentence(ended, "rank 1 failed", is_loss=True) == "the job ends: restarts used 0 of 0"
    assert terminal_sentence(ended, "rank 2 failed", is_loss=True) == ended
    assert (
        terminal_sentence("rank 1 failed; restarting at once", "rank 1 failed", is_loss=False) == "restarting at once"
    )


def test_a_line_that_begins_with_the_program_s_name_does_not_repeat_it() -> None:
    asked = "holdfast stop by kim: rank 0 has 30 s to end"
    assert terminal_sentence(asked, "", is_loss=False) == "stop by kim: rank 0 has 30 s to end"
    assert terminal_sentence(f"{asked}; rank 1, too", asked, is_loss=False) == "rank 1, too"
