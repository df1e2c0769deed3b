"""A forked worker against plain `python -u script.py`: each row of the list of what a warm fork must hide.

Rows that need torch loaded ahead are in test_preloaded_torch.py.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.plain_python import compare_ends, reports
from tests.worker_client.spawner.rig import Rig, clean_env, worker


def test_a_script_sees_what_it_sees_under_plain_python(probe: Path, tmp_path: Path) -> None:
    before, after = reports(tmp_path, ["probe.py", "--lr", "0.1", ""], probe.parent)
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before
    assert after["stack_depth"] == 1
    assert not any("holdfast" in name or "worker_client" in name for name in after["modules"])


def test_a_script_by_its_absolute_path_from_elsewhere(probe: Path, tmp_path: Path) -> None:
    before, after = reports(tmp_path, [str(probe)], tmp_path)
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before


@pytest.mark.parametrize("entry", ["script", "module"])
def test_the_macro_local_rank_is_replaced_as_torchrun_does(probe: Path, tmp_path: Path, entry: str) -> None:
    """torchrun uses string.Template.safe_substitute for each argument of the script."""
    given = ["--out=log-${local_rank}-$local_rank", "$$5", "${rank} $local_rank_ ${LOCAL_RANK}", "$", "", "x$"]
    replaced = [Template(each).safe_substitute(local_rank="0") for each in given]
    assert replaced[0] == "--out=log-0-0"
    name = "probe.py" if entry == "script" else "probe"
    before, after = reports(tmp_path, [name, *given], probe.parent, entry=entry, typed=[name, *replaced])
    for report in (before, after):
        report["cmdline"] = report["cmdline"].rstrip("\0")  # the space that the macros took stays
    assert after == before


def test_the_macro_in_a_command_that_is_executed(script: Script) -> None:
    with Rig("/bin/echo", "${local_rank}", "$$", entry="command") as rig:
        rig.run(worker(1))
        assert rig.end()[0] == "1 $\n"
    with Rig(script("import sys; print(sys.argv[1:])"), "r${local_rank}", method="exec") as rig:
        rig.run(worker(3))
        assert rig.end()[0] == "['r3']\n"


def test_a_script_through_a_symbolic_link(probe: Path, tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(probe)
    before, after = reports(tmp_path, ["link.py"], tmp_path)
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before


def test_a_module(probe: Path, tmp_path: Path) -> None:
    before, after = reports(tmp_path, ["probe", "x"], probe.parent, entry="module")
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before


def test_a_package_with_a_main(probe: Path, tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    probe.rename(package / "__main__.py")
    before, after = reports(tmp_path, ["trainer"], tmp_path, entry="module")
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before
    assert after["main"]["__spec__"] == "trainer.__main__"


def test_a_folder_with_a_main(probe: Path, tmp_path: Path) -> None:
    probe.rename(probe.with_name("__main__.py"))
    before, after = reports(tmp_path, ["job"], tmp_path)
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONPATH": "/nowhere:/elsewhere"},
        {"PYTHONPATH": ""},
        {"PYTHONPATH": "/nowhere:"},
        {"PYTHONIOENCODING": "latin-1:replace"},
        {"PYTHONUTF8": "1", "PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": "7"},
        {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C"},
    ],
    ids=lambda env: "-".join(env),
)
def test_the_environment_comes_back_exactly(probe: Path, tmp_path: Path, env: dict[str, str]) -> None:
    before, after = reports(tmp_path, ["probe.py"], probe.parent, entry="script", typed=None, **env)
    assert set(after["modules"]) ^ set(before["modules"]) == set()
    assert after == before


def test_process_state_is_inherited(probe: Path, tmp_path: Path) -> None:
    (probe.parent / "sub").mkdir()
    code = (
        "import os, resource, signal, sys; os.umask(0o27); os.nice(3); signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (777, 888));"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    wrapper.chmod(0o755)
    expected, seen = tmp_path / "plain.json", tmp_path / "forked.json"
    env = clean_env()
    subprocess.run(
        [str(wrapper), "-u", str(probe)],
        env=env | {"PROBE_REPORT": str(expected), "RANK": "0", "LOCAL_RANK": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        check=True,
        timeout=60,
    )
    with Rig(str(probe), env=env, python=str(wrapper)) as rig:
        assert rig.run(worker(PROBE_REPORT=str(seen)))[0].code == 0
    before, after = json.loads(expected.read_text()), json.loads(seen.read_text())
    names = ("umask", "nice", "rlimits", "handlers", "kernel_signals", "cmdline", "comm")
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    nicer = min(os.nice(0) + 3, 19)
    assert (after["umask"], after["nice"], after["rlimits"]["RLIMIT_NOFILE"]) == ("0027", nicer, [777, 888])


def test_a_limit_that_the_supervisor_raised_for_itself_is_put_back(script: Script, tmp_path: Path) -> None:
    """Also under exec, but not if a wrapper of the interpreter has set its own since."""
    path = script("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nulimit -S -n 77\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        for method, python, found in (("fork", "", "200"), ("exec", "", "200"), ("fork", str(wrapper), "77")):
            with Rig(path, method=method, python=python or sys.executable, open_files=(200, hard)) as rig:
                rig.run(worker())
                assert rig.end()[0] == f"{found}\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ENDS = {
    "SystemExit int": "import sys; sys.exit(7)",
    "SystemExit str": "import sys; sys.exit('so it ends')",
    "SystemExit None": "import sys; sys.exit()",
    "SystemExit 256": "import sys; sys.exit(256)",
    "exception": "def f():\n    raise ValueError('lost')\nf()",
    "chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "syntax error": "def f(:\n",
    "exception hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\nraise OSError('x')",
    "os._exit": "import os; os._exit(9)",
    "own SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "own SIGINT": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT); time.sleep(1)",
    "abort": "import os; os.abort()",
    "atexit": "import atexit\natexit.register(print, 'at exit')\nprint('main')",
    "thread joined": (
        "import threading, time\n"
        "def late():\n    time.sleep(0.2); print('thread')\n"
        "threading.Thread(target=late).start(); print('main')"
    ),
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "SIGPIPE is ignored": (
        "import os\nr, w = os.pipe(); os.close(r)\ntry:\n    os.write(w, b'x')\nexcept BrokenPipeError: print('EPIPE')"
    ),
    "error in a destructor at exit": "class A:\n    def __del__(self): print('gone')\na = A()",
    "broken stdout at exit": "import sys; print('x', file=sys.stderr); sys.stdout.close()",
    "warnings": "import warnings; warnings.warn('careful')\nassert not [] == 1",
}


@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS)
def test_a_script_ends_as_under_plain_python(script: Script, source: str) -> None:
    compare_ends(script(source))


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    code, _, err = compare_ends(str(tmp_path / "no.py"))
    assert code == 2
    assert "No such file" in err


def test_faulthandler_prints_the_same(script: Script) -> None:
    path = script("import faulthandler, os, signal\nfaulthandler.enable()\nos.kill(os.getpid(), signal.SIGSEGV)")
    code, _, err = compare_ends(path)
    assert code == -11
    assert "Fatal Python error" in err


MULTIPROCESSING = """
    import multiprocessing, os, sys
    def square(x):
        return x * x, sys.modules["__main__"].__name__, os.path.basename(sys.modules["__main__"].__file__)
    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        queue = context.Queue()
        with context.Pool(2) as pool:
            print(sorted(pool.map(square, range(4))))
        lock = context.Lock()
        with lock:
            print("locked", multiprocessing.current_process().name, multiprocessing.parent_process())
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_work(script: Script, method: str) -> None:
    code, out, err = compare_ends(script(MULTIPROCESSING), method)
    assert code == 0, err
    assert "(9, " in out


def test_a_module_beside_the_script_wins_over_the_library(script: Script) -> None:
    """Names that the spawner itself imports come from the script's folder, as without it."""
    for name in ("json", "select", "dataclasses", "socket", "ast", "ctypes", "platform"):
        script("WHO = 'mine'\n", f"job/{name}.py")
    path = script(
        """
        import json, dataclasses, socket, ast, ctypes, platform
        print([getattr(m, "WHO", "library") for m in (json, dataclasses, socket, ast, ctypes, platform)])
        """
    )
    _, out, _ = compare_ends(path)
    assert out == str(["mine"] * 6) + "\n"


def test_random_streams_differ_between_ranks_and_the_hash_seed_does_not(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import json, multiprocessing, os, random, sys, tempfile, uuid
        drawn = {"random": random.random(), "authkey": multiprocessing.current_process().authkey.hex(),
                 "uuid": uuid.uuid4().hex, "urandom": os.urandom(8).hex(), "temporary": tempfile.mktemp()}
        with open(sys.argv[1] + os.environ["RANK"], "w") as file:
            json.dump([drawn, hash("rank")], file)
        """
    )
    with Rig(path, str(tmp_path / "drawn")) as rig:
        rig.run(worker(0), worker(1))
    (first, first_hash), (second, second_hash) = (
        json.loads((tmp_path / f"drawn{rank}").read_text()) for rank in (0, 1)
    )
    assert all(first[name] != second[name] for name in first)
    assert first_hash == second_hash  # docs/architecture/spawner.md says so: this is all that ranks share


def test_no_descriptor_of_another_worker_or_of_the_spawner_leaks(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, sys, time
        names = {n: os.readlink(f"/proc/self/fd/{n}") for n in ("0", "1", "2")}
        others = [n for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")]
        with open(sys.argv[1] + os.environ["RANK"], "w") as file:
            file.write(f"{len(others)} {sorted(names.values())}")
        """
    )
    with Rig(path, str(tmp_path / "fds")) as rig:
        rig.run(*(worker(rank) for rank in range(4)))
    found = [(tmp_path / f"fds{rank}").read_text() for rank in range(4)]
    assert all(each.startswith("0 ") for each in found)
    assert len(set(found)) == 4  # each has its own pipes
