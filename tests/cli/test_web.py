"""Does `holdfast web` show jobs live in a browser, only to users with the token, and change nothing?"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import pytest
from playwright.sync_api import expect

from supervisor.core.facts import JobState
from tests.cli.supervised import Home
from tests.cli.test_report import recorded
from tests.edges.operators.fake_job_service import running
from tests.report.browser import Opened, chromium
from tests.report.timeline.jobs import BEGAN_NS, killed_and_hung

JOB = "train-7f3a"
UNFOLLOWED = """() => {
    for (const look of looks.values()) {
        Object.assign(look, { is_followed: false, jobs_followed: 64 });
        announce(undefined, { ...look }, undefined); // of a job whose document could not be shown
    }
}"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


class Web:
    """A running `holdfast web`."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self.process: Popen[str] = home.start("web", "--listen", "127.0.0.1:0", *arguments)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.process.communicate(timeout=20)
        self.root, _, self.token = self.address.partition("/#token=")

    def get(self, path: str, *, token: str | None = None, method: str = "GET") -> HTTPResponse:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        return urllib.request.urlopen(
            urllib.request.Request(self.root + path, headers=headers, method=method), timeout=30
        )

    def refusal(self, path: str, *, token: str | None = None, method: str = "GET") -> tuple[int, str]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.get(path, token=token, method=method)
        with refused.value as answer:
            return answer.code, answer.read().decode()

    def fate(self) -> str:
        """Describes what has become of the process, for a test that gets no answer."""
        try:
            _, err = self.process.communicate(timeout=2)
        except TimeoutExpired:
            return "holdfast web runs"
        return f"holdfast web has ended with {self.process.returncode}: {err}"

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=20)
        assert (self.process.returncode, out, err) == (0, "", ""), err


def updates(stream: HTTPResponse) -> dict[str, Any]:
    """Returns the next message of the stream."""
    for line in stream:
        if line.startswith(b"data: "):
            return json.loads(line[6:])
    raise AssertionError("the stream has ended")


def test_events_are_pushed_to_those_who_have_the_token(home: Home) -> None:
    with home.supervisor(running()) as supervisor:
        web = Web(home)
        for path in ("/stream", f"/report/{JOB}"):
            assert web.refusal(path, token="wrong")[0] == 401
        assert web.refusal("/session", token="wrong", method="POST")[0] == 401
        assert web.refusal("/", method="POST")[0] == 405
        with web.get("/stream") as stream:
            told = updates(stream)
            while not any(job["is_live"] for job in told["jobs"].values()):
                told = updates(stream)
            (name,) = told["order"]
            assert told["jobs"][name]["rank_states"] == {"running": 4}
            supervisor.tell(f"publish {JOB}")
            supervisor.tell(f"end {JOB}")
            while told["jobs"].get(name, {}).get("is_live", True):
                told = updates(stream)
            assert JobState(told["jobs"][name]["state"]).has_ended
        page = web.get(f"/report/{JOB}").read().decode()
        assert page.startswith("<!DOCTYPE html>")
        assert "hunter2" not in page + json.dumps(told)
        assert web.refusal("/report/other")[0] == 404
        web.end()


def test_in_a_browser(home: Home) -> None:
    recorded(home, killed_and_hung())
    web = Web(home)
    with chromium() as browser:
        shown = Opened(browser, web.address)
        page = shown.page
        page.get_by_role("heading", name="job", exact=True).wait_for()
        assert page.url == f"{web.root}/"
        assert shown.page.context.cookies() == []
        assert web.token not in page.evaluate("JSON.stringify(sessionStorage) + JSON.stringify(history.state)")
        assert page.locator("#link").text_content() == "live"
        assert shown.violations() == []
        with home.supervisor(running()) as supervisor:
            page.get_by_role("heading", name=JOB).wait_for()  # it has appeared by itself
            page.locator(f'article:first-child[aria-label="Job {JOB}"]').wait_for()  # live jobs come first
            assert page.locator("article button").count() == 0
            supervisor.tell(f"end {JOB}")
            page.locator(f'article[aria-label="Job {JOB}"] .state:not(.running)').wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert shown.complaints == []
        page.get_by_role("link", name="Report on job", exact=True).click()
        page.get_by_role("heading", name="Incidents", exact=True).wait_for()
        assert shown.complaints == []
        shown.close()
    web.end()


def test_a_link_to_the_report_is_beside_the_run_that_it_leads_to(home: Home) -> None:
    """The report of a name is that of its newest run."""
    recorded(home, killed_and_hung())
    with home.supervisor(running("job", submitted_at_ns=BEGAN_NS + 10**12)), chromium() as browser:
        web = Web(home)
        shown = Opened(browser, web.address)
        page = shown.page
        page.locator("article:nth-child(2) .state.succeeded").wait_for()
        page.locator("article:nth-child(1) .state.running").wait_for()
        link = page.get_by_role("link", name="Report on job", exact=True)
        expect(link).to_have_count(1)
        expect(page.locator("article:nth-child(1)").get_by_role("link")).to_have_count(1)
        assert shown.complaints == []
        shown.close()
        web.end()


@pytest.mark.alone
def test_a_silent_rank_stands_out_and_its_age_advances(home: Home) -> None:
    with home.supervisor(running()) as supervisor, chromium() as browser:
        web = Web(home)
        shown = Opened(browser, web.address)
        page, keys = shown.page, shown.page.keyboard
        page.get_by_text("section step of rank 0, 0.5 s of 3 s").wait_for()
        summary = page.locator(".ranks summary")
        while not summary.evaluate("each => each === document.activeElement"):
            keys.press("Tab")
        keys.press("Enter")
        row = page.locator('tr[data-rank="2"]')
        row.get_by_text("0.3 s of 45 s").wait_for()
        assert page.locator(".urgent").count() == 0
        supervisor.tell(f"silence {JOB}")  # No event tells of it.
        row.get_by_text("30 s of 45 s ▲ over half of its limit").wait_for()
        assert page.locator("tr.urgent").count() == 1
        page.locator(".silence").get_by_text("rank 2, 3").wait_for()
        assert page.locator("#alert").text_content() == f"rank 2 of job {JOB}: over half of its limit, 30 s of 45 s"
        row.get_by_text("31 s of 45 s").wait_for()  # Rank 2 was asked every two seconds, and is always 30 s silent.
        assert page.locator('tr[data-rank="0"]').get_by_text("0.3 s of 45 s").count() == 1  # One that beats has no age.
        assert summary.evaluate("each => each === document.activeElement")
        assert shown.violations() == []
        page.clock.install()  # axe would take ten seconds with it.
        page.reload()
        page.locator(".silence").get_by_text("rank 2, 3").wait_for()
        supervisor.process.send_signal(signal.SIGSTOP)
        try:
            page.clock.fast_forward(15_000)
            page.locator(".silence").get_by_text("its supervisor has not answered since").wait_for()
            page.evaluate(UNFOLLOWED)
            told = f"the page follows 64 other jobs, and not this one; holdfast top {JOB} shows it"
            page.locator(".silence").get_by_text(told).wait_for()
        finally:
            supervisor.process.send_signal(signal.SIGCONT)
        page.locator(".silence").get_by_text("rank 2, 3").wait_for()
        supervisor.tell(f"end {JOB}")
        page.locator(".ranks").wait_for(state="hidden")
        assert shown.complaints == []
        shown.close()
        web.end()


def test_a_hidden_page_asks_for_nothing(home: Home) -> None:
    with home.supervisor(running()) as supervisor, chromium() as browser:
        web = Web(home)
        shown = Opened(browser, web.address)
        page = shown.page
        page.get_by_role("heading", name=JOB).wait_for()
        turn = """hidden => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(turn, True)
        assert page.locator("#link").text_content() == "paused while the page is hidden"
        supervisor.tell(f"end {JOB}")
        page.evaluate(turn, False)
        page.locator(".state:not(.running)").wait_for()
        assert page.locator("#link").text_content() == "live"
        assert shown.complaints == []
        shown.close()
        web.end()


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("short", 0o600, "it is not one word of 16 characters or more"),
        ("0123456789abcdef", 0o644, "others may read it; run chmod 600"),
        (None, 0o600, "No such file or directory; check the file"),
    ],
)
def test_a_token_that_is_none(home: Home, text: str | None, mode: int, why: str) -> None:
    path = home.root / "token"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    done = home.holdfast("web", "--token-file", str(path))
    assert done.code == 78
    assert why in done.err


def test_a_token_that_is_a_pipe_is_not_waited_for(home: Home) -> None:
    path = home.root / "token"
    os.mkfifo(path, 0o600)
    done = home.holdfast("web", "--token-file", str(path))
    assert (done.code, "it is a pipe, not a regular file; check the file" in done.err) == (78, True), done.err


def test_a_token_of_ones_own_and_an_address_in_use(home: Home) -> None:
    path = home.root / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    web = Web(home, "--token-file", str(path))
    assert web.token == "0123456789abcdef"
    port = web.root.rpartition(":")[2]
    done = home.holdfast("web", "--listen", f"127.0.0.1:{port}")
    assert done.code == 78
    assert "Address already in use; name another address with --listen" in done.err
    web.end()
