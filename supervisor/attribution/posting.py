"""How is a document posted to a URL?"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

ANSWER_BYTES_MAX = 1 << 20


def post_json(url: str, document: bytes, timeout_s: float, headers: Mapping[str, str] | None = None) -> bytes:
    """Posts a document and returns the answer's body. Blocks; no single wait exceeds `timeout_s`.

    Raises OSError, also for an HTTP error, and ValueError for an invalid URL.
    """
    request = urllib.request.Request(url, document, {"Content-Type": "application/json", **(headers or {})})
    try:
        with _opener().open(request, timeout=timeout_s) as answer:
            return answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"it answered {error.code} {error.reason}") from None


def _opener() -> urllib.request.OpenerDirector:
    """Returns an opener that refuses redirects, whose target would get the headers, with the key, but no document."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(handler())
    return opener
