"""The launcher's older guide, statement by statement, as far as it says more than the newer one."""

from __future__ import annotations

from pathlib import Path

import pytest

import worker_client
from supervisor.config.launch_settings import RUN_SETTINGS, settings_by_flag
from supervisor.core.cluster.restart_policy import Restart, Tolerate
from supervisor.core.facts import RestartPolicyName
from tests.config.runs import request
from tests.core.cluster.test_restart_policy import FaultHappened, decide, opened
from tests.seeds.documents import Document, asked
from worker_client import lightning

GUIDE = Document("launcher-usage-guide-older")


@GUIDE.says(7, "FaultToleranceCallback is a PTL callback that integrates FT with PTL")
def test_the_callback_of_lightning_is_there():
    assert "FaultToleranceCallback" in lightning.__all__


@GUIDE.says(
    15, "rank monitor is a special side process", instead="from-reference-product.md: You need not start rank monitors"
)
def test_there_is_no_server_to_start():
    assert not hasattr(worker_client, "RankMonitorServer")


@GUIDE.says(33, "Each rank uses RankMonitorClient to connect to its monitor")
def test_the_client_is_there():
    assert hasattr(worker_client.RankMonitorClient, "init_workload_monitoring")


@GUIDE.says(60, "either via a YAML file using --fault-tol-cfg-path or")
def test_the_older_name_of_the_file(tmp_path: Path):
    file = tmp_path / "ft.yaml"
    file.write_text("fault_tolerance:\n  rank_heartbeat_timeout: 90\n")
    found = request("--fault-tol-cfg-path", str(file), "train.py")
    assert found.spec.hang_limits.heartbeat_s == 90
    assert any("--fault-tol-cfg-path" in each and "--ft-cfg-path" in each for each in found.warnings)


@GUIDE.says(60, "through command-line parameters using --ft-param-<parameter-name>")
def test_the_older_form_of_each_parameter():
    flags = settings_by_flag()
    for setting in RUN_SETTINGS:
        if setting.flag.startswith("--ft-"):
            assert flags["--ft-param-" + setting.flag.removeprefix("--ft-")] == (setting, True)
    assert asked("--ft-param-rank_heartbeat_timeout", "90").hang_limits.heartbeat_s == 90


@GUIDE.says(62, "The restart behavior depends on the --restart-policy parameter, which supports two modes")
@pytest.mark.parametrize("policy", RestartPolicyName)
def test_two_policies(policy: RestartPolicyName):
    assert asked("--restart-policy", policy.value).restart.policy is policy


@GUIDE.says(64, "any-failed (default) All workers are restarted if any worker fails")
def test_any_failed_is_the_default_and_counts_nobody():
    assert asked().restart.policy is RestartPolicyName.ANY_FAILED
    decision = decide(opened(min_nodes=1), FaultHappened("a", "x", healthy_nodes=9, lived_s=60.0))
    assert isinstance(decision, Restart)


@GUIDE.says(66, "Workers are restarted when the number of healthy nodes (nodes where all worker processes are running)")
@pytest.mark.parametrize(("healthy", "kind"), [(3, Tolerate), (2, Tolerate), (1, Restart)])
def test_min_healthy_restarts_below_the_minimum(healthy: int, kind: type):
    play = opened(policy=RestartPolicyName.MIN_HEALTHY, min_nodes=2)
    assert isinstance(decide(play, FaultHappened("a", "x", healthy_nodes=healthy, lived_s=60.0)), kind)


@GUIDE.says(66, "This allows for some worker failures to be handled without restarting remaining workers")
def test_a_failure_that_is_tolerated_costs_no_restart():
    play = opened(policy=RestartPolicyName.MIN_HEALTHY, min_nodes=2)
    decide(play, FaultHappened("a", "x", healthy_nodes=2, lived_s=60.0))
    assert play.state.used == 0


def test_the_statements_stand_at_their_lines():
    GUIDE.compare()
