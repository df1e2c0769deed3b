"""A job runs wherever it is started: closed, full and stuck streams, no home, no disk, a stranger in /tmp."""

from __future__ import annotations

import pytest

from tests.e2e import grounds
from tests.e2e.grounds import STRANGER, Done, on_ground

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(bool(grounds.missing()), reason=grounds.missing())]

SQUATTED = f"mkdir -m 700 /tmp/holdfast-0; chown {STRANGER} /tmp/holdfast-0"
ALL_SQUATTED = f"for p in /tmp /var/tmp /dev/shm; do mkdir -m 700 $p/holdfast-0; chown {STRANGER} $p/holdfast-0; done"
FULL = "mount -o remount,size=16k,mode=755 {0}; head -c 64k /dev/zero > {0}/filler 2>/dev/null || true"
END = (
    "code=$?; cat /mnt/proof; ls -d /tmp/holdfast-r* /var/tmp/holdfast-r* /dev/shm/holdfast-r* 2>/dev/null; exit $code"
)
FULL_PIPE = "mkfifo p; exec 7<>p; dd if=/dev/zero bs=1024 count=64 of=p oflag=nonblock 2>/dev/null;"


def check_ran(done: Done) -> None:
    """It succeeded, and its private folder is gone."""
    assert (done.code, done.out.splitlines()[-1:]) == (0, ["ran"]), done
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "start",
    [
        "$RUN >&- 2>&-",
        "$RUN <&- >&- 2>&-",
        "$RUN > /dev/full 2> /dev/full",
        "$RUN --redirects 3 2> /dev/full",
        f"{FULL_PIPE} PET_NO_SUCH_FLAG=1 HOLDFAST_STATE_DIR=/proc/x $RUN --rdzv-backend c10d 2> p",
        "$RUN 2>&1 | true",
        "TMPDIR=/nonexistent $RUN",
        "TMPDIR=/proc $RUN",
        "umask 777; $RUN",
        "umask 000; $RUN",
        "ulimit -n 48; $RUN",
        "mkdir gone; cd gone; rmdir ../gone; $RUN",
        "mkdir gone; cd gone; rmdir ../gone; PYTHONPATH=/mnt:$PYTHONPATH timeout 40 $HOLDFAST run -m job",
        "env -u HOME -u HOLDFAST_STATE_DIR XDG_RUNTIME_DIR=/nonexistent $RUN",
        "mount -o remount,ro /tmp; $RUN",
        f"{FULL.format('/tmp')}; $RUN",
        f"{FULL.format('/tmp')}; {FULL.format('/var/tmp')}; $RUN",
        "mount -o remount,nr_inodes=1 /tmp; $RUN",
        "mkdir -p /mnt/state/holdfast; chmod 755 /mnt/state/holdfast; $RUN",
    ],
)
def test_ground_that_costs_nothing_but_a_word(start: str) -> None:
    done = on_ground(f"{start}\n{END}")
    if "| true" in start:
        assert "ran" in done.out
        return
    check_ran(done)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("mount -t tmpfs -o ro tmpfs /mnt/state", "Read-only file system"),
        (f"mount -t tmpfs tmpfs /mnt/state; mkdir /mnt/state/holdfast; {FULL.format('/mnt/state')}", "No space left"),
        ("mkdir -m 777 /mnt/state/holdfast; chmod 777 /mnt/state/holdfast", "others may write to it"),
        (f"mkdir -m 700 /mnt/state/holdfast; chown {STRANGER} /mnt/state/holdfast", f"belongs to user id {STRANGER}"),
        ("rmdir /mnt/state; touch /mnt/state", "File exists"),
        ("export HOLDFAST_STATE_DIR=/proc/nowhere/x", "No such file or directory"),
    ],
)
def test_a_state_directory_that_cannot_be_used_is_one_warning_and_history_is_found(spoil: str, why: str) -> None:
    done = on_ground(f"{spoil}\n$RUN || exit\n$HOLDFAST jobs; $HOLDFAST logs ground; $HOLDFAST events ground\n{END}")
    check_ran(done)
    (warning,) = [line for line in done.err.splitlines() if "warning" in line]
    assert why in warning
    assert "/tmp/holdfast-0/state" in warning
    assert "with --state-dir or HOLDFAST_STATE_DIR" in warning
    assert "ground  succeeded" in done.out
    assert "[cycle 0 rank 0] rank 0" in done.out
    assert "all ranks exited with code 0" in done.out.split("TIME  ", 1)[1]


LONG_JOB = """
import os, time
open("/mnt/proof", "a").write("ran\\n")
os.mkfifo("/mnt/end")
open("/mnt/end").read()
"""


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (SQUATTED, f"cannot use /tmp/holdfast-0: it belongs to user id {STRANGER}"),
        ("mkdir -m 700 /tmp/holdfast-0; chmod 711 /tmp/holdfast-0", "cannot use /tmp/holdfast-0: its mode is 0711"),
        ("ln -s /mnt /tmp/holdfast-0", "cannot use /tmp/holdfast-0: it is a symbolic link"),
        ("mount -o remount,ro /tmp", ""),
        (f"{ALL_SQUATTED}; mkdir -m 700 -p /run/user/0", f"belongs to user id {STRANGER}"),
    ],
)
def test_a_job_whose_usual_folder_is_taken_runs_is_found_and_stopped(spoil: str, words: str) -> None:
    done = on_ground(
        f"{spoil}\n$RUN & run=$!\n"
        "while ! [ -p /mnt/end ]; do :; done\n"
        "until $HOLDFAST status | grep ground; do :; done\n"
        f"$HOLDFAST stop ground --wait; wait $run; [ $? = 93 ] \n{END}",
        job=LONG_JOB,
    )
    check_ran(done)
    assert "running" in done.out
    warnings = [line for line in done.err.splitlines() if "warning" in line]
    assert len(warnings) == bool(words)
    assert words in "".join(warnings)


def test_a_stranger_in_every_folder_is_told_with_the_way_that_is_left() -> None:
    done = on_ground(f"{ALL_SQUATTED}\nunset HOME\n$RUN\n{END}")
    check_ran(done)
    assert "finds it with --socket-dir /tmp/holdfast-r" in done.err


def test_a_tokens_folder_that_others_opened_and_a_disk_that_fills_up_do_not_stop_a_restart() -> None:
    job = """
import os, subprocess, sys
from pathlib import Path
token = Path(os.environ["HOLDFAST_TOKEN_FILE"])
assert len(token.read_bytes()) == 32
if os.environ["HOLDFAST_CYCLE"] == "0":
    token.parent.parent.chmod(0o777)
    sys.exit(1)
if os.environ["HOLDFAST_CYCLE"] == "1":
    subprocess.run("mount -o remount,size=64k /tmp; head -c 1m /dev/zero > /tmp/filler", shell=True)
    sys.exit(1)
open("/mnt/proof", "a").write("ran\\n")
"""
    done = on_ground(f"timeout 40 $HOLDFAST run --max-restarts 2 /mnt/job.py\n{END}", job=job)
    check_ran(done)


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (
            "for p in /tmp /var/tmp /dev/shm; do mount -o remount,ro $p; done; unset HOME; $RUN",
            78,
            "cannot make a private socket directory: /tmp: Read-only file system",
        ),
        ("$HOLDFAST jobs -o json > /dev/full", 1, "cannot write to stdout: No space left on device"),
        ("$HOLDFAST --help > /dev/full", 1, "cannot write to stdout: No space left on device"),
        ("mkdir g; cd g; rmdir ../g; timeout 20 $HOLDFAST run job.py", 2, "cannot run job.py: the current folder was"),
    ],
)
def test_what_must_refuse_says_one_sentence(script: str, code: int, words: str) -> None:
    done = on_ground(script)
    assert done.code == code, done
    assert "Traceback" not in done.err
    assert words in done.err.splitlines()[-1]
    assert len(done.err.splitlines()) <= 2  # a line that the job's id could not be claimed may precede it


def test_a_fault_of_ours_is_a_sentence_with_a_file_and_the_jobs_processes_are_gone() -> None:
    """A module that Python loads at its start breaks the supervisor once the job runs."""
    broken = """
import sys
if "supervisor" in " ".join(sys.orig_argv) and "run" in sys.orig_argv:
    import supervisor.engine.engine_loop as loop
    async def boom(self, *a, **k):
        while not __import__("os").path.exists("/mnt/end"):
            await __import__("anyio").sleep(0.01)
        raise KeyError("never thought of")
    from supervisor.queries.job_service import JobService
    JobService.wait = boom
"""
    job = "import os\nopen('/mnt/pid', 'w').write(str(os.getpid()))\n" + LONG_JOB
    done = on_ground(
        f"mkdir /mnt/site; cat > /mnt/site/sitecustomize.py <<'EOF'\n{broken}\nEOF\n"
        "PYTHONPATH=$PYTHONPATH:/mnt/site $RUN; code=$?\n"
        "kill -0 $(cat /mnt/pid) 2>/dev/null && echo alive\n"
        "cat /tmp/holdfast-0/faults/*.txt; exit $code",
        job=job,
    )
    assert done.code == 1, done
    (line,) = done.err.splitlines()
    assert "cannot run holdfast run: KeyError: 'never thought of'; " in line
    assert "its traceback is in /tmp/holdfast-0/faults/" in line
    assert "Traceback (most recent call last)" in done.out
    assert "alive" not in done.out


NOWHERE_BUT_HOME = """
mount -o remount,ro /tmp; mount -o remount,ro /var/tmp; mount -o remount,ro /dev/shm; mount -o remount,ro /run
unset XDG_RUNTIME_DIR
"""
WAITING = 'import os, time\nopen("/mnt/up", "w").close()\nwhile not os.path.exists("/mnt/end"):\n    time.sleep(0.05)\n'


def test_where_nothing_else_can_be_written_a_folder_at_home_is_used_and_found() -> None:
    script = f"""
{NOWHERE_BUT_HOME}
mkdir -m 700 /mnt/home; export HOME=/mnt/home
$RUN > /mnt/told 2>&1 &
for i in $(seq 300); do [ -e /mnt/up ] && break; sleep 0.1; done
stat -c '%a %n' $HOME/.holdfast-*
$HOLDFAST status -o jsonl
current=$(ls -d $HOME/.holdfast-*); old=${{current%????????}}01234567
cp -r $current $old; mkdir $HOME/.holdfast-ffffffff-01234567 $HOME/.holdfast-mine
$HOLDFAST stop ground --wait
wait; cat /mnt/told; ls -A $HOME
"""
    done = on_ground(script, job=WAITING)
    lines = done.out.splitlines()
    assert lines[0].startswith("700 /mnt/home/.holdfast-"), done
    assert '"job_id": "ground"' in lines[1]
    assert "job ground is being stopped" in done.err
    current = lines[0].rpartition("/")[2]
    assert sorted(lines[-3:]) == sorted([current, ".holdfast-ffffffff-01234567", ".holdfast-mine"]), done
    assert "Traceback" not in done.err + done.out


def test_a_home_of_another_user_is_not_used() -> None:
    script = f"""
{NOWHERE_BUT_HOME}
mkdir -m 777 /mnt/home; chown {STRANGER} /mnt/home; export HOME=/mnt/home
$RUN; code=$?; ls -A $HOME; exit $code
"""
    done = on_ground(script)
    assert (done.code, done.out) == (78, ""), done
    assert "cannot make a private socket directory" in done.err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("", 0), ("", 3), ("--ft-per-cycle-applog-prefix /mnt/state/app/train.log", 3),
        ("--ft-cycle-info-dir /mnt/state/info --ft-nvrx-logfile /mnt/state/log/x.log", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spoil", ["mount -o remount,ro /mnt/state", "umount -l /mnt/state; rmdir /mnt/state"])
def test_folders_that_go_before_the_end_change_neither_its_sentence_nor_its_code(
    options: str, code: int, spoil: str
) -> None:
    script = f"""
mount -t tmpfs tmpfs /mnt/state
timeout 40 $HOLDFAST run --job-id ground {options} /mnt/job.py & pid=$!
for i in $(seq 300); do [ -e /mnt/up ] && break; sleep 0.1; done
{spoil}
touch /mnt/end; wait $pid
"""
    done = on_ground(script, job=f"{WAITING}raise SystemExit({code})\n")
    assert done.code == (1 if code else 0), done
    assert "Traceback" not in done.err
    assert "a fault of Holdfast" not in done.err
    assert not code or "job ground failed with exit code 1" in done.err
