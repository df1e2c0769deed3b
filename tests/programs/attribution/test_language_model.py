"""Is a model's answer used, and is a failing model harmless? A local server plays it."""

from __future__ import annotations

import json

import pytest

from supervisor.core.attribution.log_patterns import Advice
from supervisor.core.attribution.log_verdict import Judgement
from supervisor.errors import ConfigurationError
from supervisor.programs.attribution.language_model import SOURCE, LanguageModel, ModelSettings
from tests.programs.attribution.played import played

RULES = Judgement(Advice.RESTART, "rank 0: ValueError", (0,))


def says(text: str, finish_reason: str = "stop") -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish_reason}]}).encode()


async def test_what_the_model_says_replaces_reason_and_advice():
    with played() as server:
        server.answers = [says('Here: {"action": "STOP", "reason": "the tokenizer is missing", "culprits": [3]}')]
        model = LanguageModel(ModelSettings(server.url + "/v1/", "some-model", "secret"))
        judgement, source = await model(RULES, "0: the last line")
        assert (judgement.advice, judgement.reason, judgement.culprits) == (
            Advice.STOP, "the tokenizer is missing", (3,),
        )  # fmt: skip
        assert source == SOURCE
        assert server.heard[0]["model"] == "some-model"
        assert "the last line" in server.heard[0]["messages"][1]["content"]
        assert server.headers[0]["Authorization"] == "Bearer secret"


THOUGHTS = (
    '<think>rank 3 reports {"loss": NaN} in {step 7: {...}}; {"action": "STOP", "reason": "?"}? No: {"a": {"b": 1}}'
    "</think>\n"
)


@pytest.mark.parametrize("rest", ["", "\n```\nI hope that {this} helps, see {}."])
async def test_the_last_object_counts_whatever_braces_are_in_the_thoughts(rest: str):
    with played() as server:
        server.answers = [says(THOUGHTS + '{"action": "RESTART", "reason": "a bad {shard}", "culprits": [3]}' + rest)]
        judgement, source = await LanguageModel(ModelSettings(server.url, "m", "k"))(RULES, "")
    assert (judgement.advice, judgement.reason, judgement.culprits) == (Advice.RESTART, "a bad {shard}", (3,))
    assert source == SOURCE


@pytest.mark.parametrize(
    "answer",
    [
        says(THOUGHTS + '{"action": "RESTART", "reason": "a bad'),
        says(THOUGHTS.removesuffix("</think>\n")),
        says('I first took {"action": "STOP", "reason": "?"} for', "length"),
    ],
)
async def test_a_draft_in_the_thoughts_of_an_answer_that_is_cut_off_changes_nothing(answer: bytes):
    with played() as server:
        server.answers = [answer]
        assert await LanguageModel(ModelSettings(server.url, "m", "k"))(RULES, "") == (RULES, "rules")


async def test_an_answer_full_of_open_braces_is_refused_soon(caplog: pytest.LogCaptureFixture):
    with played() as server:
        server.answers = [says('{"a":' * 50_000)]
        assert await LanguageModel(ModelSettings(server.url, "m", "k"))(RULES, "") == (RULES, "rules")
    assert "no usable answer" in caplog.text


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b'{"choices": []}', says("no JSON here"), says('{"action": "PANIC", "reason": "x"}')]
)
async def test_an_answer_that_is_none_changes_nothing(answer: bytes, caplog: pytest.LogCaptureFixture):
    with played() as server:
        server.answers = [answer]
        assert await LanguageModel(ModelSettings(server.url, "m", "k"))(RULES, "") == (RULES, "rules")
    assert "no usable answer" in caplog.text


async def test_a_refusal_and_a_dead_server_change_nothing():
    with played() as server:
        server.status = 401
        model = LanguageModel(ModelSettings(server.url, "m", "k"))
        assert await model(RULES, "") == (RULES, "rules")
    assert await model(RULES, "") == (RULES, "rules")


def test_only_http_is_an_address():
    with pytest.raises(ConfigurationError, match="it is not an http://"):
        LanguageModel(ModelSettings("file:///etc/passwd", "m", "k"))
