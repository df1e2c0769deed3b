"""What is an attribution service asked over HTTP, and what do its answers mean? No answer is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from supervisor.core.attribution.attribution_requests import Failed, Forgotten, Judged, Pending, Refused, Reply, Taken
from supervisor.core.printable import one_line
from supervisor.edges.services.http_client import Answer, HttpClient, NoAnswerError

TIMEOUT_S = 5.0
REASON_CHARACTERS_MAX = 1_000
WORD_CHARACTERS_MAX = 40
COMPLETED = "completed"


class _Recommendation(msgspec.Struct, frozen=True):
    action: str
    reason: str = ""
    source: str = ""


class _Outcome(msgspec.Struct, frozen=True):
    """The outcome in an answer; only a completed one counts."""

    status: str
    recommendation: _Recommendation | None = None


class AttributionClient:
    """A client of the service. `who`: the user and the job id sent with each submission, as far as known."""

    def __init__(
        self, url: str, who: Mapping[str, str], *, timeout_s: float = TIMEOUT_S, only_own_user: bool = False
    ) -> None:
        """`only_own_user`: see HttpClient."""
        self._url = url
        self._who = dict(who)
        self._http = HttpClient(url, timeout_s=timeout_s, only_own_user=only_own_user)

    async def submit(self, log_path: str, *, is_terminal: bool) -> Reply:
        intent = "terminal" if is_terminal else "progressive"
        body = msgspec.json.encode({"log_path": log_path, **self._who, "analysis_intent": intent})
        answer = await self._asked("POST", "/logs", body)
        return Taken() if isinstance(answer, Answer) else answer

    async def verdict(self, log_path: str) -> Reply:
        answer = await self._asked("GET", f"/logs?{urlencode({'log_path': log_path, 'wait': 'false'})}")
        if not isinstance(answer, Answer):
            return answer
        try:
            outcome = msgspec.json.decode(answer.body, type=_Outcome)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Failed(self._sentence(f"its answer can't be read: {error}"))
        if outcome.status != COMPLETED:
            return Pending()
        told = outcome.recommendation or _Recommendation("UNKNOWN")
        action = _line(told.action, WORD_CHARACTERS_MAX).upper() or "UNKNOWN"
        return Judged(action, _line(told.reason, REASON_CHARACTERS_MAX), _line(told.source, WORD_CHARACTERS_MAX))

    async def is_healthy(self) -> bool:
        return isinstance(await self._asked("GET", "/healthz"), Answer)

    async def _asked(
        self, method: str, target: str, body: bytes | None = None
    ) -> Answer | Refused | Failed | Forgotten:
        """Returns the answer, if the request was accepted."""
        try:
            answer = await self._http.ask(method, target, body)
        except NoAnswerError as error:
            return Failed(self._sentence(str(error)))
        if 200 <= answer.status < 300:
            return answer
        if answer.status == 404 and method == "GET":
            return Forgotten()
        why = self._sentence(f"it has answered {answer.status}{_says(answer.body)}")
        return Failed(why) if answer.status >= 500 or answer.status in (408, 425, 429) else Refused(why)

    def _sentence(self, why: str) -> str:
        return f"cannot ask the attribution service at {self._url}: {_line(why, REASON_CHARACTERS_MAX)}"


def _says(body: bytes) -> str:
    """Returns the sentence in the answer to a refused request, if there is one as in ours."""
    try:
        told = msgspec.json.decode(body, type=dict[str, str]).get("error", "")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return f" ({_line(told, REASON_CHARACTERS_MAX)})" if told else ""


def _line(text: str, characters_max: int) -> str:
    """Returns untrusted text as one line that can be shown anywhere."""
    return " ".join(one_line(text[: 4 * characters_max]).split())[:characters_max]
