"""How is a document posted to a URL?"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping

from supervisor.edges.operators.notify_process import opener_without_redirects

ANSWER_BYTES_MAX = 1 << 20


def post_json(url: str, document: bytes, timeout_s: float, headers: Mapping[str, str] | None = None) -> bytes:
    """Posts a document and returns the answer's body. Blocks; no single wait exceeds `timeout_s`.

    Raises OSError, also for an HTTP error, and ValueError for an invalid URL.
    """
    request = urllib.request.Request(url, document, {"Content-Type": "application/json", **(headers or {})})
    try:
        with opener_without_redirects().open(request, timeout=timeout_s) as answer:
            return answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"it answered {error.code} {error.reason}") from None
    except http.client.HTTPException as error:
        raise OSError(f"its answer is not HTTP: {type(error).__name__}") from None
