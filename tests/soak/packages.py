"""Do the packages work on every available Python, and on a bare Debian? Builds them twice and compares the bytes.

Pythons are those in PATH and of pyenv, and with root and debootstrap those of Debian releases, each in a separate root.
With --torch, each Python outside of those roots also trains with that torch. It prints what can't be tried here.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.deploy.sources import copied
from tests.soak import image

MINORS = range(11, 15)
RELEASES = ("bookworm", "trixie", "forky")
MIRROR = "http://deb.debian.org/debian"
EPOCH = "1700000000"
STEP_S = 900.0
BOOTSTRAP_S = 3600.0  # of a release, on a machine that does other things too
PROTOBUFS = ("3.20.3", "4.25.8", "5.29.5")  # as training environments pin it

SCRIPT = """
import os, sys
if os.environ["HOLDFAST_CYCLE"] == "0" and os.environ["RANK"] == "1":
    sys.exit(1)
print("rank", os.environ["RANK"], "ends well", flush=True)
"""
RUN = ["run", "--nproc-per-node", "2", "--max-restarts", "1"]
# A killed rank, then an exception, then the end.
TRAIN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, cycle = dist.get_rank(), int(os.environ["HOLDFAST_CYCLE"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if step == 3 and (rank, cycle) == (1, 0):
        os.kill(os.getpid(), 9)
    if step == 3 and (rank, cycle) == (0, 1):
        raise RuntimeError("by intention")
dist.destroy_process_group()
print("rank", rank, "ends well with torch", torch.__version__, flush=True)
"""
RUN_TRAIN = ["run", "--nproc-per-node", "2", "--max-restarts", "2"]
NOISE = "nanobind: leaked"

# A root over another one, which stays unchanged; it needs no network. $1: the root, the rest: the command.
INSIDE = """
set -eu
root=$1 seen=$2; shift 2
place=$(mktemp -d)
mount -t tmpfs tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/whole"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$place/upper,workdir=$place/work" "$place/whole"
mount -t proc proc "$place/whole/proc"
mount --rbind /dev "$place/whole/dev"
mkdir "$place/whole/seen"
mount --bind "$seen" "$place/whole/seen"
exec chroot "$place/whole" "$@"
"""
DEBIAN = """
set -eu
dpkg -i /seen/*.deb
holdfast --version
holdfast run --python /opt/holdfast/bin/python3 --nproc-per-node 2 --max-restarts 1 /seen/script.py
for unit in holdfast holdfast-healthd; do test -f /lib/systemd/system/$unit.service; done
for copied in users/holdfast.service slurm/prolog.sh slurm/settings nvhcd/config.yaml; do
    test -f /usr/share/holdfast/$copied
done
test -f /usr/share/man/man1/holdfast-run.1
/opt/holdfast/bin/python3 -c "import textual, opentelemetry.sdk"
dpkg -i /seen/*.deb
dpkg -r holdfast
for left in /opt/holdfast /usr/bin/holdfast /lib/systemd/system/holdfast.service; do test ! -e $left; done
"""
WHEELS = """
set -eu
python3 -m venv /place
/place/bin/pip install -q --no-index --find-links /seen/wheels 'holdfast-torch[supervisor]'
/place/bin/holdfast run --nproc-per-node 2 --max-restarts 1 /seen/script.py
"""


def main(arguments: argparse.Namespace) -> list[str]:
    """Returns the failures."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-packages-") as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        roots = Path(arguments.roots).expanduser()
        sources = copied(folder / "a/sources", changed_at_s=1_600_000_001)
        elsewhere = copied(folder / "b/sources", changed_at_s=1_500_000_000, sources=sources)
        first = _built(sources, folder / "a/dist", PYTHONHASHSEED="1")
        again = _built(elsewhere, folder / "b/dist", PYTHONHASHSEED="2", TZ="Asia/Tokyo")
        for path in sorted(first.iterdir()):
            same = path.read_bytes() == (again / path.name).read_bytes()
            print(f"{path.name}: {path.stat().st_size} bytes, {'the same twice' if same else 'NOT the same twice'}")
            wrong += [] if same else [f"{path.name} is not reproducible"]
        (folder / "train.py").write_text(TRAIN)
        on_torch = _on_torch(folder, first, arguments.torch)
        tries = (_on_pythons(folder, first), _beside_protobuf(folder, first), on_torch, _in_roots(folder, first, roots))
        for tried, error in itertools.chain(*tries):
            print(f"{tried}: {error or 'well'}", flush=True)
            wrong += [f"{tried}: {error}"] if error else []
    return wrong


def _built(sources: Path, to: Path, **environment: str) -> Path:
    command = [str(sources / "deploy/build-dist"), sys.executable, str(to), "all"]
    subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH, **environment}, check=True, timeout=STEP_S)
    return to


def _on_pythons(folder: Path, dist: Path) -> Iterator[tuple[str, str]]:
    """Yields what was tried, and what failed, "" if nothing."""
    wheel = next(dist.glob("*.whl"))
    for minor in MINORS:
        python = _python(minor)
        if python is None:
            print(f"not tried: Python 3.{minor} in PATH or of pyenv: it is not there")
            continue
        place = folder / f"on-{minor}"
        steps = (
            [python, "-m", "venv", "--without-pip", str(place)],
            [*_pip(place), f"{wheel}[supervisor]"],
            [str(place / "bin/holdfast"), *RUN, str(folder / "script.py")],
        )
        yield f"wheel on Python 3.{minor}", next((error for step in steps if (error := _error(step))), "")


def _beside_protobuf(folder: Path, dist: Path) -> Iterator[tuple[str, str]]:
    """The supervisor's extra leaves the protobuf of a training environment as it is."""
    wheel = next(dist.glob("*.whl"))
    for version in PROTOBUFS:
        place = folder / f"protobuf-{version}"
        steps = (
            [sys.executable, "-m", "venv", "--without-pip", str(place)],
            [*_pip(place), f"protobuf=={version}"],
            [*_pip(place), f"{wheel}[supervisor]"],
            [str(place / "bin/python"), "-c", f"import google.protobuf as p; assert p.__version__ == {version!r}"],
            [str(place / "bin/holdfast"), *RUN, str(folder / "script.py")],
            [str(place / "bin/holdfast"), "jobs"],
        )
        yield f"wheel beside protobuf {version}", next((error for step in steps if (error := _error(step))), "")


def _on_torch(folder: Path, dist: Path, versions: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Real training: several GB for each torch and Python, which are removed at once."""
    wheel = next(dist.glob("*.whl"))
    for version, minor in itertools.product(versions, MINORS):
        python, place = _python(minor), folder / f"torch-{version}-on-{minor}"
        if python is None:
            continue
        made = [python, "-m", "venv", "--without-pip", str(place)]
        install = [*_pip(place), f"torch=={version}", "numpy", f"{wheel}[supervisor]"]
        error = _error(made) or _error(install)
        if "No matching distribution found for torch" in error:
            print(f"not tried: torch {version} on Python 3.{minor}: there is no wheel")
        else:
            command = [str(place / "bin/holdfast"), *RUN_TRAIN, str(folder / "train.py")]
            yield f"training with torch {version} on Python 3.{minor}", error or _trained(command)
        shutil.rmtree(place, ignore_errors=True)


def _trained(command: Sequence[str]) -> str:
    code, text = run_bounded(command)
    if code or text.count("ends well") != 2 or NOISE in text:
        return f"exit code {code}: {text[-3000:]}"
    return ""


def _python(minor: int) -> str | None:
    """One that can make environments: a shim of pyenv stands for nothing, where its version is not chosen."""
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv"), "versions").expanduser()
    of_pyenv = sorted(map(str, versions.glob(f"3.{minor}.*/bin/python3.{minor}")))
    candidates = (shutil.which(f"python3.{minor}"), *of_pyenv)
    return next((each for each in candidates if each and not _error([each, "-c", "import venv, ensurepip"])), None)


def _pip(place: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "-q"]


def _in_roots(folder: Path, dist: Path, roots: Path) -> Iterator[tuple[str, str]]:
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        print("not tried: bare Debian (needs root and debootstrap)")
        return
    for release in RELEASES:
        root = roots / release
        if not (root / "usr/bin/python3").exists() and (error := _bootstrapped(release, root)):
            print(f"not tried: Debian {release}: {error}")
            continue
        minor = (root / "usr/bin/python3").readlink().name.removeprefix("python3.")
        seen = folder / f"seen-{release}"
        seen.mkdir()
        shutil.copy(folder / "script.py", seen)
        yield f"wheel on Debian {release}, Python 3.{minor}", _wheels_inside(root, seen, dist, minor)
        if minor == _debian_minor():
            shutil.copy(next(dist.glob("*.deb")), seen)
            yield f"package on Debian {release}", _inside(root, seen, DEBIAN)
            if why_not := image.missing():
                print(f"not tried: the image: {why_not}")
            else:
                yield f"image on Debian {release}", image.built(folder, root, dist, minor, _error)


def _bootstrapped(release: str, root: Path) -> str:
    """Makes a root of the release, which stays for the next time."""
    root.parent.mkdir(parents=True, exist_ok=True)
    making = root.with_name(f"{release}.making")
    shutil.rmtree(making, ignore_errors=True)
    include = "--include=python3,python3-venv"
    script = Path("/usr/share/debootstrap/scripts", release)
    more = [] if script.exists() else [str(script.with_name("sid"))]
    alone = ["unshare", "-m"]  # so that the /proc that it mounts inside ends with it
    command = [*alone, "debootstrap", "--variant=minbase", include, release, str(making), MIRROR, *more]
    error = _error(command, BOOTSTRAP_S)
    if not error:
        making.rename(root)
    return error


def _wheels_inside(root: Path, seen: Path, dist: Path, minor: str) -> str:
    wheel = next(dist.glob("*.whl"))
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--python-version", f"3.{minor}"]
    return _error([*fetch, "-d", str(seen / "wheels"), f"{wheel}[supervisor]"]) or _inside(root, seen, WHEELS)


def _inside(root: Path, seen: Path, script: str) -> str:
    namespaces = ["unshare", "-m", "-p", "-f", "-n", "--mount-proc"]
    return _error([*namespaces, "sh", "-c", INSIDE, "sh", str(root), str(seen), "sh", "-c", script])


def _debian_minor() -> str:
    """Returns the minor version of the Python for which the package is built here."""
    return Path("/usr/bin/python3").readlink().name.removeprefix("python3.")


def _error(command: Sequence[str], limit_s: float = STEP_S) -> str:
    code, text = run_bounded(command, limit_s)
    return f"exit code {code}: {text[-1500:]}" if code else ""


def run_bounded(command: Sequence[str], limit_s: float = STEP_S) -> tuple[int, str]:
    """Returns exit code and output. At the limit, ends the command with all that it has started in its session."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    ) as started:  # fmt: skip
        try:
            text, _ = started.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            text, _ = started.communicate()
            return 124, f"{text}\nnot done within {limit_s:g} s"
    return started.returncode, text
