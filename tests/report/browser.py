"""Debian's chromium for tests of pages. If it is missing, the tests are skipped and say how to install it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Generator
from importlib import resources
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
AXE = resources.files("axe_playwright_python") / "axe.min.js"
Scheme = Literal["light", "dark"]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@contextlib.contextmanager
def chromium() -> Generator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page in a separate window; collects the messages of its console."""

    def __init__(
        self, browser: Browser, address: str, *, width: int = 1280, scheme: Scheme = "light", script: bool = True
    ) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
        )
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda told: self.complaints.append(told.text) if told.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.requests: list[str] = []
        self.page.goto(address)

    def violations(self) -> list[str]:
        """Returns what axe finds wrong, with the places."""
        self.page.evaluate(AXE.read_text())
        options = {"runOnly": {"type": "tag", "values": RULES}}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{each['id']} ({each['impact']}): {each['help']}: {[node['html'][:160] for node in each['nodes'][:4]]}"
            for each in found["violations"]
        ]

    def close(self) -> None:
        self.page.context.close()
