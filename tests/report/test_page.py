"""Does the page contain what it should, and nothing that a job could have injected?"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.facts import JobState
from supervisor.report.page import page_of
from supervisor.report.page_rows import nodes
from supervisor.report.report_json import document_of
from supervisor.report.svg import picture_of
from supervisor.report.terminal_report import text_of
from supervisor.report.timeline.timeline import LastWords, Life, Outcome
from supervisor.report.timeline.timeline_builder import life_of
from supervisor.report.timeline_json import timeline_json
from tests.deploy.sources import ROOT
from tests.report.timeline.jobs import BEGAN_NS, Told, killed_and_hung, large

EVIL = "</script><script>alert(1)</script>\x1b[31m\x00<img src=x onerror=alert(2)>\"'&]]>--><!--"


def life(job: Told, **more: object) -> Life:
    return life_of(job.report(**more), job.events, now_ns=BEGAN_NS + 10**12)  # type: ignore[arg-type]


def page(told: Life) -> str:
    return page_of(told, made_at_ns=told.until_ns, version="1.2.3")


class Seen(HTMLParser):
    """What a browser reads in the page: its elements and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def evil_life() -> Life:
    job = Told(EVIL)
    job.begin(1, cycle=0, ranks=range(2), node=EVIL)
    job.say(5, "hang_detected", EVIL, rank=1, node=EVIL)
    job.say(5, "stacks_collected", EVIL, details=[("ranks 1", EVIL), ("source", EVIL)])
    job.say(5, EVIL, EVIL)
    job.decide(6, EVIL, cycle=0)
    job.stop(6, cycle=0, ranks=range(2), node=EVIL)
    told = life(job, state=JobState.FAILED, reason=EVIL, command=(EVIL,), log_dir=EVIL, nodes=(EVIL,))
    (incident,) = told.incidents
    spoken = msgspec.structs.replace(incident, last_words=(LastWords(1, (EVIL,), EVIL),))
    return msgspec.structs.replace(told, incidents=(spoken,))


def test_the_page_fetches_nothing_and_runs_only_its_own_script():
    text = page(life(killed_and_hung()))
    seen = Seen(text)
    assert not [each for tag in ("img", "iframe", "object", "embed") for each in seen.named(tag)]
    assert all(each.get("src") is None for each in seen.named("script"))
    assert [each["href"] for each in seen.named("link")] == ["data:,"]
    assert "http:" not in text.replace("http-equiv", "").replace("https:", "")
    (policy,) = [each["content"] for each in seen.named("meta") if each.get("http-equiv")]
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[-1].encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_words_of_a_hostile_job_stay_words():
    harmless, hostile = Seen(page(life(killed_and_hung()))), Seen(page(evil_life()))
    assert len(hostile.named("script")) == len(harmless.named("script")) == 2
    assert not hostile.named("img")
    text = page(evil_life())
    assert "\x00" not in text
    assert "\x1b" not in text
    data = json.loads(re.findall(r'<script type="application/json" id="life">(.*?)</script>', text, re.DOTALL)[0])
    assert data["nodes"][0].startswith("</script><script>alert(1)</script>\\x00<img")


@settings(max_examples=50)
@given(st.text(alphabet=st.sampled_from("<>/&\"'!-]s\x00\x1b\u2028\ud83d\udcff aé")))
def test_any_word_of_a_job_adds_no_element(word: str):
    def with_words(text: str) -> Life:
        job = Told("job")
        job.begin(1, cycle=0, ranks=range(2), node="n")
        job.say(5, "worker_failed", f"rank 1 {text} failed", rank=1, node="n")
        job.stop(6, cycle=0, ranks=(0,), node="n")
        return life(job, state=JobState.FAILED, command=("x", text), nodes=("n", "m"))

    count = [tag for tag, _ in Seen(page(with_words("plain"))).elements]
    assert [tag for tag, _ in Seen(page(with_words(word))).elements] == count
    ElementTree.fromstring(picture_of(with_words(word)).encode("utf-8", "replace"))


def test_no_template_has_a_way_around_the_escape():
    templates = sorted((ROOT / "supervisor/report/page").glob("*.html"))
    assert templates
    for path in templates:
        assert not re.search(r"\bsafe\b|\bautoescape\b|\bMarkup\b", path.read_text()), path
    marking = [path.name for path in (ROOT / "supervisor").rglob("*.py") if "import Markup" in path.read_text()]
    assert marking == ["page.py"]


def long_ago() -> Life:
    """Returns a job with so many incidents that the one that ended the first cycle is left out: it cost nothing."""
    told = ended_by_the_last_of(2600)
    first, *others, last = told.incidents
    first = msgspec.structs.replace(first, until_ns=first.began_ns)
    others = [msgspec.structs.replace(each, outcome=Outcome.INSIDE, noticed_ns=told.until_ns) for each in others]
    last = msgspec.structs.replace(last, cycle=1, noticed_ns=told.until_ns, cause="the last one")
    return msgspec.structs.replace(told, incidents=(first, *others, last))


def test_every_name_is_given_once_and_every_link_leads_somewhere():
    for told in (life(killed_and_hung()), ended_by_the_last_of(600), long_ago()):
        seen = Seen(page(told))
        names = [each["id"] for _, each in seen.elements if each.get("id")]
        assert len(names) == len(set(names))
        links = {str(each["href"])[1:] for each in seen.named("a") if str(each.get("href")).startswith("#")}
        assert links <= set(names)
        for attribute in ("aria-labelledby", "aria-describedby", "for"):
            wanted = {word for _, each in seen.elements for word in (each.get(attribute) or "").split()}
            assert wanted <= set(names)
    cycles = page(long_ago()).partition('aria-label="Cycles"')[2].partition("</table>")[0]
    assert "<td>rank 1 (pid 101) was killed by SIGKILL</td>" in cycles


def test_the_page_tells_what_happened():
    words = " ".join(Seen(page(life(killed_and_hung()))).words)
    for told in (
        "succeeded after 30 s: 2 incidents, 2 of 5 restarts used", "rank 1 (pid 101) was killed by SIGKILL",
        "rank 2 is in hang (train.py:118)", "hang (train.py:118)", "80.3 %", "taken by py-spy in 0.060 s",
    ):  # fmt: skip
        assert told in words, told


def ended_by_the_last_of(count: int) -> Life:
    """Returns a job whose incidents cost less and less, and the last one, which ended it, next to nothing."""
    (first, *_) = life(killed_and_hung()).incidents
    return msgspec.structs.replace(
        life(killed_and_hung()),
        incidents=tuple(
            msgspec.structs.replace(
                first, number=number, outcome=Outcome.ENDED_JOB if number == count else Outcome.RESTARTED,
                until_ns=first.began_ns + (1 if number == count else 10**9 * (2 * count - number)),
            )
            for number in range(1, count + 1)
        ),
    )  # fmt: skip


def test_the_incident_that_ended_the_job_is_open_however_short_it_was():
    parts = Seen(page(ended_by_the_last_of(600))).named("details")
    shown = [each for each in parts if (each.get("id") or "").startswith("incident-")]
    assert [each["id"] for each in shown if "open" in each] == [f"incident-{number}" for number in (1, 2, 3, 600)]
    assert len(shown) == 500


def test_the_table_of_all_incidents_leaves_out_the_oldest_ones_and_says_so():
    text = page(ended_by_the_last_of(2001))
    table = text.partition('aria-label="All incidents"')[2].partition("</table>")[0]
    assert re.findall(r'="#?incident-(\d+)"', table) == [str(number) for number in range(2, 2002)]
    words = " ".join(Seen(text).words)
    assert "The table shows the newest 2,000 of 2,001 incidents." in words
    assert "Of 2,001 incidents, 500 are described below: those that cost most, and the one that ended the job" in words


def test_a_straggler_is_shown_with_its_own_node_and_once():
    job = Told()
    job.begin(0, cycle=0, ranks=[0], node="n0")
    slow = [("section", "forward"), ("straggler_node", "n1"), ("ranks", "8-15")]
    job.say(20, "straggler_found", "node n1 is slow in section 'forward'", node="n0", details=slow)
    text = page(life(job, state=JobState.RUNNING))
    assert "<td>8-15</td><td>n1</td>" in text
    assert text.count("node n1 is slow in section") == 1


def test_eight_thousand_ranks_make_a_page_of_a_few_megabytes():
    job = large(cycles=3)
    text = page(life(job, nodes=[f"node{number:04}" for number in range(1000)]))
    assert len(text) < 2_500_000
    assert text.count("<rect") < 3_000  # lanes are drawn when they become visible


def test_the_picture_is_xml_and_says_in_words_what_it_shows():
    root = ElementTree.fromstring(picture_of(life(killed_and_hung())))
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title") == "job job: succeeded after 30 s: 2 incidents, 2 of 5 restarts used"
    assert "incident 2, hang, +20 s" in (root.findtext(f"{space}desc") or "")
    labels = [each.text for each in root.iter(f"{space}text")]
    assert {"job", "rank 0", "rank 1", "rank 2", "1", "2"} <= set(labels)
    ElementTree.fromstring(picture_of(evil_life()))


def test_a_picture_of_many_nodes_shows_those_with_trouble():
    picture = picture_of(life(large(nodes=100, cycles=6)))
    assert "76 more nodes (no fault)" in picture


@pytest.mark.parametrize("ranks_per_node", [1, 8])
def test_nodes_are_in_natural_order_wherever_the_report_lists_them(ranks_per_node: int):
    job = Told()
    names = [f"gpu{number}" for number in range(1, 13)]
    for place, name in enumerate(names):
        job.begin(0, cycle=0, ranks=range(place * ranks_per_node, (place + 1) * ranks_per_node), node=name)
    told = life(job, nodes=names)
    assert re.findall(r">(gpu\d+)<", picture_of(told)) == names
    assert json.loads(timeline_json(told))["nodes"] == names
    assert [name for name, *_ in nodes(told)] == names


def test_without_trouble_the_first_of_many_nodes_are_drawn():
    job = Told()
    for place in range(30):
        job.begin(0, cycle=0, ranks=range(place * 8, (place + 1) * 8), node=f"gpu{place + 1}")
    assert re.findall(r">(gpu\d+)<", picture_of(life(job))) == [f"gpu{number}" for number in range(1, 25)]


def test_the_document_has_its_keys_and_is_json():
    document = json.loads(json.dumps(document_of(life(killed_and_hung()))))
    assert document["schema"] == "holdfast.report/v1"
    assert (document["running_share"], document["lost_s"]) == (pytest.approx(24.1 / 30), pytest.approx(3.3))
    assert [(each["kind"], each["culprits"]) for each in document["incidents"]] == [
        ("failed process", [1]), ("hang", [2])
    ]  # fmt: skip
    assert sum(document["spent_s"].values()) == pytest.approx(30)
    assert document["runs"][0] == {
        "rank": 0, "node": "vm", "cycle": 0, "started_at": "2026-11-18T11:06:42.050000Z",
        "ended_at": "2026-11-18T11:06:50.200000Z", "end": "stopped", "reason": "rank 0 (pid 100) was killed by SIGTERM",
    }  # fmt: skip


def test_the_text_is_a_summary_that_fits_a_terminal():
    text = text_of(life(killed_and_hung()), width=80)
    assert text.splitlines()[0] == "job job succeeded after 30 s: 2 incidents, 2 of 5 restarts used"
    assert "phases: unnoticed 2 s, decide 200 ms, stop 200 ms, meet 200 ms, start 100 ms" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert text_of(evil_life()).replace("\n", "").isprintable()


def test_a_job_of_which_nothing_is_known():
    job = Told("nothing")
    told = life(job)
    assert "no event of this job is recorded" in page(told)
    ElementTree.fromstring(picture_of(told))
    assert "not known: no event" in text_of(told)
