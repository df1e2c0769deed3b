"""How is the documentation site built? `make docs-site` runs strict Sphinx; MyST reads the Markdown files unchanged."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "proto")]

project = "Holdfast"
author = "the Holdfast authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "diagrams",
    "captions",
]
html_theme = "furo"
html_title = "Holdfast"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["access.js"]
html_favicon = "static/favicon.svg"
html_copy_source = False
exclude_patterns = ["site", "examples", "pictures", "man"]

nitpicky = True
# Names from torch and typing, and our own type variables, have no page here.
nitpick_ignore_regex = [("py:.*", r"(?!worker_client\b).*"), ("py:.*", r".*\._T|.*\.KeyStore")]
suppress_warnings = ["myst.strikethrough"]
myst_heading_anchors = 4  # links such as operating.md#draining-a-node
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["lightning", "pytorch_lightning", "transformers"]
