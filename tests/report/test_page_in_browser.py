"""Can everybody read the page: in chromium, light and dark, wide and narrow, by keyboard only, without its script?

Nothing here waits by wait_for_function: it evaluates text in the page, which the page's policy forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from supervisor.report.page import page_of
from supervisor.report.timeline.timeline_builder import life_of
from tests.e2e.launch import wait_until
from tests.report.browser import Opened, Scheme, chromium
from tests.report.test_page import evil_life, long_ago
from tests.report.timeline.jobs import Told, killed_and_hung, large

NODES = 1000
SEEN_S = 20.0
expect.set_options(timeout=SEEN_S * 1000)
Open = Callable[..., Opened]


def write(path: Path, job: Told, *nodes: str) -> Path:
    life = life_of(job.report(nodes=nodes or ("vm",)), job.events, now_ns=0)
    path.write_text(page_of(life, made_at_ns=life.until_ns, version="0"))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    small = write(folder / "small.html", killed_and_hung())
    many = write(folder / "many.html", large(nodes=60, cycles=4), *(f"node{each:04}" for each in range(60)))
    most = write(folder / "large.html", large(nodes=NODES, cycles=4), *(f"node{each:04}" for each in range(NODES)))
    evil = folder / "evil.html"
    evil.write_text(page_of(evil_life(), made_at_ns=0, version="0"))
    old = folder / "old.html"
    old.write_text(page_of(long_ago(), made_at_ns=0, version="0"))
    return {path.stem: f"file://{path}" for path in (small, many, most, evil, old)}


@pytest.fixture
def opened(browser: Browser, pages: dict[str, str]) -> Iterator[Open]:
    made: list[Opened] = []

    def open_page(name: str, width: int = 1280, scheme: Scheme = "light", *, script: bool = True) -> Opened:
        made.append(Opened(browser, pages[name], width=width, scheme=scheme, script=script))
        return made[-1]

    yield open_page
    for each in made:
        each.close()


def lanes(shown: Opened) -> list[str]:
    return shown.page.locator("#lanes text").all_text_contents()


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("small", 1280, "light"), ("small", 1280, "dark"), ("small", 400, "light"), ("many", 400, "dark")],
)
def test_everybody_can_read_it(opened: Open, name: str, width: int, scheme: Scheme):
    shown = opened(name, width, scheme)
    assert shown.violations() == []
    assert shown.complaints == []
    assert shown.requests == [shown.page.url]  # and no other
    wider = shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0, "the page itself scrolls sideways"


def test_words_of_a_hostile_job_do_nothing(opened: Open):
    shown = opened("evil")
    shown.page.on("dialog", lambda dialog: pytest.fail(f"the page said {dialog.message}"))
    assert shown.complaints == []
    assert shown.page.locator("img").count() == 0
    assert "</script><script>alert(1)" in (shown.page.locator("h1").text_content() or "")


def test_the_timeline_by_keys_alone(opened: Open):
    shown = opened("small")
    page = shown.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "lanes":
            break
    else:
        pytest.fail("the lanes are not reached by Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    told = page.locator("#chosen").text_content()
    assert told is not None
    assert told.startswith("rank 1: on vm, ran "), told
    assert "1 failed or lost" in told
    axis = page.locator("#axis")
    before = axis.inner_html()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    wait_until(lambda: axis.inner_html() != before, timeout_s=SEEN_S, what="another axis")
    page.keyboard.press("0")
    wait_until(lambda: axis.inner_html() == before, timeout_s=SEEN_S, what="the first axis")
    assert shown.complaints == []


def test_a_search_finds_one_rank_of_eight_thousand(opened: Open):
    shown = opened("large")
    assert len(lanes(shown)) < 60  # only visible lanes are drawn
    shown.page.get_by_label("Find a rank or a node").fill("rank 4711")
    expect(shown.page.locator("#lanes text")).to_have_count(2)
    assert [each[-9:] for each in lanes(shown)] == [" node0588", "rank 4711"]
    assert shown.page.locator("#chosen").text_content() == "2 lanes found"
    shown.page.get_by_label("Find a rank or a node").fill("")
    shown.page.get_by_label("only with faults").check()
    wait_until(lambda: len(lanes(shown)) < 10, timeout_s=SEEN_S, what="fewer lanes")
    assert shown.complaints == []


def test_from_an_incident_to_the_timeline_and_back(opened: Open):
    shown = opened("small")
    shown.page.get_by_role("button", name="Show incident 2 in the timeline").click()
    expect(shown.page.locator("#lanes")).to_be_focused()
    assert (shown.page.locator("#chosen").text_content() or "").startswith("rank 2:")
    shown.page.get_by_role("button", name="Show all").click()
    shown.page.get_by_role("link", name="Incident 1, failed process").click()
    assert shown.page.url.endswith("#incident-1")
    assert shown.page.locator("#incident-1").get_attribute("open") is not None


def test_the_pin_of_an_incident_that_the_page_leaves_out_shows_its_time(opened: Open):
    page = opened("old").page
    axis = page.locator("#axis")
    before = axis.inner_html()
    page.get_by_role("link", name="Incident 1, failed process").click()
    wait_until(lambda: axis.inner_html() != before, timeout_s=SEEN_S, what="another axis")
    assert "#" not in page.url


def test_without_its_script_the_page_can_be_read(opened: Open):
    shown = opened("small", script=False)
    assert shown.page.locator("#static svg").is_visible()
    assert not shown.page.locator("#explorer").is_visible()


def test_on_paper_everything_is_open_and_dark_ink(opened: Open):
    shown = opened("small", scheme="dark")
    shown.page.emulate_media(media="print")
    expect(shown.page.locator("details:not([open])")).to_have_count(0)
    assert shown.page.locator("#static svg").is_visible()
    assert not shown.page.locator("#explorer").is_visible()
    ink = shown.page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(31, 35, 40)"
