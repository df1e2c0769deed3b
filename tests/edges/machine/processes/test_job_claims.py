"""Claims between real processes: the kernel decides who holds one, and for how long."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edges.machine.processes import job_claims
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.errors import AlreadyExistsError
from tests.e2e.launch import wait_until

HOLDER = """
import subprocess, sys
from pathlib import Path
from supervisor.edges.machine.processes.job_claims import JobClaims
claims = JobClaims([Path(sys.argv[1])])
claims.take("job")
child = subprocess.Popen(["sleep", "60"], pass_fds=claims.descriptors("job"), stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


def place(tmp_path: Path) -> Path:
    return tmp_path / "claims"


def test_an_id_is_claimed_once_until_it_is_released(tmp_path: Path) -> None:
    mine, other = JobClaims([place(tmp_path)]), JobClaims([place(tmp_path)])
    since_ns = mine.take("job")
    assert (mine.take("job"), mine.since_ns("job")) == (since_ns, since_ns)
    assert other.take("another") >= since_ns
    moment = r"\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d\d:\d\d"
    with pytest.raises(
        AlreadyExistsError, match=f"live since {moment}, under the supervisor with pid {os.getpid()}; choose"
    ):
        other.take("job")
    mine.release("job")
    assert mine.since_ns("job") is None
    assert other.take("job") >= since_ns
    other.close()
    assert list(place(tmp_path).iterdir()) == []


def test_a_claim_holds_until_the_last_process_of_the_job_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(place(tmp_path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        claims = JobClaims([place(tmp_path)])
        descriptor = os.pidfd_open(child)
        try:
            with pytest.raises(AlreadyExistsError, match=f"under the supervisor with pid {supervisor.pid}"):
                claims.take("job")
            supervisor.kill()
            supervisor.wait(20)
            with pytest.raises(AlreadyExistsError, match=f"pid {supervisor.pid}\\) is gone, and nobody ends them"):
                claims.take("job")
        finally:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
    end_s = job_claims.Clock().now_s() + 10
    while job_claims.is_held("job", place(tmp_path)):
        assert job_claims.Clock().now_s() < end_s
    claims.take("job")
    claims.close()


def test_another_run_of_the_id_is_told_from_what_is_left_of_this_one(tmp_path: Path) -> None:
    claims, ours = JobClaims([place(tmp_path)]), JobClaims([place(tmp_path)])
    assert not claims.is_of_another_run("job", 1)
    further = JobClaims(job_claims.numbered([place(tmp_path)], 1))  # of the same job, on this machine
    further.take("job")
    assert not claims.is_of_another_run("job", 1)
    since_ns = ours.take("job")
    assert [claims.is_of_another_run("job", each) for each in (1, since_ns, None)] == [True, False, True]
    os.truncate(place(tmp_path) / "job.claim", 0)  # as on a full disk
    assert claims.is_of_another_run("job", 1)
    assert claims.is_of_another_run("job", 1, left=[os.getpid() + 1])
    assert not claims.is_of_another_run("job", 1, left=[os.getpid()])
    ours.close()
    further.close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place(tmp_path))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        left = int(supervisor.stdout.readline())
        supervisor.kill()
    assert job_claims.is_held("job", place(tmp_path))
    assert not claims.is_of_another_run("job", None), "its record is damaged, and nobody has the id"
    os.kill(left, signal.SIGKILL)


def test_the_record_of_a_claim_is_never_lost_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = JobClaims([place(tmp_path)]), JobClaims([place(tmp_path)])
    since_ns = first.take("job", node="a node with a long name", meets_at="n1:29500")
    file = place(tmp_path) / "job.claim"
    before = file.read_bytes()

    def full(_descriptor: int, _content: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        later.take_back("job", since_ns, [os.dup(first.descriptors("job")[0])])
    assert file.read_bytes() == before
    os.truncate(file, 300)  # longer than the next record
    JobClaims([place(tmp_path)]).take_back("job", 7, [os.dup(first.descriptors("job")[0])])
    held = job_claims.holder("job", [place(tmp_path)])
    assert held is not None
    assert held.since_ns == 7
    first.close()
    later.close()


def test_a_process_that_was_stopped_is_named_with_what_ends_it(tmp_path: Path) -> None:
    """It would hold the id until somebody looks for it."""
    command = [sys.executable, "-c", HOLDER, str(place(tmp_path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: " T " in Path(f"/proc/{child}/stat").read_text(), timeout_s=20, what="the stop")
        supervisor.kill()
        supervisor.wait(20)
        try:
            with pytest.raises(
                AlreadyExistsError,
                match=rf"is gone, and process {child} of it is stopped \(state T\), so end it with kill -KILL {child};",
            ):
                JobClaims([place(tmp_path)]).take("job")
        finally:
            os.kill(child, signal.SIGKILL)


def test_asking_takes_nothing(tmp_path: Path) -> None:
    claims = JobClaims([place(tmp_path)])
    assert not job_claims.is_held("job", place(tmp_path))
    claims.take("job")
    assert job_claims.is_held("job", place(tmp_path))
    holder = job_claims.holder("job", [place(tmp_path)])
    assert holder is not None
    assert (holder.pid, holder.since_ns) == (os.getpid(), claims.since_ns("job"))
    claims.close()
    assert job_claims.holder("job", [place(tmp_path)]) is None


def test_a_folder_of_somebody_else_is_passed_over_and_a_claim_in_any_place_counts(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o700)
    open_to_all.chmod(0o777)
    places = [open_to_all, place(tmp_path)]
    first = JobClaims(places)
    first.take("job")
    assert job_claims.is_held("job", place(tmp_path))
    open_to_all.chmod(0o700)
    with pytest.raises(AlreadyExistsError):
        JobClaims(places).take("job")
    first.close()


def test_where_no_claim_can_be_written_the_job_goes_on_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    claims = JobClaims([tmp_path / "file"])
    assert claims.take("job") > 0
    assert claims.descriptors("job") == ()
    assert "cannot claim the id of job job, so a second job may take it" in caplog.text
    claims.close()


def test_a_chosen_folder_is_judged_without_the_one_above(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    tmp_path.chmod(0o755)
    place(tmp_path).mkdir(mode=0o700)
    claims = JobClaims([place(tmp_path)])
    claims.take("job")
    assert (job_claims.is_held("job", place(tmp_path)), caplog.text) == (True, "")
    claims.close()


def test_the_folder_with_the_fault_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The folder of a user in /tmp is ours: if others may enter it, no claim in it is safe."""
    monkeypatch.setattr(job_claims, "SHARED_PLACES", (tmp_path,))
    folder = tmp_path / f"holdfast-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    claims = JobClaims([folder / "claims"])
    claims.take("job")
    assert f": {folder}: its mode is 0755, so others may enter it; chmod 0700 {folder}" in caplog.text
    assert claims.descriptors("job") == ()
    claims.close()


def test_what_killed_supervisors_left_is_swept(tmp_path: Path) -> None:
    place(tmp_path).mkdir(mode=0o700)
    (place(tmp_path) / "dead.claim").touch()
    claims = JobClaims([place(tmp_path)])
    claims.take("job")
    assert [path.name for path in place(tmp_path).iterdir()] == ["job.claim"]
    claims.close()


def test_a_claim_that_is_being_removed_is_not_held_and_nobody_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that removes what others left must not cost anybody an id."""
    place(tmp_path).mkdir(mode=0o700)
    (place(tmp_path) / "dead.claim").touch()
    seen: list[bool] = []

    def look(descriptor: int, path: Path) -> bool:
        if path.name == "dead.claim":
            seen.append(job_claims.is_held("dead", place(tmp_path)))
            with pytest.raises(BlockingIOError):
                job_claims._lock(path, (1, "", ""))  # pyright: ignore[reportPrivateUsage]
        return os.path.samestat(os.fstat(descriptor), path.lstat())

    monkeypatch.setattr(job_claims, "_is_at", look)
    claims = JobClaims([place(tmp_path)])
    claims.take("job")
    assert (seen, [path.name for path in place(tmp_path).iterdir()]) == ([False], ["job.claim"])
    claims.close()


def test_a_cleaner_of_temporary_files_sees_that_the_folder_is_in_use(tmp_path: Path) -> None:
    """systemd-tmpfiles leaves a folder alone whose lock it does not get."""
    claims = JobClaims([place(tmp_path)])
    claims.take("job")
    folder = os.open(place(tmp_path), os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        claims.close()
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)


def test_claims_lie_where_every_shell_of_a_user_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.delenv("HOLDFAST_CLAIM_DIR", raising=False)
    assert job_claims.claim_folders()[0] == Path(f"/tmp/holdfast-{os.geteuid()}/claims")
    assert job_claims.claim_folders({"HOLDFAST_CLAIM_DIR": "/shared"}) == (Path("/shared"),)
