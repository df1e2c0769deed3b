"""The two screens of the live view: all jobs, and one job with its ranks."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from supervisor.cli.top_view import rows
from supervisor.cli.top_view.job_polling import Look
from supervisor.cli.top_view.screen_contents import AllJobs, Contents, RanksOfJob
from supervisor.cli.top_view.tables import RowsTable
from supervisor.core.printable import one_line
from supervisor.local_time import local_time

FILTER_HINT = "show only rows with these words; Enter keeps, Escape clears"


class Listing(Screen[None]):
    """A head line, a table that can be sorted and filtered, the chosen row's last cell in full, newest events."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("l", "app.ask('output')", "Log"),
        Binding("t", "app.ask('stacks')", "Stacks"),
        Binding("R", "app.ask('restart')", "Restart"),
        Binding("X", "app.ask('stop')", "Stop"),
        Binding("question_mark", "app.keys", "Keys", key_display="?"),
    ]

    def __init__(self, contents: Contents, look: Look, *, colours: bool) -> None:
        super().__init__()
        self._contents = contents
        self._look = look
        self._colours = colours
        self._is_ready = False
        self._order = 0
        self._words = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="messages")
        opens = isinstance(self._contents, AllJobs)
        yield RowsTable(self._contents.heads, name="rows", colours=self._colours, opens=opens)
        yield Static(id="checkpoints")
        yield Static(id="detail")
        yield Static(id="events")
        yield Input(placeholder=FILTER_HINT, id="filter", compact=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.table.focus()
        self._is_ready = True
        self.show(self._look)

    @property
    def table(self) -> RowsTable:
        return self.query_one("#rows", RowsTable)

    @property
    def job_id(self) -> str:
        """Returns the job that a key is meant for, "" for none."""
        if isinstance(self._contents, RanksOfJob):
            return self._contents.job_id
        row = self.table.chosen_row
        return "" if row is None or row.is_earlier else row.key

    @property
    def rank(self) -> int | None:
        """Returns the rank that a key is meant for; None for all."""
        return int(self.table.chosen) if isinstance(self._contents, RanksOfJob) and self.table.chosen else None

    def show(self, look: Look) -> None:
        """Brings a newer look onto the screen."""
        self._look = look
        if not self._is_ready:
            return
        self.table.show(rows.fitting(self._contents.rows(look, self._order), self._words))
        self.query_one("#head", Static).update(Text(self._head(look), no_wrap=True, overflow="ellipsis"))
        messages = self.query_one("#messages", Static)
        messages.display = bool(look.messages)
        messages.update(Text("\n".join(map(one_line, look.messages))))
        line = self._contents.checkpoints(look)
        checkpoints = self.query_one("#checkpoints", Static)
        checkpoints.display = bool(line)
        checkpoints.update(Text(line, no_wrap=True, overflow="ellipsis"))
        self._show_events()
        self._show_detail()

    def _head(self, look: Look) -> str:
        clock = local_time(look.at_ns)[11:19] if look.at_ns else "asking …"
        chosen = f"by {self._contents.orders[self._order]}" + (f", with {self._words!r}" if self._words else "")
        return f" {clock}  {self._contents.title(look)}, {chosen}"

    def _show_events(self) -> None:
        events = self.query_one("#events", Static)
        newest = self._contents.events(self._look)[-max(events.size.height, 1) :]
        events.update(Text("\n".join(newest), no_wrap=True, overflow="ellipsis"))

    def _show_detail(self) -> None:
        """Shows the last column in full: the table cuts it at the terminal's edge."""
        row = self.table.chosen_row
        self.query_one("#detail", Static).update(
            Text(f"{row.cells[0]}: {row.cells[-1]}" if row and row.cells[-1] else "")
        )

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._show_detail()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_events)

    def action_sort(self) -> None:
        self._order = (self._order + 1) % len(self._contents.orders)
        self.show(self._look)

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self.show(self._look)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._leave_filter()

    def action_back(self) -> None:
        """Leaves the filter first, then the screen."""
        field = self.query_one("#filter", Input)
        if field.display or self._words:
            field.value = ""
            self._leave_filter()
        elif isinstance(self._contents, RanksOfJob):
            self.dismiss()

    def _leave_filter(self) -> None:
        self.query_one("#filter").display = False
        self.table.focus()


class Jobs(Listing):
    """All jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "app.ended", "Ended"),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self, look: Look, *, colours: bool) -> None:
        super().__init__(AllJobs(), look, colours=colours)


class OneJob(Listing):
    """One job with its ranks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "app.nodes", "Nodes"),
        Binding("escape", "back", "Back"),
    ]

    def __init__(self, job_id: str, look: Look, *, colours: bool) -> None:
        self.ranks = RanksOfJob(job_id)
        super().__init__(self.ranks, look, colours=colours)
