"""Are exceptions found in lines that several ranks wrote at once?"""

from __future__ import annotations

from supervisor.core.attribution.tracebacks import HEAD, REFUSAL, Tracebacks

OWN = '  File "/job/train.py", line 40, in step'
LIBRARY = '  File "/env/lib/python3.12/site-packages/torch/nn/module.py", line 9, in forward'


def taken(*lines: tuple[int, str]) -> Tracebacks:
    tracebacks = Tracebacks()
    for number, (rank, line) in enumerate(lines, 1):
        tracebacks.take(rank, line, number)
    return tracebacks


def test_lines_of_two_ranks_mixed() -> None:
    found = taken((0, HEAD), (1, HEAD), (0, OWN), (1, OWN), (1, "KeyError: 1"), (0, "a.b.OddError")).raised
    assert (found[0].kind, found[0].message, found[0].line_number) == ("OddError", "", 6)
    assert (found[1].kind, found[1].message, found[1].line_number) == ("KeyError", "1", 5)


def test_the_scripts_own_frame_is_the_place() -> None:
    assert taken((0, HEAD), (0, OWN), (0, LIBRARY), (0, "ValueError: x")).raised[0].place == "train.py:40"
    assert taken((0, HEAD), (0, LIBRARY), (0, "ValueError: x")).raised[0].place == "module.py:9"


def test_numbers_make_no_difference_between_two() -> None:
    first = taken((0, HEAD), (0, OWN), (0, "ValueError: 7 at 0x7f")).raised[0]
    second = taken((3, HEAD), (3, OWN), (3, "ValueError: 12 at 0xff01")).raised[3]
    assert first.signature == second.signature


def test_the_last_of_a_chain_counts() -> None:
    chain = [HEAD, OWN, "KeyError: 'lr'", "", "During handling of the above exception, another exception occurred:", ""]
    found = taken(*((0, line) for line in [*chain, HEAD, OWN, "ValueError: no lr"])).raised[0]
    assert (found.kind, found.message) == ("ValueError", "no lr")


def test_words_that_only_look_like_an_error_are_none() -> None:
    assert taken((0, "ValueError: handled"), (0, "done")).raised == {}
    assert taken((0, HEAD), (0, OWN), (0, "** torn off **")).raised == {}


def test_a_traceback_that_python_ignores_ends_nothing() -> None:
    ignored = [(0, "Exception ignored in: <function Loader.__del__>"), (0, HEAD), (0, OWN), (0, "AssertionError: late")]
    assert taken(*ignored).raised == {}
    assert taken(*ignored, (0, HEAD), (0, OWN), (0, "KeyError: 1")).raised[0].kind == "KeyError"


def test_an_end_without_a_traceback() -> None:
    assert taken((1, "Fatal Python error: Segmentation fault")).raised[1].message == "Segmentation fault"
    assert taken((1, "Fatal Python error: Aborted")).raised == {}  # the earlier message is the reason
    assert taken((0, "train.py: error: unrecognized arguments: --x 8")).raised[0].kind == REFUSAL
    missing = "python: can't open file '/a/train.py': [Errno 2] No such file or directory"
    assert taken((0, missing)).raised[0].kind == "FileNotFoundError"
