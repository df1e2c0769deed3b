"""A service for several users with its own folders, and people with other user ids who use it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from tests.e2e.launch import wait_until

ROOT = Path(__file__).parent.parent.parent
END_S = 60.0
PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHON_FOLDERS = {Path(sys.base_prefix), Path(sys.prefix), ROOT}


def missing() -> str:
    """Returns why such a service is not possible here; "" if it is."""
    if os.geteuid() != 0:
        return "only root can serve other users"
    for tool in ("unshare", "nsenter", "setpriv"):
        if not shutil.which(tool):
            return f"needs {tool} (Debian: util-linux)"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return "needs mount namespaces" if done.returncode else ""


def opened(keep: Path) -> str:
    """Returns a script that opens the interpreter and this checkout to others, in this mount namespace."""
    lines = ["set -e", "mount --make-rprivate /"]
    closed: dict[Path, list[Path]] = {}
    for folder in sorted(PYTHON_FOLDERS):
        top = next((each for each in reversed(folder.parents) if not each.stat().st_mode & 0o001), None)
        if top is not None:
            closed.setdefault(top, []).append(folder)
    for number, (top, folders) in enumerate(closed.items()):
        for each, folder in enumerate(folders):
            kept = keep / f"{number}-{each}"
            lines += [f"mkdir -p {kept}", f"mount --bind {shlex.quote(str(folder))} {kept}"]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(top))}")
        for each, folder in enumerate(folders):
            where = shlex.quote(str(folder))
            lines += [f"mkdir -p {where}", f"mount --move {keep / f'{number}-{each}'} {where}"]
    return "\n".join(lines)


class Service:
    """`holdfast daemon --users …`, which users other than the tests' own can reach."""

    def __init__(self, place: Path, *arguments: str, program: Sequence[str] = ("-m", "supervisor")) -> None:
        """`program`: what is run in the place of `python -m supervisor`."""
        self.place = place
        self.socket_dir = place / "run"
        self.state_dir = place / "state"
        self.errors = place / "errors"
        self._arguments = arguments
        self._program = program
        self._namespace = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", opened(place / "keep") + "\necho ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._namespace.stdout is not None
        assert self._namespace.stdout.readline() == b"ready\n"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "SECRET_OF_ROOT": "hunter2"}
        self.start()

    def name_user(self, name: str, uid: int, home: str = "/tmp") -> None:
        """Adds a user to the database that the service sees."""
        passwd = self.place / "passwd"
        passwd.write_text(Path("/etc/passwd").read_text() + f"{name}:x:{uid}:{uid}::{home}:/bin/sh\n")
        subprocess.run(self.inside("mount", "--bind", str(passwd), "/etc/passwd"), check=True)

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", "-m", "-t", str(self._namespace.pid), "--", *command]

    def start(self) -> None:
        """Returns once clients are admitted."""
        command = self.inside(
            sys.executable, *self._program, "daemon", "--socket-dir", str(self.socket_dir),
            "--state-dir", str(self.state_dir), *self._arguments,
        )  # fmt: skip
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=self.environment, cwd="/"
            )
        wait_until(self._is_serving, timeout_s=END_S, what="the service")

    def _is_serving(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.errors.read_text()
        return f"service {self.process.pid} lets in" in self.errors.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def started(
        self, uid: int, *command: str, groups: Sequence[int] = (), before: str = "", stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Starts a command of this user. `before`: what the user's shell does first."""
        listed = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
        as_user = ["setpriv", "--reuid", str(uid), "--regid", str(uid), *listed] if uid else []
        shell = ["sh", "-c", f'{before or ":"}; exec "$@"', "sh", *command]
        home = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "HOLDFAST_SOCKET_DIR": str(self.socket_dir)}
        return subprocess.Popen(
            self.inside(*as_user, *shell), env=home, cwd="/", text=True, stdin=stdin,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(
        self, uid: int, *command: str, groups: Sequence[int] = (), before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        process = self.started(uid, *command, groups=groups, before=before)
        try:
            out, err = process.communicate(timeout=END_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def holdfast(self, uid: int, *arguments: str, groups: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
        return self.run(uid, sys.executable, "-m", "supervisor", *arguments, groups=groups)

    def jobs(self, uid: int) -> dict[str, dict[str, object]]:
        """Returns the live jobs that this user sees."""
        answer = self.holdfast(uid, "status", "-o", "json")
        assert answer.returncode == 0, answer.stderr
        return {job["job_id"]: job for job in json.loads(answer.stdout)["jobs"]}

    def supervisor_of(self, uid: int, groups: Sequence[int] = ()) -> tuple[Path, int]:
        """Returns its folder and its pid."""
        for folder in (self.socket_dir / "users").glob(f"{uid}.*"):
            record = json.loads((folder / "record.json").read_text())
            if record["identity"]["groups"] == list(groups):
                return folder, record["pid"]
        raise AssertionError(f"user id {uid} has no supervisor with the groups {groups}")

    def close(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        with self._namespace:
            self._namespace.kill()


@contextlib.contextmanager
def service(*arguments: str, program: Sequence[str] = ("-m", "supervisor")) -> Generator[Service]:
    place = Path(tempfile.mkdtemp(prefix="users", dir="/tmp"))
    place.chmod(0o755)
    try:
        running = Service(place, *arguments, program=program)
        try:
            yield running
        finally:
            running.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def until(condition: object, what: str) -> None:
    """Checks several times a second: each check is a command of a user."""
    assert callable(condition)
    deadline_s = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)
