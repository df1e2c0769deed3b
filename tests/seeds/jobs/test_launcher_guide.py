"""The launcher's guides, the newer and the older one, statement by statement: what real jobs do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.hangs import MONITORED, told, verdict
from tests.e2e.launch import Launch, assert_nothing_left, launched, wait_until
from tests.seeds.documents import Document

GUIDE = Document("launcher-usage-guide")
OLDER = Document("launcher-usage-guide-older")
PAGE = "from-reference-product.md"
LIMIT_S = 0.5
WRAPPER = """#!/usr/bin/env bash
set -euo pipefail
if {folder}/bcm-healthcheck "$@"; then
printf '{{"fail_count": 0, "failed_checks": []}}\\n'
exit 0
else
printf '{{"fail_count": 1, "failed_checks": ["bcm_healthcheck"]}}\\n'
exit 1
fi
"""


@contextmanager
def ended(folder: Path, *arguments: str, **environment: str) -> Generator[Launch]:
    with launched(folder, *arguments, environment=environment) as launch:
        launch.wait()
        yield launch


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Generator[Launch]:
    """Yields an ended job of two ranks, one of which failed in the first cycle."""
    folder = tmp_path_factory.mktemp("failing")
    log = ("--ft-per-cycle-applog-prefix", str(folder / "train.log"))
    words = ("0:1/init,beat,limits,fail", "0:0/init", "1:*/init,beat,exit=0")
    with ended(folder, "--nproc-per-node=2", "--max-restarts=3", *log, MONITORED, *words) as launch:
        yield launch


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Generator[Launch]:
    """Yields an ended job of two ranks, one of which hung in a section in the first cycle, the other beat."""
    folder = tmp_path_factory.mktemp("hanging")
    limit = ("--ft-rank-section-timeouts", f"load:{LIMIT_S}")
    words = ("0:1/init,open=load,hang=sleep", "1:*/exit=0")
    with ended(folder, "--nproc-per-node=2", "--max-restarts=1", *limit, MONITORED, *words) as launch:
        yield launch


@GUIDE.says(7, "ft_launcherspawns ranks (can also respawn if--max-restartsis greater than 0)")
@OLDER.says(31, "ft_launcher spawns ranks (can also respawn if --max-restarts is greater than 0)")
def test_ranks_are_started_and_started_again(failing: Launch):
    assert sorted((line["cycle"], line["rank"]) for line in failing.traced("started")) == [
        (0, 0), (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip


@GUIDE.says(7, "and propagated to other FT components")
@OLDER.says(27, "FT configuration is passed to ft_launcher and propagated to other FT components")
def test_a_rank_knows_the_configuration(failing: Launch):
    (known,) = failing.traced("limits")
    assert "2700" in str(known["heartbeat"])


@GUIDE.says(8, "RankMonitorClientto connect to its monitor (RankMonitorServer)")
@OLDER.says(35, "Each rank periodically sends updates to its rank monitor")
def test_each_rank_connects(failing: Launch):
    assert len(failing.traced("initialised")) >= 3


@GUIDE.says(
    7, "ft_launcherspawns rank monitors (once)", instead="from-reference-product.md: You need not start rank monitors"
)
def test_no_process_stands_beside_a_rank(failing: Launch):
    ranks = {line["pid"] for line in failing.traced("started")}
    reported = {event["rank"] for event in told(failing, "worker_exited")}
    assert (len(ranks), reported) == (4, {0, 1})
    assert_nothing_left(failing)


@GUIDE.says(29, "the launcher restarts failed workers")
@OLDER.says(62, "If --max-restarts is specified, the launcher restarts failed workers")
def test_a_failed_rank_is_an_ordinary_event(failing: Launch):
    assert failing.process.returncode == 0
    (failed,) = told(failing, "worker_failed")
    assert str(failed["reason"]).endswith("exit code 1")


@GUIDE.says(31, "are restarted if any worker fails (torchrun-style behavior)")
def test_the_healthy_rank_is_restarted_too(failing: Launch):
    first, second = [line["pid"] for line in failing.traced("started") if line["rank"] == 0]
    assert first != second


@GUIDE.says(10, "If any ranks disappear, ft_launcherdetects that and terminates or restarts the workload")
@OLDER.says(39, "If any ranks disappear, ft_launcher detects that and terminates or restarts the workload")
def test_the_restart_is_decided_once(failing: Launch):
    assert len(told(failing, "restart_decided")) == 1


@GUIDE.says(143, "worker and launcher output can be merged through pipes")
def test_each_cycle_has_its_log(failing: Launch):
    assert (failing.folder / "train_cycle0.log").read_text() == "1: unknown action fail\n"


@GUIDE.says(9, "In case of a hang, the rank monitor detects missing updates from its rank and terminates it")
@OLDER.says(37, "In case of a hang, the rank monitor detects missing updates from its rank and terminates it")
def test_a_hang_is_ended(hanging: Launch):
    (ended_first,) = [each for each in told(hanging, "worker_exited") if each["rank"] == 1 and each["cycle"] == 0]
    assert str(ended_first["reason"]).endswith("was killed by SIGKILL")
    assert hanging.process.returncode == 0


@GUIDE.says(216, "If any section is opened for too long, the workload is considered hung")
@OLDER.says(78, "If any section is opened for too long, the workload is considered hung")
def test_a_section_that_stays_open_is_a_hang(hanging: Launch):
    assert "load" in verdict(hanging).reason


@GUIDE.says(212, "Users can choose the API that is best suited for their needs, or use both APIs at the same time")
@OLDER.says(70, "two fully independent mechanisms for detecting hangs in user code")
def test_the_rank_that_only_beats_is_healthy_beside_it(hanging: Launch):
    assert verdict(hanging).event["rank"] == 1


@GUIDE.says(214, "If no heartbeat arrives in a defined time, the workload is considered hung")
@OLDER.says(74, "If no heartbeat arrives in a defined time, the workload is considered hung")
def test_a_rank_without_heartbeats_is_a_hang(tmp_path: Path):
    limit = ("--ft-rank-heartbeat-timeout", str(LIMIT_S))
    with ended(tmp_path, "--max-restarts=1", *limit, MONITORED, "0:0/init,beat,hang=sleep", "1:0/exit=0") as launch:
        assert launch.process.returncode == 0
        assert "sent no heartbeat for" in verdict(launch).reason


@GUIDE.says(219, "break the launcher restarting loop and exit instead of restarting")
@OLDER.says(82, "break the launcher restarting loop and exit instead of restarting")
def test_a_rank_ends_the_job(tmp_path: Path):
    with ended(tmp_path, "--max-restarts=3", MONITORED, "*:0/init,control=ShutdownWorkload:broken,exit=3") as launch:
        assert launch.process.returncode != 0
        assert "restart_decided" not in launch.kinds()
        assert "broken" in launch.stderr_text()


@GUIDE.says(221, "exclude the current node from subsequent restart attempts")
@OLDER.says(82, "exclude the current node from subsequent restart attempts")
def test_a_rank_excludes_its_node(tmp_path: Path):
    with ended(tmp_path, "--max-restarts=3", MONITORED, "*:0/init,control=ExcludeThisNode:ecc,exit=3") as launch:
        assert launch.process.returncode != 0
        assert len(launch.traced("started")) == 1
        assert "ecc" in launch.stderr_text()


@GUIDE.says(188, "automatically wraps each worker process with numactl")
def test_each_worker_is_started_by_numactl(tmp_path: Path):
    program = tmp_path / "bin" / "numactl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/bound\nshift 2\nexec "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    words = ("--nproc-per-node=2", MONITORED, "*:*/exit=0")
    with ended(tmp_path, *words, NVRX_GPUS_PER_NUMA="1", PATH=path) as launch:
        assert launch.process.returncode == 0
    bound = sorted((tmp_path / "bound").read_text().splitlines())
    assert bound == ["--cpunodebind=0 --membind=0", "--cpunodebind=1 --membind=1"]


@contextmanager
def checked_job(folder: Path, check: str) -> Generator[Launch]:
    """Yields an ended job whose node was checked by the service, through the guide's wrapper."""
    for name, text in (("bcm-healthcheck", check), ("wrapper.sh", WRAPPER.format(folder=folder))):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path, config = folder / "nvhcd.sock", folder / "config.yaml"
    config.write_text(f"socket_path: {path}\nhealthcheck_path: {folder}/wrapper.sh\nlog_level: info\ntimeout: 120\n")
    command = [sys.executable, "-m", "supervisor", "healthd", "-config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until(path.exists, timeout_s=20, what="the health service")
        endpoint = ("--ft-node-health-check-endpoint", f"unix://{path}")
        with ended(folder, *endpoint, MONITORED, "*:*/exit=0") as launch:
            yield launch
        process.terminate()


@GUIDE.says(71, "nvhcd -config /etc/nvhcd/config.yaml")
@GUIDE.says(77, "--no-slurm argument will appear in the wrapper")
def test_the_guides_wrapper_is_asked(tmp_path: Path):
    with checked_job(tmp_path, f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n') as launch:
        assert launch.process.returncode == 0
        assert "nvhcd: healthy" in str(told(launch, "node_checked")[0]["reason"])
    assert (tmp_path / "asked").read_text() == "--no-slurm\n"


@GUIDE.says(79, '#!/usr/bin/env bash set -euo pipefail if /path/to/bcm-healthcheck "$@"; then')
def test_the_guides_wrapper_keeps_a_sick_node_out(tmp_path: Path):
    with checked_job(tmp_path, "#!/bin/sh\nexit 1\n") as launch:
        assert launch.process.returncode != 0
        assert "bcm_healthcheck" in launch.stderr_text()
        assert launch.traced("started") == []


def test_the_statements_stand_at_their_lines():
    GUIDE.compare()
    OLDER.compare()
