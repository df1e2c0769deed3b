"""Do docstrings open with a verb, and do sources and documents avoid phrases that readers have stumbled over?

A function's first word says what it does: Returns, Sends, Waits. A property may name what it is instead. The docstring
of an `__init__` may describe its parameters alone.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import pages

ROOT = Path(__file__).parent.parent
SOURCES = [
    path
    for folder in ("supervisor", "worker_client")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.stem.endswith("_pb2")
]
VERB = re.compile(r"[A-Z][a-z]*s\b")
NO_VERBS = {"This", "Its", "As", "Always", "Perhaps", "Connections", "Nodes", "Ranks", "Jobs", "Events", "Lines"}
# Each with what to say instead.
PHRASES = {
    r"(?<!here )\b(is|are|was) no (?!longer\b|more\b)": "is not a",
    r"\b(stands?|stood|standing) still\b": "is stalled, stops, makes no progress",
    r"\b(tak|us)(es?|ing) (a|one|no|two) units?\b|\bunits? of the (restart )?budget\b": "uses one restart",
    r"\bfor ever\b": "indefinitely",
    r"(?<!`)\banew\b": "again",
    r"\bwho is asked\b": "queries",
    r"\b[Ww]hoever\b": "the one who, all who",
}


def _functions(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            yield node, text


def _opens_with_verb(text: str) -> bool:
    found = VERB.match(text)
    return found is not None and found[0] not in NO_VERBS


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id.endswith("property") for each in node.decorator_list)


def test_a_function_s_docstring_opens_with_a_verb() -> None:
    seen = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", text.splitlines()[0])
        for path in SOURCES
        for node, text in _functions(path)
        if node.name != "__init__" and not _is_property(node)
    ]
    assert len(seen) > 2000
    wrong = [each for each in seen if not _opens_with_verb(each[1])]
    assert not wrong, "\n".join(map(str, wrong))


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields each comment, docstring and text of a source, in one line, with where it begins."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], " ".join(token.string.split())


def _said(text: str) -> Iterator[str]:
    """Yields the phrases in comments and texts, each with its line and what to say instead."""
    found = [phrase for phrase in PHRASES if re.search(phrase, " ".join(text.split()))]
    for line, prose in _prose(text) if found else ():
        yield from (f"{line}: say {PHRASES[each]!r}: {prose[:150]}" for each in found if re.search(each, prose))


def test_no_source_has_a_phrase_that_readers_stumble_over() -> None:
    found = [f"{path.relative_to(ROOT)}:{each}" for path in SOURCES for each in _said(path.read_text())]
    assert not found, "\n".join(found)


def test_no_document_has_one() -> None:
    texts = {page: " ".join(re.sub(r"`[^`]*`", "", page.read_text()).split()) for page in pages()}
    found = [
        f"{page.relative_to(ROOT)}: say {instead!r}: {text[max(0, match.start() - 60) : match.end() + 60]}"
        for page, text in texts.items()
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, text)
    ]
    assert len(texts) > 80
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["# It stands still.", '"""It is no error."""', '"""It takes\n    one unit."""', 'why = f"{path} is no text"'],
)
def test_a_phrase_is_found(text: str) -> None:
    assert [*_said(text)]


@pytest.mark.parametrize("text", ["Whether it is so.", "The name.", "`a`: a value.", "This node's.", "Never raises."])
def test_what_does_not_open_with_a_verb_is_found(text: str) -> None:
    assert not _opens_with_verb(text)
