"""Which node of a job is a run on a machine that runs several? Between real processes, as for claims."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.edges.machine.processes import same_machine_nodes
from supervisor.edges.machine.processes.job_claims import Holder
from supervisor.errors import AlreadyExistsError

HOLDER = """
import sys
from pathlib import Path
from supervisor.edges.machine.processes import same_machine_nodes
name, meets_at = sys.argv[2:4]
place = same_machine_nodes.take("job", name=name, meets_at=meets_at, folders=[Path(sys.argv[1])])
print(place.number, place.name, flush=True)
sys.stdin.read()
"""

STRANGER = """
import os, sys
from pathlib import Path
from supervisor.edges.machine.processes import same_machine_nodes
os.setresgid(*3 * [65534])
os.setresuid(*3 * [65534])
place = same_machine_nodes.take("job", name="vm", meets_at="h:1", folders=[Path(each) for each in sys.argv[1:]])
print(place.number, place.name)
"""


@contextmanager
def another(folder: Path, name: str = "vm", meets_at: str = "h:1") -> Generator[tuple[subprocess.Popen[str], str]]:
    """Takes a place in another process; yields it with its number and name."""
    command = [sys.executable, "-c", HOLDER, str(folder), name, meets_at]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_each_node_of_the_job_on_this_machine_has_a_number_and_a_name_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "claims"
    with another(folder) as (first, said), another(folder) as (_, other):
        assert (said, other) == ("0 vm", "1 vm-1")
        third = same_machine_nodes.take("job", name="vm", rank=5, meets_at="h:1", folders=[folder])
        assert (third.number, third.name) == (2, "vm-5")
        third.claims.close()
        named = same_machine_nodes.take("job", name="127.0.0.3", meets_at="h:1", folders=[folder])
        assert (named.number, named.name) == (2, "127.0.0.3")
        named.claims.close()
        first.kill()
        first.wait()
        again = same_machine_nodes.take("job", name="vm", meets_at="h:1", folders=[folder])
        assert (again.number, again.name) == (0, "vm")
        again.claims.close()


def test_a_place_is_only_for_nodes_that_meet_at_the_same_address(tmp_path: Path) -> None:
    with another(tmp_path / "claims") as (process, _):
        for meets_at in ("", "h:2"):
            with pytest.raises(AlreadyExistsError) as caught:
                same_machine_nodes.take("job", name="vm", meets_at=meets_at, folders=[tmp_path / "claims"])
            assert "whose nodes meet at h:1, is live since" in str(caught.value)
            assert f"under the supervisor with pid {process.pid}" in str(caught.value)
    with another(tmp_path / "alone", meets_at="") as _, pytest.raises(AlreadyExistsError):
        same_machine_nodes.take("job", name="vm", meets_at="h:1", folders=[tmp_path / "alone"])


def test_a_job_of_one_node_has_no_place_beside_a_further_node_of_another(tmp_path: Path) -> None:
    with another(tmp_path / "claims") as (first, _), another(tmp_path / "claims") as (second, _):
        first.kill()
        first.wait()
        with pytest.raises(AlreadyExistsError, match=f"under the supervisor with pid {second.pid}"):
            same_machine_nodes.take("job", folders=[tmp_path / "claims"])


def test_a_run_that_learns_late_that_its_place_is_taken_takes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, the time for another run to write who it is may be over by then."""
    look, looks = same_machine_nodes._held, 0  # pyright: ignore[reportPrivateUsage]

    def free_at_first(job_id: str, base: Sequence[Path]) -> Mapping[int, Holder | None]:
        nonlocal looks
        looks += 1
        time.sleep(0.0 if looks > 1 else same_machine_nodes.SETTLE_S + 0.1)
        return look(job_id, base) if looks > 1 else {}

    monkeypatch.setattr(same_machine_nodes, "_held", free_at_first)
    with another(tmp_path / "claims"):
        place = same_machine_nodes.take("job", name="vm", meets_at="h:1", folders=[tmp_path / "claims"])
        assert (place.number, looks) == (1, 2)
        place.claims.close()


def test_runs_that_start_at_the_same_moment_get_different_places(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "claims"), "vm", "h:1"]
    runs = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    try:
        said = sorted(run.stdout.readline().split()[0] for run in runs if run.stdout is not None)
        assert said == ["0", "1", "2", "3", "4", "5"]
    finally:
        for run in runs:
            run.kill()
            run.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user, which only root can")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_that_somebody_else_has_put_there_and_closed_is_passed_by(tmp_path: Path, is_link: bool) -> None:
    closed, own = tmp_path / "holdfast-65534", tmp_path / "own"
    target = tmp_path / "elsewhere" if is_link else closed
    target.mkdir(mode=0o700)
    if is_link:
        closed.symlink_to(target)
    own.mkdir(mode=0o700)
    os.chown(own, 65534, 65534)
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    command = [sys.executable, "-c", STRANGER, str(closed / "claims"), str(own / "claims")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("0 vm\n", 0), done.stderr
    assert list((own / "claims").iterdir()), "the claim is held where nobody else can"
