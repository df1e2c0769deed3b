"""What opens above the live view: a text to read, or a question before an action?"""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static


class Page(ModalScreen[None]):
    """A text that fills the terminal, scrolled by the arrow keys. It may come later: `fill`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
        Binding("home,g", "to_start", "Start"),
        Binding("end,G", "to_end", "End"),
    ]

    def __init__(self, title: str, text: str, *, at_end: bool = False) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._at_end = at_end

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, no_wrap=True), id="head")
        with VerticalScroll(id="page"):
            yield Static(Text(self._text), id="text")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#page").focus()

    def fill(self, text: str) -> None:
        if not self.is_attached:
            return  # It was closed before the answer came.
        self.query_one("#text", Static).update(Text(text))
        if self._at_end:
            self.call_after_refresh(self.action_to_end)

    def action_to_start(self) -> None:
        self.query_one("#page").scroll_home(animate=False)

    def action_to_end(self) -> None:
        self.query_one("#page").scroll_end(animate=False)


class Question(ModalScreen[bool]):
    """A question that only the key y affirms: a key that was meant for the view must not stop a job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(Text(self._question))
            yield Static(Text("\ny  yes      n  no", style="bold"))

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)
