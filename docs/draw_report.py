"""Draws the pictures of docs/report.md: the demo's own report, and one on 8,000 ranks, as people see them in chromium.

Run `python -m docs.draw_report` with chromium installed, and look at the pictures.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from supervisor import __version__
from supervisor.report.page import page_of
from supervisor.report.timeline.timeline_builder import life_of
from tests.report.browser import Opened, Scheme, chromium
from tests.report.timeline.jobs import large

HERE = Path(__file__).parent
ROOT = HERE.parent
PICTURES = HERE / "pictures"
NODES = 1000


def demo_report(folder: Path) -> Path:
    """Returns the report that the demo writes on itself, without the checkout's place."""
    output = folder / "demo-output"
    subprocess.run([sys.executable, str(HERE / "examples/demo.py"), "--output", str(output)], check=True)
    text = (output / "report.html").read_text()
    path = PICTURES / "demo-report.html"
    path.write_text(text.replace(str(output), "demo-output").replace(str(ROOT), "/opt/holdfast"))
    return path


def large_report(folder: Path) -> Path:
    job = large(nodes=NODES)
    report = job.report(nodes=[f"node{number:04}" for number in range(NODES)])
    life = life_of(report, job.events, now_ns=0)
    path = folder / "large.html"
    path.write_text(page_of(life, made_at_ns=life.until_ns, version=__version__))
    return path


def draw(browser: Browser, page: Path, name: str, height: int, width: int = 1280, scheme: Scheme = "light") -> None:
    opened = Opened(browser, f"file://{page}", width=width, scheme=scheme)
    opened.page.set_viewport_size({"width": width, "height": height})
    opened.page.evaluate("new Promise(requestAnimationFrame)")
    opened.page.screenshot(path=PICTURES / f"{name}.png")
    opened.close()


def main() -> None:
    if shutil.which("chromium") is None:
        sys.exit("cannot draw: chromium is not installed; apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="report-") as folder, chromium() as browser:
        demo, many = demo_report(Path(folder)), large_report(Path(folder))
        draw(browser, demo, "report-light", 1500)
        draw(browser, demo, "report-dark", 1500, scheme="dark")
        draw(browser, demo, "report-narrow", 1400, width=400)
        draw(browser, many, "report-8000-ranks", 1100)


if __name__ == "__main__":
    main()
