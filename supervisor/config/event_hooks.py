"""Which command and which URL are notified of events, and of which kinds of events?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from supervisor.config import values
from supervisor.config.setting import Setting
from supervisor.core.event_kinds import KINDS
from supervisor.core.event_weights import Weight, weight

COMMAND_FLAG, COMMAND_MEANING = "--on-event", "shell command to run at notable events; it gets each as JSON on stdin"
URL_FLAG, URL_MEANING = "--on-event-url", "URL to which notable events are posted as JSON"
KINDS_FLAG, KINDS_MEANING = "--on-event-kinds", "which events to send: kinds separated by commas, notable or all"
NOTABLE = "notable"
ALL = "all"


def _parse_url(text: str) -> str:
    if text and not (text.startswith(("http://", "https://")) and _names_host(text)):
        raise values.ValueProblem("it is not an http or https URL", "write http://HOST/… or https://HOST/…")
    return text


def _names_host(url: str) -> bool:
    from urllib.parse import urlsplit  # late: most jobs name no URL

    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable() and " " not in url
    except ValueError:  # a broken address, or no number where the port stands
        return False


def _parse_kinds(text: str) -> str:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in KINDS and word not in (ALL, NOTABLE):
            raise values.ValueProblem(
                f"{word} is not a kind of event",
                "write kinds such as job_failed,worker_failed, as holdfast events shows them",
            )
    return ",".join(words) or NOTABLE


COMMAND_KIND = values.text("COMMAND")
URL_KIND = values.Kind("URL", "", values.Shape.TEXT, _parse_url)
KINDS_KIND = values.Kind("KINDS", "", values.Shape.TEXT, _parse_kinds)


class EventHooks(msgspec.Struct, frozen=True):
    """Where notable events go; `command` and `url` are "" for none."""

    command: str = ""
    url: str = ""
    kinds: str = NOTABLE

    @property
    def are_set(self) -> bool:
        return bool(self.command or self.url)

    def wants(self, kind: str) -> bool:
        """Returns whether the event is wanted. Notable events are those shown on a terminal, and a success."""
        words = self.kinds.split(",")
        if kind in words or ALL in words:
            return True
        return NOTABLE in words and (weight(kind) > Weight.ROUTINE or kind == "job_succeeded")


def hooks_from(value_of: Callable[[Setting], object], command: Setting, url: Setting, kinds: Setting) -> EventHooks:
    return EventHooks(str(value_of(command) or ""), str(value_of(url) or ""), str(value_of(kinds) or NOTABLE))
