"""Can another user's server on the same host see or stop jobs by what a browser sends to it, or by its page?

In a real browser, which is signed in at `holdfast web --control`, and visits a server at another port of the address.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.cli.supervised import Home
from tests.cli.test_web import JOB, Web
from tests.cli.test_web_control import STOP, last_reason, post
from tests.edges.operators.fake_job_service import running
from tests.report.browser import Opened, chromium

RUNS = "all 4 ranks run"
ATTACK = """async (web) => {
  const got = [];
  const attempt = async (name, act) => {
    try { got.push(`${name}: ${await act()}`); } catch (error) { got.push(`${name}: ${error.name}`); }
  };
  const stop = `${web}/job/train-7f3a/stop`;
  const read = async (path, options) => {
    const answer = await fetch(web + path, { credentials: "include", ...options });
    return `${answer.status} ${await answer.text()}`;
  };
  await attempt("stop", () => read("/job/train-7f3a/stop", { method: "POST" }));
  await attempt("blind stop", () => fetch(stop, { method: "POST", credentials: "include", mode: "no-cors" }));
  const headers = { Authorization: "Session x" };
  await attempt("stop with a header", () => read("/job/train-7f3a/stop", { method: "POST", headers }));
  await attempt("sign in", () => read("/session", { method: "POST" }));
  for (const path of ["/", "/stream", "/report/train-7f3a"]) await attempt("read", () => read(path, {}));
  await attempt("form", () => {
    const form = document.createElement("form");
    const frame = document.createElement("iframe");
    frame.name = form.target = "hidden";
    form.method = "post";
    form.action = stop;
    document.body.append(frame, form);
    form.submit();
    return new Promise((resolve) => (frame.onload = () => resolve("sent")));
  });
  await attempt("frame", () => {
    const frame = document.createElement("iframe");
    frame.src = `${web}/`;
    document.body.append(frame);
    return new Promise((resolve) => (frame.onload = () => resolve(`${frame.contentDocument?.body.innerText}`)));
  });
  await attempt("window", () => {
    const opened = window.open(`${web}/`);
    return new Promise((resolve, reject) => setTimeout(() => {
      try { resolve(opened.sessionStorage.length); } catch (error) { reject(error); }
    }, 500));
  });
  await attempt("storage", () => JSON.stringify([document.cookie, { ...sessionStorage }, { ...localStorage }]));
  return got;
}"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


class Stranger:
    """A server of somebody else at a port of the same address; keeps all that it receives."""

    def __init__(self, port: int) -> None:
        received: list[str] = []
        came = self._came = threading.Condition()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with came:
                    received.extend([self.path, *(f"{name}: {value}" for name, value in self.headers.items())])
                    came.notify_all()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!DOCTYPE html><title>stranger</title><link rel=icon href='data:,'><p>hello")

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self.received = received
        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.root = f"http://127.0.0.1:{self.server.server_port}"

    def has_heard(self, text: str) -> bool:
        """Waits for a request that holds this text."""
        with self._came:
            return self._came.wait_for(lambda: any(text in line for line in self.received), 60)


@contextmanager
def stranger(port: int = 0) -> Generator[Stranger]:
    made = Stranger(port)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join(10)


def replay(web: Web, received: list[str]) -> set[int]:
    """Tries to stop the job with everything that was received. Returns the statuses."""
    words = {word for line in received for word in line.replace("=", " ").replace(";", " ").split() if len(word) > 8}
    statuses: set[int] = set()
    for word in words:
        for headers in (
            {"Authorization": f"Bearer {word}"},
            {"Authorization": f"Session {word}", "Origin": web.root, "Sec_Fetch_Site": "same-origin"},
            {"Cookie": f"holdfast_web={word}", "Origin": web.root, "Sec_Fetch_Site": "same-origin"},
        ):
            statuses.add(post(web, STOP, **headers)[0])
    return statuses


def signed_in(page: Page) -> dict[str, object]:
    return json.loads(page.evaluate("sessionStorage.getItem('holdfast-session')"))


def test_a_server_at_another_port_gets_nothing_and_its_page_can_do_nothing(home: Home) -> None:
    with home.supervisor(running()), chromium() as browser, stranger() as other:
        web = Web(home, "--control")
        shown = Opened(browser, web.address)
        page = shown.page
        page.get_by_role("button", name=f"Stop {JOB}").wait_for()
        secret = signed_in(page)["session"]
        visit = page.context.new_page()  # of the same browser, with its cookies
        visit.goto(f"{other.root}/visit")
        told = visit.evaluate(ATTACK, web.root)
        assert len(told) == 11
        assert told.count("read: TypeError") == 3
        assert not any(JOB in each or "hunter2" in each for each in told), told
        page.evaluate("to => { location.href = to; }", f"{other.root}/left")  # the page itself goes there
        page.wait_for_url(f"{other.root}/left")
        assert page.evaluate("sessionStorage.length") == 0
        everything = "\n".join(other.received)
        assert "/visit" in everything
        assert "/left" in everything
        for known in (web.token, str(secret), "Referer: " + web.root + "/", "Cookie"):
            assert known not in everything
        assert replay(web, other.received) <= {401, 403}
        assert last_reason(home) == RUNS
        assert post(web, STOP, Authorization=f"Bearer {web.token}")[0] == 200  # the job could have been stopped
        shown.close()
        web.end()


def test_who_takes_over_the_port_gets_a_session_of_a_dead_process(home: Home) -> None:
    token = home.root / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    with home.supervisor(running()), chromium() as browser:
        web = Web(home, "--control", "--token-file", str(token))
        shown = Opened(browser, web.address)
        page = shown.page
        page.get_by_role("button", name=f"Stop {JOB}").wait_for()
        secret = str(signed_in(page)["session"])
        web.end()
        with stranger(int(web.root.rpartition(":")[2])) as other:
            assert other.has_heard(secret)  # The page connects again by itself.
            assert web.token not in "\n".join(other.received)
        again = Web(home, "--control", "--token-file", str(token))
        assert again.token == web.token
        assert replay(again, other.received) <= {401, 403}
        assert last_reason(home) == RUNS
        shown.close()
        again.end()


def test_the_token_leaves_the_address_and_the_session_serves_tabs_that_the_page_opens(home: Home) -> None:
    with home.supervisor(running()), chromium() as browser:
        web = Web(home)
        shown = Opened(browser, web.address)
        page = shown.page
        page.get_by_role("heading", name=JOB).wait_for()
        assert page.url == f"{web.root}/"
        assert not any("token" in url for url in shown.requests if not url.startswith(f"{web.root}/#"))
        page.reload()
        page.get_by_role("heading", name=JOB).wait_for()
        with page.context.expect_page() as opening:
            page.get_by_role("link", name=f"Report on {JOB}").click(modifiers=["Control"])
        report = opening.value
        report.get_by_role("heading", name=JOB).wait_for()
        assert report.url == f"{web.root}/report/{JOB}"
        report.reload()
        report.get_by_role("heading", name=JOB).wait_for()
        assert shown.complaints == []

        alone = page.context.new_page()  # It has no session, and is not told of any job.
        alone.goto(f"{web.root}/")
        alone.get_by_text("the session has ended; open the address that holdfast web has printed").wait_for()
        assert JOB not in alone.content()
        alone.goto(f"{web.root}/report/{JOB}")
        alone.get_by_text("the session has ended; open the address that holdfast web has printed").wait_for()
        alone.goto(f"{web.root}/#token=wrong")
        alone.get_by_text("the session has ended").wait_for()
        assert alone.url == f"{web.root}/"
        alone.goto(web.address)  # Only what is behind the # changes, so the browser loads nothing.
        alone.get_by_role("heading", name=JOB).wait_for()
        assert alone.url == f"{web.root}/"
        shown.close()
        web.end()


def test_no_path_tells_anything_without_the_token(home: Home) -> None:
    with home.supervisor(running()):
        web = Web(home, "--control")
        for path in ("/", "/site.js", "/session.js", "/ranks.js", "/report.js", f"/report/{JOB}", "/report/none"):
            with urllib.request.urlopen(web.root + path, timeout=30) as answer:
                body = answer.read().decode()
                assert (answer.headers["Set-Cookie"], answer.headers["Referrer-Policy"]) == (None, "no-referrer")
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert JOB not in body
            assert web.token not in body
        for path in ("/stream", f"/?token={web.token}", f"/stream?token={web.token}", f"/report/{JOB}"):
            asked = urllib.request.Request(web.root + path, headers={"Authorization": "Session x", "Cookie": "a=b"})
            with suppress(urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=30) as answer:
                assert (path[:2], answer.headers["Set-Cookie"]) == ("/?", None)
        for path in ("/stream", f"/report/{JOB}"):
            for secret in ("Bearer ", "Bearer wrong", "Session wrong", web.token):
                asked = urllib.request.Request(web.root + path, headers={"Authorization": secret})
                with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                    urllib.request.urlopen(asked, timeout=30)
                refused.value.close()
        for site in ("same-site", "cross-site", "none"):
            asked = {"Authorization": f"Bearer {web.token}", "Sec-Fetch-Site": site}
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                urllib.request.urlopen(urllib.request.Request(f"{web.root}/stream", headers=asked), timeout=30)
            refused.value.close()
        web.end()
