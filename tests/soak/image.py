"""Can a user without rights build the image, and does a job run in it? On a bare Debian, without a registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.deploy.sources import ROOT

BASE = """
FROM scratch
ADD root.tar /
RUN python3 -m venv /venv
ENV PATH=/venv/bin:/usr/bin:/bin PIP_NO_INDEX=1
"""

# $1: the folder. The user nobody gets ids for namespaces, through files that no other process sees.
ROOTLESS = """
set -eu
echo nobody:200000:65536 > "$1/ids"
mount --bind "$1/ids" /etc/subuid
mount --bind "$1/ids" /etc/subgid
exec setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups \\
    env -i HOME="$1/home" XDG_RUNTIME_DIR="$1/home" USER=nobody PATH=/usr/bin:/bin:/usr/sbin:/sbin sh -euc '
cd "$0"
work() { buildah --storage-driver vfs "$@"; }
work bud -q --isolation chroot -t localhost/base base
work bud -q --isolation chroot --build-arg BASE=localhost/base --build-arg TORCH= \\
    -f context/deploy/Containerfile -t train context
container=$(work from localhost/train)
work run --isolation chroot "$container" -- \\
    sh -c "test \\$(id -u) = 1000; echo pass > x.py; holdfast run --nproc-per-node 2 x.py"
' "$1"
"""


def missing() -> str:
    """Returns why that is not possible here, "" if it is."""
    lost = [each for each in ("buildah", "newuidmap", "setpriv", "unshare") if not shutil.which(each)]
    return f"needs {', '.join(lost)} (Debian: buildah, uidmap, util-linux)" if lost else ""


def built(folder: Path, root: Path, dist: Path, minor: str, error_of: Callable[[Sequence[str]], str]) -> str:
    """Returns what went wrong, "" if nothing. `root`: the bare Debian; `minor`: of its Python."""
    place = folder / "image"
    context = place / "context"
    shutil.copytree(ROOT / "deploy", context / "deploy")
    (place / "base").mkdir()
    (place / "home").mkdir()
    (place / "base/Containerfile").write_text(BASE)
    wheel = next(dist.glob("*.whl"))
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--python-version", f"3.{minor}"]
    left_out = [f"--exclude=./{each}/*" for each in ("dev", "proc", "sys")]
    steps = (
        [*fetch, "-d", str(context / "dist"), f"{wheel}[supervisor]"],
        ["tar", "-C", str(root), "-cf", str(place / "base/root.tar"), *left_out, "."],
        ["chown", "-R", "nobody", str(place)],
        ["unshare", "-m", "sh", "-c", ROOTLESS, "sh", str(place)],
    )
    folder.chmod(0o755)
    try:
        return next((error for step in steps if (error := error_of(step))), "")
    finally:  # its files belong to ids of the namespace
        subprocess.run(["chown", "-R", "0:0", str(place)], check=True, timeout=300)
