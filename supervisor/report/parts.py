"""How is each part of the page written? Everything that comes from a job is escaped here, in one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from supervisor.report import words


def text(value: str) -> str:
    """Returns a job's text as HTML: without control characters, and never markup."""
    return escape(words.plain(value), quote=True)


def lines(value: Iterable[str]) -> str:
    """Returns several lines for a <pre>."""
    return "\n".join(text(line) for line in value)


def element(name: str, inside: str, **attributes: str) -> str:
    """Returns an element. `inside` is HTML; attribute values are text. A trailing _ of a name is dropped: class_."""
    told = "".join(f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    return f"<{name}{told}>{inside}</{name}>"


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, number_columns: Sequence[int] = ()
) -> str:
    """Returns a table in a box that scrolls on a narrow screen. Cells are HTML; the first of a row is its head."""
    head = "".join(f'<th scope="col"{_number(at, number_columns)}>{text(each)}</th>' for at, each in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cells(row, number_columns))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table><caption>{text(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], number_columns: Sequence[int]) -> Iterator[str]:
    for at, cell in enumerate(row):
        kind = _number(at, number_columns)
        yield f'<th scope="row"{kind}>{cell}</th>' if at == 0 else f"<td{kind}>{cell}</td>"


def _number(at: int, number_columns: Sequence[int]) -> str:
    return ' class="number"' if at in number_columns else ""


def details(summary: str, inside: str, *, is_open: bool = False, name: str = "") -> str:
    """Returns a part that opens and closes. `summary` and `inside` are HTML."""
    told = f' id="{text(name)}"' if name else ""
    return f"<details{told}{' open' if is_open else ''}><summary>{summary}</summary>{inside}</details>"


def key(look: str) -> str:
    """Returns a small box in the colour of a kind of bar."""
    return (
        f'<svg class="key" viewBox="0 0 12 12" aria-hidden="true"><rect class="{look}" width="12" height="12"/></svg>'
    )


def section(name: str, title: str, inside: str) -> str:
    """Returns a part of the page with a heading; "" if there is nothing inside."""
    if not inside:
        return ""
    head = f'<h2 id="{name}-title">{text(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{inside}</section>'
