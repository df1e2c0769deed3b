"""Does the command run our packages despite others with their names, and report it if it can't? In real environments.

Each is a virtual environment with the files that pip would put there; nothing is downloaded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import supervisor
from worker_client import channel_protocol

ROOT = Path(__file__).parents[1]
VERSION = "holdfast 0.1.0\n"
SCRIPT = """#!{python}
import sys
from {module} import main
if __name__ == '__main__':
    sys.exit(main())
"""
STRANGER = "raise SystemExit('a stranger was loaded')\n"


class Environment:
    """An environment with Holdfast installed."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        self.needs = self.site / "needs.pth"
        self.needs.write_text(sysconfig.get_path("purelib"))
        self.work = folder.with_name("work")
        self.work.mkdir()
        package = self.site / "supervisor"
        package.mkdir()
        for path in (ROOT / "supervisor").iterdir():
            (package / path.name).symlink_to(path)
        for path in (ROOT / "worker_client", ROOT / "proto" / "holdfast_wire", ROOT / "holdfast_command.py"):
            (self.site / path.name).symlink_to(path)
        self.add_distribution("holdfast_torch", command="holdfast_command")

    def add_distribution(self, name: str, *, command: str = "") -> None:
        """Adds a distribution's metadata, and its command `holdfast` in place of ours."""
        metadata = self.site / f"{name}-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
        if command:
            (metadata / "entry_points.txt").write_text(f"[console_scripts]\nholdfast = {command}:main\n")
            script = self.folder / "bin" / "holdfast"
            script.write_text(SCRIPT.format(python=self.python, module=command))
            script.chmod(0o755)

    def add_supervisord(self) -> None:
        """Installs the process control system after us: one of its files replaces one of ours."""
        self.add_distribution("supervisor")
        (self.site / "supervisor" / "__init__.py").unlink()
        (self.site / "supervisor" / "__init__.py").write_text("#\n")
        (self.site / "supervisor" / "supervisord.py").write_text(STRANGER)

    def holdfast(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.folder / "bin" / "holdfast"), *arguments, **more)

    def module(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.python), "-m", "supervisor", *arguments, **more)

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        given = {"PATH": os.environ["PATH"], "HOME": str(self.folder.parent), "LANG": "C.UTF-8", **more}
        return subprocess.run(
            command, env=given, cwd=self.work, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """Makes a folder with packages of our names, and of one that we need."""
    folder = tmp_path / "strangers"
    for name in ("supervisor", "worker_client"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(STRANGER)
    return folder


def test_where_nothing_is_in_the_way_nothing_is_said(environment: Environment) -> None:
    for start in (environment.holdfast, environment.module):
        done = start("--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, VERSION, "")


def test_no_start_reads_the_metadata_of_all_distributions(environment: Environment) -> None:
    code = (
        "import sys; sys.argv = ['holdfast', '--version']; import holdfast_command; holdfast_command.main();"
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    assert environment.run(str(environment.python), "-c", code).returncode == 0


@pytest.mark.usefixtures("no_supervisor_of_the_node")
def test_packages_of_our_names_on_the_path_are_not_ours_and_stay_the_scripts(
    environment: Environment, strangers: Path
) -> None:
    (strangers / "supervisor" / "__init__.py").write_text("NAME = 'of the script'\n")
    (environment.work / "train.py").write_text("import supervisor; print(supervisor.NAME)\n")
    done = environment.holdfast("run", "train.py", PYTHONPATH=str(strangers), HOLDFAST_STATE_DIR="state")
    assert (done.returncode, done.stdout, done.stderr) == (0, "of the script\n", "")


def test_what_lies_in_the_current_folder_is_not_imported(environment: Environment) -> None:
    for name in ("msgspec", "worker_client", "yaml", "json"):
        (environment.work / f"{name}.py").write_text(STRANGER)
    for start in (environment.holdfast, environment.module):
        assert start("--version").stdout == VERSION


def test_a_strangers_package_alone_is_told_from_ours(environment: Environment, strangers: Path) -> None:
    (environment.site / "supervisor").rename(environment.site / "removed")
    (strangers / "supervisor" / "__init__.py").write_text("")
    done = environment.holdfast("--version", PYTHONPATH=str(strangers))
    assert done.returncode == 78
    assert f"cannot run: module supervisor.cli is missing in {environment.site}" in done.stderr
    assert "reinstall holdfast-torch" in done.stderr


def test_without_the_extra_the_remedy_is_said(environment: Environment) -> None:
    environment.needs.unlink()
    done = environment.holdfast("--version")
    assert done.returncode == 78
    assert f"module msgspec is not installed for {environment.python}; holdfast-torch is needed" in done.stderr
    assert "Traceback" not in done.stderr


def supervisord_on_top(environment: Environment) -> None:
    environment.add_supervisord()


def supervisord_removed(environment: Environment) -> None:
    (environment.site / "supervisor" / "__init__.py").unlink()


@pytest.mark.parametrize(
    ("happened", "told"),
    [(supervisord_on_top, "supervisord is installed there, too"), (supervisord_removed, "its first file is missing")],
)
def test_a_package_that_is_not_whole_is_refused_with_the_remedy(
    environment: Environment, happened: Callable[[Environment], None], told: str
) -> None:
    happened(environment)
    for start in (environment.holdfast, environment.module):
        done = start("--version")
        assert (done.returncode, done.stdout) == (78, "")
        assert "another distribution has overwritten or removed files of the package 'supervisor'" in done.stderr
        assert told in done.stderr
        assert "pip install --force-reinstall --no-deps holdfast-torch" in done.stderr


def test_beside_supervisord_it_works_and_warns(environment: Environment) -> None:
    """It is installed after us, or we are reinstalled."""
    environment.add_supervisord()
    (environment.site / "supervisor" / "__init__.py").unlink()
    (environment.site / "supervisor" / "__init__.py").symlink_to(ROOT / "supervisor" / "__init__.py")
    done = environment.holdfast("--version")
    assert (done.returncode, done.stdout) == (0, VERSION)
    assert "holdfast: warning: the distribution 'supervisor' (supervisord) has its files in" in done.stderr


def test_another_distributions_command_is_named(environment: Environment) -> None:
    environment.add_distribution("holdfast", command="holdfast.cli")
    done = environment.module("--version")
    assert (done.returncode, done.stdout) == (0, VERSION)
    script = environment.folder / "bin" / "holdfast"
    assert f"the command {script} is not Holdfast's but belongs to the distribution 'holdfast'" in done.stderr


def test_our_own_older_distribution_is_no_stranger(environment: Environment) -> None:
    environment.add_distribution("holdfast", command="supervisor.cli")
    for start in (environment.holdfast, environment.module):
        done = start("--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, VERSION, "")


@pytest.mark.parametrize("arguments", [("job/train.py",), ("-m", "train")])
def test_a_folder_that_hides_the_client_from_the_script_is_named(
    environment: Environment, arguments: tuple[str, ...]
) -> None:
    folder = environment.work / "job"
    folder.mkdir()
    (folder / "train.py").touch()
    place = environment.work if "-m" in arguments else folder
    quiet = environment.holdfast("run", "--dry-run", *arguments)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    (place / "worker_client").mkdir()
    done = environment.holdfast("run", "--dry-run", *arguments)
    assert done.returncode == 0
    assert f"warning: {place / 'worker_client'} hides Holdfast's worker_client from the script" in done.stderr


def test_garbage_is_looked_for_again_once_the_command_itself_runs() -> None:
    script = (
        "import gc, sys; import supervisor.cli.run as run, holdfast_command\n"
        "run.execute_argv = lambda arguments: print(gc.isenabled(), arguments) or 0\n"
        "sys.argv = ['holdfast', 'run', 'train.py']\n"
        "sys.exit(holdfast_command.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "True ['train.py']\n"), done.stderr


def test_command_client_and_distribution_have_one_version() -> None:
    """`holdfast doctor` compares those of a supervisor and a client."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == supervisor.__version__ == channel_protocol.CLIENT_VERSION


@pytest.mark.parametrize(
    "run",
    [
        "import holdfast_command; sys.exit(holdfast_command.main())",
        "runpy.run_module('supervisor', run_name='__main__')",
    ],
)
@pytest.mark.parametrize(
    ("loaded", "ignored", "code"),
    [("supervisor.cli", False, -signal.SIGINT), ("supervisor.cli", True, 0), ("supervisor.cli.parsing", False, 130)],
)
def test_an_interrupt_while_the_command_loads_shows_no_traceback(run: str, loaded: str, ignored: bool, code: int):
    command = f"""
import os, runpy, signal, sys
if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {loaded!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.path.insert(0, {str(ROOT)!r})
sys.meta_path.insert(0, Interrupt())
sys.argv = ["holdfast", "jobs", "--help"]
{run}
"""
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, "")
