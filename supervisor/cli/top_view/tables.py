"""How wide are the columns of a table, and how does it stay where the reader is while its rows change?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from supervisor.cli.output import COLOURS
from supervisor.cli.top_view.rows import Row

KEY_SHARE = 3  # The first column gets at most this part of the width: a long job id must not hide all others.
KEY_COLUMNS_MIN = 12
LAST_COLUMNS_MIN = 8
PADDING = 2  # of each column
COLOUR_NAMES = {"31": "red", "32": "green", "33": "yellow", "36": "cyan"}  # of the terminal's own palette


class RowsTable(DataTable[Text]):
    """Keeps cursor and place by the rows' keys. The selected row's key is `chosen`, "" with no rows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home,g", "scroll_top", "Start", show=False),
        Binding("end,G", "scroll_bottom", "End", show=False),
        Binding("enter", "select_cursor", "Open", key_display="\N{RETURN SYMBOL}"),
    ]

    def __init__(self, heads: Sequence[str], *, name: str, colours: bool, opens: bool) -> None:
        """`opens`: whether Enter opens a row."""
        super().__init__(cursor_type="row", zebra_stripes=False, id=name)
        self._heads = tuple(heads)
        self._colours = colours
        self._opens = opens
        self._shown: dict[str, Row] = {}
        self._ends = (0, 0)  # widths of the first and the last column

    def on_mount(self) -> None:
        self._add_columns()

    def _add_columns(self) -> None:
        for head in self._heads:
            self.add_column(Text(head, style="bold"), key=head)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._opens if action == "select_cursor" else super().check_action(action, parameters)

    @property
    def chosen(self) -> str:
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else ""

    @property
    def chosen_row(self) -> Row | None:
        return self._shown.get(self.chosen)

    def show(self, rows: Sequence[Row]) -> None:
        """Replaces the changed cells; the whole table if the order has changed, or the room for the cells."""
        ends = self._fitting(rows)
        if ends == self._ends and [row.key for row in rows] == list(self._shown):
            for row in rows:
                self._change(self._shown[row.key], row)
        else:
            self._ends = ends
            self._replace(rows)
        self._shown = {row.key: row for row in rows}

    def _fitting(self, rows: Sequence[Row]) -> tuple[int, int]:
        """Returns widths of the first and the last column with which the columns between them are seen whole."""
        width = self.screen.size.width
        between = zip(*(row.cells[1:-1] for row in rows), strict=True) if rows else ()
        heads = map(len, self._heads[1:-1])
        widest = [max(head, *map(cell_len, cells)) for head, cells in zip(heads, between, strict=False)]
        room = width - sum(widest) - PADDING * len(self._heads)
        longest = max((cell_len(row.cells[0]) for row in rows), default=0)
        first = min(longest, max(width // KEY_SHARE, KEY_COLUMNS_MIN), max(room - LAST_COLUMNS_MIN, KEY_COLUMNS_MIN))
        return first, max(room - max(first, len(self._heads[0])), LAST_COLUMNS_MIN)

    def _change(self, old: Row, new: Row) -> None:
        if old.urgent != new.urgent:
            self.update_cell(new.key, self._heads[0], self._key(new))
        for head, before, now in list(zip(self._heads, old.cells, self._cells(new), strict=True))[1:]:
            if before != now.plain or old.urgent != new.urgent:
                self.update_cell(new.key, head, now, update_width=True)

    def _replace(self, rows: Sequence[Row]) -> None:
        chosen, place, x, y = self.chosen, self.cursor_row, self.scroll_x, self.scroll_y
        self.clear(columns=True)  # A column never gets narrower than what it once contained.
        self._add_columns()
        for row in rows:
            self.add_row(*self._cells(row), key=row.key)
        keys = [row.key for row in rows]
        if keys:
            self.move_cursor(row=keys.index(chosen) if chosen in keys else min(place, len(keys) - 1), scroll=False)
        self.scroll_to(x, y, animate=False)

    def _cells(self, row: Row) -> list[Text]:
        """Returns the cells, the first and the last without their ends if they are long."""
        shown = [self._text(cell, row.urgent) for cell in row.cells]
        for cell, width in zip((shown[0], shown[-1]), self._ends, strict=True):
            cell.truncate(width, overflow="ellipsis")
        return shown

    def _key(self, row: Row) -> Text:
        """Returns the first cell. It never changes while its row is there."""
        return self._cells(row)[0]

    def _text(self, cell: str, urgent: bool) -> Text:
        colour = COLOUR_NAMES.get(COLOURS.get(cell.partition(" ")[0], "")) if self._colours else None
        return Text(cell, style=" ".join(filter(None, ("bold" if urgent else "", colour or ""))), no_wrap=True)
