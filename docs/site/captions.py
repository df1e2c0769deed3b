"""How do captions of tables of contents tell a screen reader their level, which Sphinx leaves out?"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

PARTS = ("body", "furo_navigation_tree")  # of a page, as text
HEADING = 'class="caption" role="heading"'


def _level(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    for part in PARTS:
        if isinstance(context.get(part), str):
            context[part] = context[part].replace(HEADING, f'{HEADING} aria-level="2"')


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _level, priority=900)  # after the theme's own
    return {"parallel_read_safe": True, "parallel_write_safe": True}
