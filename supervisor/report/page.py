"""How does the page of one job look? One HTML file that needs no network, no server and, to be read, no script.

The templates in `page/` write it. What comes from a job is text there: the environment escapes all of it, in one place.
Only what this module marks as markup is not escaped.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from supervisor.local_time import local_time
from supervisor.report import formatting, page_rows, phases, summary
from supervisor.report.svg import STYLE, picture_of
from supervisor.report.timeline.timeline import Life
from supervisor.report.timeline_json import timeline_json

SCRIPTS = ("lanes.js", "timeline.js", "page.js")


def page_of(life: Life, *, made_at_ns: int, version: str) -> str:
    return (
        _templates()
        .get_template("page.html")
        .render(
            life=life,
            made_at_ns=made_at_ns,
            version=version,
            rows=page_rows,
            phases=phases,
            summary=summary,
            words=formatting,
            local_time=local_time,
            policy=Markup(policy()),
            style=Markup(_style()),
            script=Markup(_script()),
            picture=Markup(picture_of(life, is_own_file=False)),
            data=Markup(timeline_json(life)),
        )
    )


@cache
def policy() -> str:
    """Returns the page's content security policy, the same for all jobs."""
    return (
        f"default-src 'none'; style-src '{_digest(_style())}'; script-src '{_digest(_script())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("supervisor.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def _shown(value: object) -> object:
    """Returns text on one line without control characters, before it is escaped; nothing for None."""
    if value is None:
        return ""
    return formatting.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _style() -> str:
    return STYLE + _file("report.css")


def _script() -> str:
    return "".join(_file(name) for name in SCRIPTS)


@cache
def _file(name: str) -> str:
    return (resources.files("supervisor.report") / "page" / name).read_text("utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
