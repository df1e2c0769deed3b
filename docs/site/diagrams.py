"""How do ```mermaid blocks of the pages become pictures? The browser draws them with a script on the site.

`make docs-site` gets the script from the npm registry; without it, the diagrams' text is shown.
"""

from __future__ import annotations

import html
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

SCRIPT = "mermaid.min.js"


class Mermaid(Directive):
    """Shows the block's text, which the script replaces with a picture."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = html.escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid">{text}</pre>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Mermaid)
    app.config.myst_fence_as_directive = {"mermaid"}
    if (Path(__file__).parent / "static" / SCRIPT).exists():
        app.add_js_file(SCRIPT)
        app.add_js_file("draw_diagrams.js")
    return {"parallel_read_safe": True}
