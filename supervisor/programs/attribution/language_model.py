"""What does a language model, asked over an API like OpenAI's, add to the rules' findings?

It gets the findings and the end of the log, and answers with advice, a reason and culprits. If anything goes wrong (no
answer in time, no JSON, unknown advice), the rules' judgement stands, and a warning says why.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import msgspec

from supervisor.config.redaction import redacted_text
from supervisor.core.attribution.log_patterns import Advice
from supervisor.core.attribution.log_verdict import Judgement
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.errors import ConfigurationError
from supervisor.programs.attribution.posting import post_json

TIMEOUT_S = 60.0
STUCK_MAX = 4  # abandoned questions that are still running
LOG_CHARACTERS_MAX = 40_000
SOURCE = "rules and model"

_log = logging.getLogger("holdfast.attribution")
_TASK = """\
You are told how one cycle of a distributed PyTorch training ended: what rules have found, and the last lines of its
log, each with its rank before it. Name the cause in one or two sentences, the ranks that began it, and whether to try
again.
Answer with JSON alone: {"action": "STOP" or "RESTART", "reason": "...", "culprits": [rank, ...]}
"""


class ModelSettings(msgspec.Struct, frozen=True):
    base_url: str
    model: str
    api_key: str


class _Told(msgspec.Struct, frozen=True):
    action: Advice
    reason: str
    culprits: tuple[int, ...] = ()


class LanguageModel:
    """A language model, callable as the `Opinion` of Analyses."""

    def __init__(self, settings: ModelSettings) -> None:
        """Raises ConfigurationError if the address is not an HTTP URL."""
        if urlsplit(settings.base_url).scheme not in ("http", "https"):
            raise ConfigurationError(
                f"cannot ask a language model at {settings.base_url!r}: it is not an http:// or https:// URL; set "
                "--llm-base-url"
            )
        self._settings = settings
        self._threads = SideThreads(stuck_max=STUCK_MAX)

    async def __call__(self, judgement: Judgement, tail: str) -> tuple[Judgement, str]:
        try:
            ask = partial(self._ask, judgement, tail)
            told = await self._threads.call(ask, timeout_s=TIMEOUT_S, discard=_nothing)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            _log.warning("no usable answer from the language model at %s: %s", self._settings.base_url, error)
            return judgement, "rules"
        said = msgspec.structs.replace(
            judgement, advice=told.action, reason=told.reason, culprits=told.culprits or judgement.culprits
        )
        return said, SOURCE

    def _ask(self, judgement: Judgement, tail: str) -> _Told:
        """Asks the model. Blocks. Raises OSError (also for HTTP errors), ValueError or MsgspecError."""
        found = redacted_text(json.dumps({"rules": msgspec.to_builtins(judgement)}))
        body = {
            "model": self._settings.model,
            "temperature": 0,
            "messages": [
                {"role": "system", "content": _TASK},
                {
                    "role": "user",
                    "content": f"{found}\n\n{redacted_text(tail[-2 * LOG_CHARACTERS_MAX :])[-LOG_CHARACTERS_MAX:]}",
                },
            ],
        }
        headers = {"Authorization": f"Bearer {self._settings.api_key}"}
        url = f"{self._settings.base_url.rstrip('/')}/chat/completions"
        document = json.loads(post_json(url, json.dumps(body).encode(), TIMEOUT_S, headers))
        try:
            choice = document["choices"][0]
            text, is_cut_off = str(choice["message"]["content"]), choice.get("finish_reason") == "length"
        except (KeyError, IndexError, TypeError):
            raise ValueError("its answer has no choices[0].message.content") from None
        if is_cut_off:
            raise ValueError("its answer is cut off (finish_reason is length)")
        return _told_in(text)


def _told_in(text: str) -> _Told:
    """Returns the last object in the answer, which may follow thoughts. Raises ValueError or MsgspecError."""
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        raise ValueError("its answer ends within its thoughts")
    decoder, last, begin = json.JSONDecoder(), None, text.find("{")
    while begin >= 0:
        end = begin + 1
        with suppress(ValueError):  # It is a brace of a sentence.
            found, after = decoder.raw_decode(text, begin)
            if "action" in found:
                last, end = found, after
        begin = text.find("{", end)
    if last is None:
        raise ValueError('its answer holds no JSON object with an "action"')
    return msgspec.convert(last, _Told)


def _nothing(_: _Told) -> None:
    """Ignores an answer that came too late."""
