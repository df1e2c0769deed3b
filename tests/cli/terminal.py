"""A real terminal for a test: tmux, with its own server, at a given size."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
LOOK_AGAIN_S = 0.05  # tmux does not report changes of the screen


class Terminal:
    """One pane: its content, and keys for it."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S).stdout

    def press(self, *keys: str) -> None:
        """Presses keys by tmux's names: "Enter", "Down", "x"."""
        self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def colours(self) -> str:
        """Returns the screen with its escape sequences."""
        return self.tmux("capture-pane", "-p", "-e")

    def shows(self, *texts: str) -> str:
        """Returns the screen once it shows all of the texts."""
        return self.wait(lambda screen: all(text in screen for text in texts), f"shows {texts}")

    def wait(self, is_so: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while not is_so(screen := self.screen()):
            assert time.monotonic() < deadline, f"the terminal never {what}:\n{screen}"
            time.sleep(LOOK_AGAIN_S)
        return screen


@contextmanager
def terminal(
    folder: Path, columns: int, lines: int, *command: str, environment: Mapping[str, str]
) -> Generator[Terminal]:
    """Runs the command on a terminal of that size, then prints its exit code. `folder` gets tmux's socket."""
    opened = Terminal(folder / "tmux")
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    typed = shlex.join(command)
    shell = f"cd {shlex.quote(str(ROOT))}; env -i TERM=screen-256color LANG=C.UTF-8 {variables} {typed}; "
    shell += "echo exit code $?; read -r _"
    opened.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), shell)
    try:
        yield opened
    finally:
        opened.tmux("kill-server")
