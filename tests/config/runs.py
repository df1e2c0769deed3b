"""Shortcuts of the tests for `holdfast run`'s command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor.config.resolve import RunRequest, parse_run

CWD = "/somewhere"


def request(*argv: str, environ: Mapping[str, str] | None = None, gpus: int = 0) -> RunRequest:
    return parse_run(argv, environ=environ or {}, cwd=CWD, count_gpus=lambda _: gpus)


def with_section(folder: Path, section: str, *argv: str, environ: Mapping[str, str] | None = None) -> RunRequest:
    """Returns a run with the lines of `section` below fault_tolerance in a file."""
    path = folder / "job.yaml"
    lines = "".join(f"  {line}\n" for line in section.splitlines())
    path.write_text("fault_tolerance:\n" + lines)
    return request("--ft-cfg-path", str(path), *argv, "train.py", environ=environ)
