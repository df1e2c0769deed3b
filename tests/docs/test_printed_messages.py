"""Is each message that the documents show one that Holdfast prints?

A message counts as ours if texts of the sources cover all of its words but values: numbers, files, names of ranks and
nodes. A text with values in it (an f-string) covers words by its constant parts, in their order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.pages import ROOT, Block, blocks, pages, spans

EXCERPTS = ("docs/troubleshooting.md", "docs/preload.md")  # quote parts of messages
HOLE = "\0"
LETTERS_MIN = 5  # of a text; shorter ones would cover any message
EXCERPT_MIN = 8  # characters of a message between two values, where it quotes a part of a longer one
# Tell of changes and reasons, not of what is printed.
HISTORY = ("docs/decisions/", "docs/architecture/", "docs/reference/commands.md")
# What the examples call their functions, jobs, people, nodes and reasons; units and short words that code joins texts
# with; heads of tables that are in capitals, or Slurm's.
_NAMES = (
    "first second fourth night-7 kim fan uploader upload train load load_batch all_reduce backward forward <module>"
    " train.py data.py step n1 node1 node2 node3 vm n m x file name uid root holdfast sigkill sigstop"
    " running active lost now"
)
_WORDS = (
    "new loss job node rank write s ms of ago user timestamp nodelist cannot why remedy"
    " is has it and in pid end python runs days most done"
)
NAMES = frozenset(_NAMES.split())
VALUES = NAMES | frozenset(_WORDS.split())
# Phrases that code joins from several texts, or that are not Holdfast's, with * for each value.
COMPOSED = frozenset(
    (
        "rank * is stopped",
        "ranks * and * wait for it in *",
        "rank * sent no heartbeat for *",
        "rank * is in *",
        "while * ranks wait in *",
        "while rank * waits in *",
        "rank * holds the gil in *",
        "rank * executed no python code for *",
        "output of rank *",
        "rank * has * left to end",
        "thread * in *",
        "* runs of * days",
        "* nodes with * spares",
        "* times the median of * ranks",
        "another signal kills it at once",
        "cannot end pid *",
        "of job *",
        "rank * on node * is slow in section *",
        "the client of rank *",
        "job job restarts",
        "no rank has sent a heartbeat within * of its start",
        "--ft-rank-heartbeat-timeout finds no hang",
    )
)
AROUND = "();:,."  # a word
ELIDED = re.compile(r"\s*…\s*|\b(?:N|M|NAME|FILE)\b")  # in a quotation: for values, or for a part that is left out
SUBJECT = "rank N "  # of sentences whose text in the sources begins with the verb
VALUE = re.compile(r"[^a-z]*|.*\d.*|.*[/…].*|'.*'")


@cache
def _texts() -> tuple[str, ...]:
    """Returns the texts of the sources, docstrings left out, with a hole for each value."""
    sources = [
        path.read_text() for name in ("supervisor", "worker_client", "deploy") for path in (ROOT / name).rglob("*.py")
    ]
    sources += ["\n".join(block.lines) for block in blocks("python") if block.page.startswith("docs/tutorial")]
    found: set[str] = set()
    for source in sources:
        tree = ast.parse(source)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else HOLE for each in node.values)
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found.add(re.sub(r"\{[^}]*\}", HOLE, node.value))
    lines = {line.strip().lower() for text in found for line in text.splitlines()}
    return tuple(line for line in lines if sum(each.isalpha() for each in line) >= LETTERS_MIN)


@cache
def _all_texts() -> str:
    return "\n".join(_texts())


def _covered(message: str) -> set[int]:
    """Returns the positions of the message that texts of the sources cover."""
    covered: set[int] = set()
    for found in re.finditer(r"(?:(?![A-Z_]+\b)[^…\d])+", message):
        excerpt = found[0].strip().lower()
        if len(excerpt) >= EXCERPT_MIN and excerpt in _all_texts():
            covered.update(range(*found.span()))
    message = message.lower()
    for text in _texts():
        parts = [part for part in text.split(HOLE) if part.strip()]
        if not all(part in message for part in parts):
            continue
        for found in re.finditer("(.*?)".join(f"({re.escape(part)})" for part in parts), message):
            for number in range(1, len(parts) * 2, 2):
                covered.update(range(*found.span(number)))
    return covered


def _unknown(message: str) -> list[str]:
    """Returns the words of a message that are neither a value nor printed by Holdfast."""
    covered = _covered(message)
    return [
        found[0]
        for found in re.finditer(r'[^\s"{}]+', message.lower())
        if not covered.issuperset(range(*found.span()))
        and found[0].strip(AROUND) not in VALUES
        and VALUE.fullmatch(found[0].strip(AROUND)) is None
    ]


def _phrases(message: str) -> Iterator[str]:
    """Yields what stands between marks and gaps, with * for each value."""
    for part in re.split(r"[;:,.]+(?:\s|$)|[()\"{}]|\s{2,}", message.lower()):
        words: list[str] = []
        for word in part.split():
            is_value = HOLE in word or word in NAMES or VALUE.fullmatch(word) is not None
            if not (words and words[-1] == "*" and (is_value or word in ("s", "ms", "%"))):
                words.append("*" if is_value else word)
        yield " ".join(words)


@cache
def _all_phrases() -> frozenset[str]:
    # A value that touches a word may be empty.
    return frozenset(each for text in _texts() for each in _phrases(re.sub(rf"(?<=[a-z]){HOLE}(?=\W|$)", "", text)))


def _unknown_phrases(message: str) -> list[str]:
    """Returns the phrases of two words or more, values left out, that no text of the sources has as a whole."""
    return [
        each
        for each in _phrases(message)
        if len(each.replace("*", "").split()) > 1 and each not in COMPOSED and each not in _all_phrases()
    ]


def _is_in_one_text(quotation: str) -> bool:
    """Returns whether a single text of the sources has all of its words, next to each other and in this order."""
    parts = ELIDED.split(quotation.removeprefix(SUBJECT))
    pattern = re.compile(".*".join(re.escape(part.lower()) for part in parts))
    return any(pattern.search(text) for text in _texts())


def _quotations() -> list[tuple[str, str]]:
    """Returns each message that troubleshooting.md quotes in a sentence or a table, with its place."""
    return [(place, message) for place, message in _shown() if place.startswith("docs/troubleshooting.md:")]


def _printed(block: Block) -> Iterator[str]:
    console = block.language == "console"
    yield from (line for line in block.lines if line.strip() and not (console and line.startswith("$ ")))


def _shown() -> list[tuple[str, str]]:
    """Returns each message that a document shows, with its place."""
    shown = [
        (f"{block.page}:{block.line}", line)
        for block in blocks("text", "console")
        if not block.page.startswith(HISTORY)
        for line in _printed(block)
    ]
    shown += [
        (f"{span.page}:{span.line}", span.text)
        for span in spans()
        if span.page in ("docs/troubleshooting.md", "docs/preload.md")
        and " " in span.text
        and not re.match(r"holdfast |--|pip |systemctl |journalctl |import |if |os[.]", span.text)
    ]
    for page in pages():
        name = str(page.relative_to(ROOT))
        text = re.sub(r"`[^`]*`|^\s*```.*?^\s*```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        quoted = re.findall(r'(?<!\S)[(]?"([^"\s][^"]* [^"]* [^"]*[^"\s])"', text)
        shown += [(name, " ".join(each.split())) for each in quoted if not name.startswith(HISTORY)]
    return shown


def test_each_message_is_one_that_holdfast_prints() -> None:
    shown = _shown()
    wrong = [(place, message, unknown) for place, message in shown if (unknown := _unknown(message))]
    assert len(shown) > 60
    assert not wrong, "\n".join(map(str, wrong))


def test_each_phrase_of_what_is_shown_is_a_whole_one_of_the_sources() -> None:
    """A word that other texts have is missed here, if a document has lost or gained it."""
    wrong = [
        (place, message, unknown)
        for place, message in _shown()
        if not place.startswith(EXCERPTS)
        if (unknown := _unknown_phrases(message))
    ]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(
    "message",
    [
        "holdfast: restarting once, restarts used 1 of 3",
        "holdfast: node node3 takes new jobs",
        "holdfast: first sign the script after 2.41 s: output of rank 0",
    ],
)
def test_a_phrase_that_has_lost_a_word_is_noticed(message: str) -> None:
    assert _unknown_phrases(message)


def test_what_people_search_for_is_printed_word_for_word() -> None:
    """Other texts may cover a word that a message has lost; here they do not count."""
    quotations = _quotations()
    assert len(quotations) > 15
    assert not [each for each in quotations if not _is_in_one_text(each[1])]


@pytest.mark.parametrize(
    "quotation",
    [
        "no supervisor is still running",
        "rank N sent quite no heartbeat for … (limit …)",
        "cannot serve a store …, on …",
    ],
)
def test_a_word_more_than_the_message_has_is_noticed(quotation: str) -> None:
    assert not _is_in_one_text(quotation)


@pytest.mark.parametrize(
    "message", ["rank 3 was eaten by wolves", "holdfast: restarting at leisure, restarts used 1 of 3"]
)
def test_a_message_that_nobody_prints_is_found(message: str) -> None:
    assert _unknown(message)
