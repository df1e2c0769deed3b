"""How does the live view run: what refreshes it, and what does each key do?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec
from textual.app import App
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from supervisor.cli.job_owners import who_asks
from supervisor.cli.stacks import stacks_text
from supervisor.cli.top_view.dialogs import Page, Question
from supervisor.cli.top_view.job_polling import JobPoller, Look
from supervisor.cli.top_view.screens import Jobs, Listing, OneJob
from supervisor.core.printable import one_line
from supervisor.edges.operators.control_client import CALL_TIMEOUT_S, ControlClient, bounded
from supervisor.edges.operators.log_follower import LogChoice

Answer = TypeVar("Answer")

LOG_LINES = 200
# The terminal's own colours, and none where it matters: what is chosen is reversed, what is urgent is bold.
STYLE = """
* { background: ansi_default; color: ansi_default; scrollbar-size: 0 1; scrollbar-background: ansi_default;
    scrollbar-color: ansi_default; scrollbar-corner-color: ansi_default; }
#head { height: 1; text-style: reverse; }
#checkpoints { height: 1; }
#head, #checkpoints, #events { text-wrap: nowrap; text-overflow: ellipsis; }
#messages { height: auto; max-height: 3; text-style: bold; }
#rows { height: 1fr; background: ansi_default; }
#rows:focus { background-tint: ansi_default 0%; }
#rows > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold underline; }
#rows > .datatable--cursor, #rows:focus > .datatable--cursor {
    background: ansi_default; color: ansi_default; text-style: reverse; }
#rows > .datatable--hover { background: ansi_default; }
#detail { height: auto; max-height: 2; }
#events { height: 30%; min-height: 3; border-top: ascii ansi_default; }
#filter { border: none; height: 1; }
#page { height: 1fr; }
Footer, FooterKey { background: ansi_default; color: ansi_default; }
FooterKey .footer-key--key, FooterKey .footer-key--description { background: ansi_default; color: ansi_default; }
FooterKey .footer-key--key { text-style: bold reverse; }
Question { align: center middle; }
#question { width: 70%; max-width: 70; height: auto; border: ascii ansi_default; padding: 1 2; }
"""

KEYS = """\
Enter             open the chosen job
Escape            back; first leaves the filter
s                 sort by the next column in turn
/                 filter: show only rows with these words
l  t              the last lines, or the stacks, of the job or the rank
R  X              restart or stop the job, after a question
a                 with jobs: also those that have ended
n                 with ranks: the job's nodes
arrows, g, G      move; to the start, to the end
?                 these keys
q                 quit
"""


class Asked(msgspec.Struct, frozen=True):
    """Something for the supervisor of a job, which returns what people read."""

    verb: str
    job_id: str
    question: Callable[[ControlClient, str], str]


class LiveView(App[None]):
    """Runs until the user presses q. `job_id` names the job that is opened first."""

    ENABLE_COMMAND_PALETTE = False
    CSS = STYLE
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False),
    ]

    def __init__(self, poller: JobPoller, *, interval_s: float, job_id: str = "", colours: bool = True) -> None:
        super().__init__(ansi_color=True)
        self._poller = poller
        self._interval_s = interval_s
        self._first_job_id = job_id
        self._colours = colours
        self._includes_ended = False
        self._is_looking = False
        self._look = Look(0)

    def on_mount(self) -> None:
        self.push_screen(Jobs(self._look, colours=self._colours))
        if self._first_job_id:
            self._open(self._first_job_id)
        self.set_interval(self._interval_s, self._look_again)
        self._look_again()

    def _look_again(self) -> None:
        """Refreshes on a timer, because ages change without events. Asks one question at a time."""
        if not self._is_looking:
            self._is_looking = True
            opened = next((each.job_id for each in self.screen_stack if isinstance(each, OneJob)), "")
            include_ended = self._includes_ended
            self._ask(lambda: self._poller.look(include_ended=include_ended, opened=opened), self._show)

    def _ask(self, question: Callable[[], Answer], show: Callable[[Answer], None]) -> None:
        """Asks in a thread that nobody waits for, so that the user can quit while a supervisor hangs."""

        def ask() -> None:
            answer = question()
            if self.is_running:
                self.call_from_thread(show, answer)

        threading.Thread(target=ask, daemon=True).start()

    def _show(self, look: Look) -> None:
        self._is_looking = False
        self._look = look
        for screen in self.screen_stack:
            if isinstance(screen, Listing):
                screen.show(look)

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        if isinstance(self.screen, Jobs) and self.screen.job_id:
            self._open(self.screen.job_id)

    def _open(self, job_id: str) -> None:
        self.push_screen(OneJob(job_id, self._look, colours=self._colours))

    def action_keys(self) -> None:
        self.push_screen(Page("Keys", KEYS))

    def action_ended(self) -> None:
        self._includes_ended = not self._includes_ended
        self._look_again()

    def action_nodes(self) -> None:
        if isinstance(self.screen, OneJob):
            self.push_screen(Page(f"{self.screen.job_id}: nodes", self.screen.ranks.nodes(self._look)))

    def action_ask(self, what: str) -> None:
        """Shows output or stacks; stops or restarts a job after a question."""
        screen = self.screen
        if not isinstance(screen, Listing) or not screen.job_id:
            return
        job_id, rank = screen.job_id, screen.rank
        of = job_id if rank is None else f"{job_id}, rank {rank}"
        match what:
            case "output":
                asked = Asked("show output of", job_id, lambda client, job: _last_lines(client, job, rank))
                self._ask_page(Page(f"{of}: the last lines", "asking …", at_end=True), asked)
            case "stacks":
                asked = Asked("take stacks of", job_id, lambda client, job: stacks_text(client.stacks(job, rank)))
                self._ask_page(Page(f"{of}: stacks", "asking …"), asked)
            case "stop" | "restart" if ended := self._end_of(job_id):
                self.notify(f"cannot {what} job {job_id}: it has ended ({ended})", markup=False)
            case "stop":
                self._ask_first(f"Stop job {job_id}? Its ranks get SIGTERM.", Asked("stop", job_id, _stop))
            case _:
                self._ask_first(f"Restart all ranks of job {job_id}?", Asked("restart", job_id, _restart))

    def _end_of(self, job_id: str) -> str:
        """Returns how the job has ended; "" if it has not, as far as is known here."""
        runs = [each.report for each in self._look.jobs if each.name == job_id]
        newest = max(runs, key=lambda each: each.submitted_at_ns, default=None)
        return newest.state.value if newest is not None and newest.state.has_ended else ""

    def _ask_page(self, page: Page, asked: Asked) -> None:
        self.push_screen(page)
        self._ask(lambda: self._poller.ask(asked.verb, asked.job_id, asked.question), page.fill)

    def _ask_first(self, text: str, asked: Asked) -> None:
        def on_answer(is_yes: bool | None) -> None:
            if is_yes:
                self._ask(lambda: self._poller.ask(asked.verb, asked.job_id, asked.question), self._tell)

        self.push_screen(Question(text), on_answer)

    def _tell(self, answer: str) -> None:
        self.notify(answer, markup=False)
        self._look_again()


def _last_lines(client: ControlClient, job_id: str, rank: int | None) -> str:
    lines: list[str] = []
    for piece in bounded(client.logs(job_id, LogChoice(rank, None, LOG_LINES), within_s=CALL_TIMEOUT_S)):
        prefix = "" if rank is not None else f"[{piece.rank}] "
        text = piece.data.decode("utf-8", "backslashreplace")
        lines += [prefix + one_line(line) for line in text.splitlines()]
    return "\n".join(lines) or "nothing was printed"


def _stop(client: ControlClient, job_id: str) -> str:
    client.stop(job_id, reason=f"holdfast top by {who_asks()}")
    return f"job {job_id} is being stopped"


def _restart(client: ControlClient, job_id: str) -> str:
    cycle = client.restart(job_id, reason=f"holdfast top by {who_asks()}")
    return f"job {job_id} restarts, cycle {cycle}"
