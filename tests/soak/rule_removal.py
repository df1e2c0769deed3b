"""Does a test fail if a rule of the tables of faults and of security is taken away? Each in a copy of the sources."""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree

import psutil

from tests.soak.rule_entries import ROOT, Rule, rules

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_RUN_S_MAX = 1200


def main(arguments: argparse.Namespace) -> list[str]:
    """Returns the rules that no test misses, and the tests that fail without a change, too."""
    words: list[str] = arguments.rows
    chosen = [rule for rule in rules() if not words or set(words) & set(rule.row.split())]
    if not chosen:
        return [f"no rule of {', '.join(words)} has an entry"]
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what a broken rule leaves behind is ours to end
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hf-rules-") as name:
        os.chmod(name, 0o755)  # some tests play another user
        copy = Copy(Path(name))
        if not arguments.no_control:
            every = {test for rule in chosen for test in rule.tests}
            failed = copy.outcome_of(every)
            wrong += [f"without a change: {test} {how}" for test, how in failed.items() if how != "passed"]
        for rule in chosen:
            began_s = time.monotonic()
            outcomes = copy.without(rule)
            wrong += [f"{rule.row}, {rule.says}: {test} {how}" for test, how in outcomes.items() if how != "fell"]
            for test, how in outcomes.items():
                print(f"{rule.row}: {rule.says}: {test} {how} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return wrong


class Copy:
    """The sources, and an environment whose every process imports them from there."""

    def __init__(self, folder: Path) -> None:
        self._tree = folder / "tree"
        self._report = folder / "report.xml"
        self._temporary = folder / "t"
        subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", ROOT, self._tree], check=True)
        subprocess.run(["git", "-C", self._tree, "reset", "-q"], check=True)
        command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for file in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0"):
            if file and os.path.lexists(ROOT / file):
                (self._tree / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, self._tree / file, follow_symlinks=False)
        self._python = _environment(folder / "env", self._tree)
        # With PYTHONPATH, what a test starts would have the sources that are whole.
        self._variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def without(self, rule: Rule) -> dict[str, str]:
        """Returns what has become of each test of the rule while the rule was taken away."""
        path = self._tree / rule.file
        source = path.read_text()
        changed = rule.taken_from(source)
        if path.suffix == ".py":
            compile(changed, rule.file, "exec")
        path.write_text(changed)
        try:
            return self.outcome_of(rule.tests)
        finally:
            path.write_text(source)
            Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)  # it may seem to be as old

    def outcome_of(self, tests: Collection[str]) -> dict[str, str]:
        """Returns "fell", "passed", or why a test shows nothing."""
        self._report.unlink(missing_ok=True)
        command = [self._python, "-m", "pytest", "-m", "", f"--junitxml={self._report}"]
        command += [f"--basetemp={self._temporary}", *sorted(tests)]
        try:
            ran = subprocess.run(
                command, cwd=self._tree, env=self._variables, check=False, capture_output=True, errors="replace",
                timeout=_RUN_S_MAX,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return dict.fromkeys(tests, "did not end in time")
        finally:
            _end_what_is_left()
        if not self._report.exists():
            print(ran.stdout[-4000:], ran.stderr[-4000:])
            return dict.fromkeys(tests, "could not be run")
        cases = list(ElementTree.parse(self._report).iter("testcase"))
        return {test: _outcome([case for case in cases if _is_of(case, test)]) for test in tests}


def _environment(place: Path, tree: Path) -> str:
    """Makes a virtual environment that has all that this one has, but our sources from the tree; returns its python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    here, there = Path(sys.executable).parent, place / "bin"
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    (purelib / "_tree.pth").write_text(f"{tree}\n{tree / 'proto'}\n{sysconfig.get_path('purelib')}\n")
    for path in here.iterdir():
        to = there / path.name
        if to.exists() or path.is_dir():
            continue
        shebang = f"#!{here}/python".encode()
        content = path.read_bytes()
        if content.startswith(shebang):
            to.write_bytes(content.replace(str(here).encode(), str(there).encode()))
            to.chmod(0o755)
        else:
            to.symlink_to(path)
    return str(there / "python")


def _is_of(case: ElementTree.Element, test: str) -> bool:
    file, _, names = test.partition("::")
    *classes, name = names.split("::")
    where = ".".join([file.removesuffix(".py").replace("/", "."), *classes])
    return case.get("classname") == where and case.get("name", "").partition("[")[0] == name


def _outcome(cases: list[ElementTree.Element]) -> str:
    kinds = [(child.tag, child.get("message", "")) for case in cases for child in case]
    if any(tag == "failure" or (tag == "error" and "teardown" in message) for tag, message in kinds):
        return "fell"
    if why := [message for tag, message in kinds if tag in ("error", "skipped")]:
        return f"could not be run: {why[0]}"
    return "passed" if cases else "is not there"


def _end_what_is_left() -> None:
    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=10)
