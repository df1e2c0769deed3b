"""Does the hook get out of the interpreter without a trace, also where the user has a sitecustomize of their own?"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Ready, WorkerPlan
from holdfast_wire.spawner_settings import SpawnerSettings, settings_file, spawner_command

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.plain_python import compare_ends, reports
from tests.worker_client.spawner.rig import Rig, clean_env
from worker_client import spawner


def test_the_users_own_sitecustomize_runs_in_the_worker(probe: Path, tmp_path: Path) -> None:
    own = tmp_path / "site"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.dont_write_bytecode = 'mine'\n")
    before, after = reports(tmp_path, ["probe.py"], probe.parent, PYTHONPATH=str(own))
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before
    assert after["dont_write_bytecode"] == "mine"
    assert after["sitecustomize_ran"]


def test_a_users_sitecustomize_that_fails_is_reported_as_plain_python_does(script: Script, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    compare_ends(script("print('on')"), PYTHONPATH=str(tmp_path))


def test_a_spawner_that_cannot_begin_does_not_run_the_script_itself(script: Script) -> None:
    """The interpreter ignores errors in sitecustomize and continues: it would train outside of any job."""
    settings = SpawnerSettings(job_id="job-1", command=(script("print('trained')"),), preload="none")
    start = spawner_command(settings, clean_env(), link_fd=9)
    os.close(start.settings_fd)
    descriptor = settings_file(settings)  # without the folders to import from
    broken = start.env | {"HOLDFAST_SPAWNER_SETTINGS": str(descriptor)}
    done = subprocess.run(start.argv, env=broken, pass_fds=[descriptor], capture_output=True, text=True, timeout=30)
    os.close(descriptor)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ModuleNotFoundError: No module named 'holdfast_wire'" in done.stderr


def test_another_program_with_the_spawners_environment_is_left_alone(script: Script, tmp_path: Path) -> None:
    """A .pth file starts one, for example: its environment is the spawner's, and its descriptors are closed."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = True\n")
    settings = SpawnerSettings(job_id="job-1", command=(script("print('trained')"), "--lr", "1"), preload="none")
    start = spawner_command(settings, clean_env(PYTHONPATH=str(tmp_path)), link_fd=9)
    os.close(start.settings_fd)
    told = "import os, sys; print(sys.mine, sum('hook' in each for each in sys.path), sorted(os.environ))"
    done = subprocess.run([sys.executable, "-c", told], env=start.env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"True 0 {sorted(start.env)}\n"  # a spawner that it executes finds all


WRAPPERS = {
    "it executes the command": "os.execv(job, [job, *sys.argv[1:]])",
    "it waits for the command": "sys.exit(subprocess.run([job, *sys.argv[1:]]).returncode)",
}


@pytest.mark.parametrize("way", WRAPPERS.values(), ids=WRAPPERS)
def test_the_command_of_a_python_wrapper_is_the_spawner(tmp_path: Path, env: dict[str, str], way: str) -> None:
    """The wrapper's own interpreter, such as conda's, does not find the job's modules."""
    behind = tmp_path / "behind"
    (behind / "pkg").mkdir(parents=True)
    (behind / "pkg" / "train.py").write_text("import os, sys; print(os.getppid(), sys.argv[1:])\n")
    job, wrapper = tmp_path / "job-python", tmp_path / "python"
    job.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{behind}" exec {sys.executable} "$@"\n')
    wrapper.write_text(f"#!{sys.executable}\nimport os, subprocess, sys\njob = {str(job)!r}\n{way}\n")
    for each in (job, wrapper):
        each.chmod(0o755)
    with Rig("pkg.train", "a b", cwd=tmp_path, env=env, entry="module", python=str(wrapper), preload="torch") as rig:
        ready = rig.receive(Ready)
        assert (ready.refusal, ready.method, ready.preloaded) == ("", "fork", ("torch",))
        (ended,) = rig.run(WorkerPlan(0, 0, {}))
        assert ended.code == 0
        assert rig.end() == (f"{ready.pid} ['a b']\n", "")


def test_the_spawner_imports_nothing_of_ours_late() -> None:
    """By then, its modules are out of sight: the job's own worker_client would be found, of another version or none."""
    folder = Path(spawner.__file__).parent
    late: list[str] = []
    for path in folder.rglob("*.py"):
        if path.name != "__main__.py" and path.parent.name != "hook":
            functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
            inner = (node for function in functions for node in ast.walk(function))
            late += [f"{path.name}: {ast.unparse(node)}" for node in inner if _is_ours(node)]
    assert not late


def _is_ours(node: ast.AST) -> bool:
    ours = ("worker_client", "holdfast_wire")
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").startswith(ours)
    return isinstance(node, ast.Import) and any(each.name.startswith(ours) for each in node.names)
