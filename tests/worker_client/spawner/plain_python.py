"""The same script under plain python and as a forked worker: what does it see, how does it end?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.worker_client.spawner.rig import Rig, clean_env, worker

PROBE = Path(__file__).with_name("probe.py")


def plain(command: list[str], env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Runs what the user would have without us, started as by torchrun."""
    return subprocess.run(
        [sys.executable, "-u", *command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        timeout=60,
    )


def reports(
    tmp_path: Path, command: list[str], cwd: Path, *, entry: str = "script", typed: list[str] | None = None, **env: str
) -> tuple[Any, Any]:
    """Returns the probe's report from a plain process (started as `typed` if given), and from a forked worker."""
    expected, seen = tmp_path / "plain.json", tmp_path / "forked.json"
    rank = {"RANK": "0", "LOCAL_RANK": "0"}
    prefix = ["-m"] if entry == "module" else []
    done = plain([*prefix, *(typed or command)], clean_env(**env, **rank, PROBE_REPORT=str(expected)), cwd)
    assert done.returncode == 0, done.stderr
    with Rig(*command, env=clean_env(**env), cwd=cwd, entry=entry) as rig:
        (end,) = rig.run(worker(PROBE_REPORT=str(seen)))
        out, err = rig.end()
    assert (end.code, out, err) == (0, "", "")
    before, after = json.loads(expected.read_text()), json.loads(seen.read_text())
    for report in (before, after):
        del report["environ"]["PROBE_REPORT"]
    return before, after


def compare_ends(path: str, *arguments: str, **env: str) -> tuple[int, str, str]:
    """Compares exit code (or minus the signal), stdout and stderr with those of plain python."""
    rank = {"RANK": "0", "LOCAL_RANK": "0"}
    done = plain([path, *arguments], clean_env(**env, **rank), Path(path).parent)
    with Rig(path, *arguments, env=clean_env(**env), cwd=Path(path).parent) as rig:
        (end,) = rig.run(worker())
        out, err = rig.end()
    code = end.code if end.signal is None else -end.signal
    assert code is not None
    assert (code, out, _shown(err)) == (done.returncode, done.stdout.decode(), _shown(done.stderr.decode()))
    return code, out, err


def _shown(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x…", text)  # addresses differ from process to process
