"""Is the documentation site built without a warning, and does it contain every public name?"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

import worker_client
from tests.report.browser import Opened, Scheme, chromium
from worker_client import inprocess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds it as `make docs-site` does: each warning is an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "--keep-going", "-c", "docs/site", "docs", str(place)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return place


def _public(module: ModuleType) -> Iterator[str]:
    """Yields what a module of the in-process restart defines for users, by its page's anchor."""
    for name, value in vars(module).items():
        is_ours = getattr(value, "__module__", "") == module.__name__
        if not name.startswith("_") and is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
            yield f"{module.__name__}.{name}"


@pytest.mark.timeout(400)
def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    anchors = set(re.findall(r'id="([\w.]+)"', (site / "reference" / "python.html").read_text()))
    wanted = {f"worker_client.{name}" for name in worker_client.__all__}
    for name in inprocess.__all__:
        value = getattr(inprocess, name)
        wanted |= set(_public(value)) if isinstance(value, ModuleType) else set()
    wanted |= {"worker_client.inprocess.Wrapper", "worker_client.inprocess.CallWrapper"}
    wanted -= {"worker_client.inprocess.wrap.Wrapper"}  # shown as inprocess.Wrapper
    assert not wanted - anchors


@contextmanager
def _served(folder: Path) -> Generator[str]:
    """Serves it as a web server does: the search reads other pages, which browsers forbid for files."""
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@pytest.mark.soak
def test_pages_work_in_a_browser_for_everybody(site: Path) -> None:
    """No console message, no violation that axe finds, nothing fetched from elsewhere."""
    with chromium() as browser, _served(site) as address:
        shown: tuple[tuple[str, Scheme], ...] = (
            ("index", "light"), ("reference/events", "dark"), ("troubleshooting", "light"),
        )  # fmt: skip
        for page, scheme in shown:
            opened = Opened(browser, f"{address}/{page}.html", scheme=scheme)
            assert not opened.complaints
            assert not opened.violations(), page
            assert all(request.startswith((address, "data:")) for request in opened.requests)
            opened.close()
        found = Opened(browser, f"{address}/search.html?q=hard_timeout")
        found.page.wait_for_selector("ul.search li", timeout=20_000)
        assert "In-process" in found.page.locator("#search-results").inner_text() or found.page.locator("li").count()
        assert not found.complaints


def test_diagrams_are_drawn(site: Path) -> None:
    if not (ROOT / "docs/site/static/mermaid.min.js").exists():
        pytest.skip("docs/site/static/mermaid.min.js is not here; make docs-site brings it")
    with chromium() as browser, _served(site) as address:
        opened = Opened(browser, f"{address}/architecture/README.html", scheme="dark")
        opened.page.wait_for_selector("pre.mermaid svg", timeout=20_000)
        assert not opened.complaints


def test_every_command_and_page_is_reachable_and_searchable(site: Path) -> None:
    index = (site / "index.html").read_text()
    for page in ("tutorial/first-run", "reference/commands", "reference/events", "troubleshooting", "slurm"):
        assert f'href="{page}.html"' in index
    commands = (site / "reference" / "commands.html").read_text()
    assert 'id="holdfast-run"' in commands
    assert "hang_explain" in (site / "searchindex.js").read_text()
    assert (site / "search.html").exists()
