"""Can `holdfast web --control` stop and restart jobs, only for viewers of its own page or holders of the token?"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from getpass import getuser
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any

import pytest

from tests.cli.supervised import Home
from tests.cli.test_web import JOB, Web
from tests.edges.operators.fake_job_service import running
from tests.report.browser import Opened, chromium

STOP = f"/job/{JOB}/stop"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


def post(web: Web, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Returns status and answer. Header names: `_` for `-`."""
    asked = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(web.root + path, data=b"", headers=asked, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
    except RemoteDisconnected:
        pytest.fail(f"{path}: the connection ended without an answer; {web.fate()}")


def session(web: Web) -> dict[str, Any]:
    """Returns the answer that a page gets for the token."""
    with web.get("/session", method="POST") as answer:
        return json.load(answer)


def last_reason(home: Home) -> str:
    jobs = json.loads(home.holdfast("jobs", "-o", "json").out)["jobs"]
    return next(job["reason"] for job in jobs if job["job_id"] == JOB)


def test_a_read_only_page_stops_nothing(home: Home) -> None:
    with home.supervisor(running()):
        web = Web(home)
        assert session(web)["control"] is False
        status, answer = post(web, STOP, Authorization=f"Bearer {web.token}")
        assert status == 405
        assert answer == {"error": f"cannot stop job {JOB}: the page is read-only; start holdfast web --control"}
        assert last_reason(home) == "all 4 ranks run"
        web.end()


def test_who_may_stop_a_job_and_who_may_not(home: Home) -> None:
    with home.supervisor(running()):
        web = Web(home, "--control")
        answer = session(web)
        assert answer["control"] is True
        secret = answer["session"]
        mine, pages = f"Bearer {web.token}", f"Session {secret}"
        assert secret != session(web)["session"]  # none tells of another one, or of the token
        own_page = {"Authorization": pages, "Origin": web.root, "Sec_Fetch_Site": "same-origin"}
        elsewhere = "not a name of this machine; open the address"
        for headers, status, why in [
            ({}, 401, "cannot act on jobs: the token is missing or wrong"),
            ({"Authorization": f"Bearer {secret}"}, 401, "the token is missing or wrong"),
            ({"Authorization": f"Session {web.token}", "Origin": web.root}, 401, "the session has ended"),
            ({"Authorization": web.token}, 401, "the token is missing or wrong"),
            ({"Cookie": f"holdfast_web={web.token}; session={secret}"}, 401, "the token is missing or wrong"),
            ({"Authorization": pages}, 403, "a session is for the page"),
            ({**own_page, "Origin": "http://127.0.0.1:1"}, 403, "a page of 'http://127.0.0.1:1' asks"),
            ({**own_page, "Sec_Fetch_Site": "same-site"}, 403, "a page of another address asks"),
            ({**own_page, "Sec_Fetch_Site": "cross-site"}, 403, "a page of another address asks"),
            ({**own_page, "Host": "localhost", "Origin": "http://localhost"}, 401, "the session has ended"),
            ({"Authorization": mine, "Sec_Fetch_Site": "same-site"}, 403, "a page of another address asks"),
            ({"Authorization": mine, "Origin": "http://evil.example"}, 403, "a page of 'http://evil.example' asks"),
            ({"Authorization": mine, "Origin": "http://127.0.0.1:1"}, 403, "a page of 'http://127.0.0.1:1' asks"),
            ({"Authorization": mine, "Origin": "null"}, 403, "a page of 'null' asks"),
            ({"Authorization": mine, "Host": "evil.example"}, 403, elsewhere),
            ({"Authorization": mine, "Host": "evil.example", "Origin": "http://evil.example"}, 403, elsewhere),
        ]:
            refused, answer = post(web, STOP, **headers)
            assert (refused, why in answer["error"]) == (status, True), (headers, answer)
        assert post(web, f"/job/{JOB}/kill", Authorization=mine)[0] == 404
        assert post(web, "/job/train/stop", Authorization=mine)[0] == 404  # a prefix is not enough
        assert post(web, "/job/other/stop", Authorization=mine)[0] == 404
        status, answer = post(web, f"{STOP}?run=7", Authorization=mine)
        assert (status, "the id is another run's by now" in answer["error"]) == (409, True)
        assert web.refusal(STOP)[0] == 405  # a link stops nothing
        assert last_reason(home) == "all 4 ranks run"

        status, answer = post(web, f"/job/{JOB}/restart", Authorization=mine)
        assert (status, answer) == (200, {"done": f"job {JOB} restarts: cycle 3 comes next"})
        assert "train.py:12" in post(web, f"/job/{JOB}/stacks", Authorization=mine)[1]["done"]
        status, answer = post(web, f"{STOP}?run=1000", **own_page)
        assert (status, answer) == (200, {"done": f"job {JOB} is being stopped"})
        assert last_reason(home) == f"holdfast web by {getuser()} from 127.0.0.1"
        status, answer = post(web, STOP, Authorization=mine)
        assert (status, "it has ended" in answer["error"]) == (409, True)
        web.end()


def test_a_job_is_stopped_by_keys_after_a_question(home: Home) -> None:
    with home.supervisor(running(), running("later", submitted_at_ns=2_000)) as supervisor, chromium() as browser:
        web = Web(home, "--control")
        shown = Opened(browser, web.address)
        page, keys = shown.page, shown.page.keyboard
        page.get_by_role("button", name=f"Stop {JOB}").wait_for()
        focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"

        while page.evaluate(focused) != "Report on later":
            keys.press("Tab")
        supervisor.tell("end later")
        page.locator(f'article:first-child[aria-label="Job {JOB}"]').wait_for()  # the other has moved below it
        assert page.evaluate(focused) == "Report on later"  # news never moves the keyboard focus
        while page.evaluate(focused) != f"Stop {JOB}":
            keys.press("Shift+Tab")

        for answer in ("Enter", "Escape"):
            keys.press("Enter")
            page.get_by_role("dialog", name=f"Stop job {JOB}?").wait_for()
            assert page.evaluate(focused) == "No"
            if answer == "Enter":
                assert shown.violations() == []
            keys.press(answer)
            page.get_by_role("dialog").wait_for(state="hidden")
            assert page.evaluate(focused) == f"Stop {JOB}"
        assert last_reason(home) == "all 4 ranks run"

        keys.press("Tab")  # Restart
        keys.press("Tab")
        keys.press("Enter")
        page.get_by_role("dialog", name=f"Stacks of {JOB}").wait_for()
        assert "all_reduce (c10d.py:12)" in (page.locator("#text").text_content() or "")
        assert shown.violations() == []
        keys.press("Escape")

        page.get_by_role("button", name=f"Stop {JOB}").focus()
        keys.press("Enter")
        page.get_by_role("dialog", name=f"Stop job {JOB}?").wait_for()
        keys.press("Tab")
        keys.press("Enter")
        page.locator(f'article[aria-label="Job {JOB}"] .state.stopped').wait_for()
        page.get_by_text(f"job {JOB} is being stopped").wait_for()
        page.get_by_role("button", name=f"Stop {JOB}").wait_for(state="hidden")  # nothing is left to do to it
        assert last_reason(home) == f"holdfast web by {getuser()} from 127.0.0.1"
        assert shown.violations() == []
        assert shown.complaints == []
        shown.close()
        web.end()
