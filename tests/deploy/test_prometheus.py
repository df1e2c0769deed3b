"""Do a real Prometheus server, its linter, the alerts and the dashboard work with a real supervisor?"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.lab import until
from tests.e2e.daemons import NodeDaemon

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
CONFIGURATION = ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARD = ROOT / "deploy/grafana/holdfast.json"
RULE_TESTS = Path(__file__).with_name("alerts_test.yml")
START_S = 60.0
# What the dashboard shows and this job may lack: a check with findings, a restart within the last minute.
MAY_BE_EMPTY = re.compile(r'verdict!="healthy"|\[1m\]\)\) > 0$')

WORKER = """
import os, signal
from worker_client import RankMonitorClient
if os.environ["RANK"] == "1" and os.environ["HOLDFAST_CYCLE"] == "0":
    raise SystemExit(1)
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
signal.pause()
"""

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (Debian: prometheus)")


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def expressions(dashboard: dict[str, Any]) -> dict[str, str]:
    """Returns a query's place → the query, as Grafana sends it with everything selected."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    found |= {f"annotation {each['name']}": each["expr"] for each in dashboard["annotations"]["list"]}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])
            assert series is not None, variable
            found[f"variable {variable['name']}"] = series[1]
    return {
        where: expression.replace("$instance", ".*").replace("$job_id", ".*") for where, expression in found.items()
    }


class Server:
    """A Prometheus server that scrapes one supervisor every second."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def api(self, path: str, **arguments: str) -> dict[str, Any]:
        query = f"?{urllib.parse.urlencode(arguments)}" if arguments else ""
        answer = json.loads(fetched(f"{self.url}/api/v1/{path}{query}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self.api("query", query=expression)["result"]

    def is_up(self) -> bool:
        try:
            return bool(fetched(f"{self.url}/-/ready"))
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, target: str) -> Generator[Server]:
    """Runs the shipped configuration, with other targets and shorter intervals."""
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(ALERTS.parent / name) for name in configuration["rule_files"]]
    configuration["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(json.dumps(configuration))  # which is YAML, too
    port = free_port()
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        server = Server(port)
        until(lambda: server.is_up() or process.poll() is not None, START_S, "Prometheus is ready")
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.kill()
        process.wait()


@contextmanager
def running_job(folder: Path, daemon: NodeDaemon) -> Generator[None]:
    """Runs a job of two ranks that uses its only restart at once, and then sends heartbeats."""
    script = folder / "worker.py"
    script.write_text(WORKER)
    command = [
        sys.executable, "-m", "supervisor", "run", "--socket-dir", str(daemon.socket_dir), "--nproc-per-node", "2",
        "--max-restarts", "1", "--job-id", "watched", "--ft-storage-health-check-path", str(folder), str(script),
    ]  # fmt: skip
    with (folder / "job.log").open("wb") as log:
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        job.terminate()
        job.wait(60)


@needs_promtool
def test_a_real_server_reads_everything(tmp_path: Path):
    metrics = f"127.0.0.1:{free_port()}"
    with NodeDaemon(tmp_path / "node", "--metrics", metrics) as daemon, prometheus(tmp_path, metrics) as server:
        first = 'holdfast_restarts_total{cause="worker_failed"} == 0'
        until(lambda: server.query(first), START_S, "Prometheus sees a daemon without jobs")
        with running_job(tmp_path, daemon):
            _restart_is_seen(server, f"http://{metrics}/metrics")


def _restart_is_seen(server: Server, metrics: str) -> None:
    """Checks what Prometheus has read of the job and its first restart."""
    until(
        lambda: server.query('holdfast_job_running{job_id="watched"} == 1 and holdfast_job_cycle == 1'),
        START_S,
        "Prometheus sees the job in its second cycle",
    )
    marks = expressions(json.loads(DASHBOARD.read_text()))["annotation Restarts"]
    until(lambda: server.query(marks), START_S, "the first restart is marked")
    until(lambda: server.query("holdfast_rank_heartbeat_age_seconds"), START_S, "Prometheus sees heartbeats")
    page = fetched(metrics)
    _linted(page)
    _counted(page)
    until(lambda: server.query("rate(holdfast_lost_seconds_total[1h]) > 0"), START_S, "Prometheus sees lost time")
    _queries_find_something(server, page)
    _rules_hold(server)


def _linted(page: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _counted(page: str) -> None:
    """Checks the names that docs/metrics.md promises, and this job's values."""
    assert 'holdfast_restarts_total{cause="worker_failed"} 1.0' in page
    assert 'holdfast_recovery_seconds_count{phase="whole"} 1.0' in page
    for phase in ("stop", "start"):
        assert f'holdfast_recovery_seconds_count{{phase="{phase}"}} 1.0' in page
    documented = set(re.findall(r"`(holdfast_[a-z_]+)`", (ROOT / "docs/metrics.md").read_text()))
    families = set(re.findall(r"(?m)^# TYPE (\w+) ", page))
    own = {name for name in families if not name.startswith("holdfast_supervisor_process_")}
    assert documented == own, "docs/metrics.md names each, and no other"


def _queries_find_something(server: Server, page: str) -> None:
    """Each query is valid, uses existing names, and finds this job's data."""
    families = set(re.findall(r"(?m)^# TYPE (\w+) ", page))
    series = families | {f"{name}{end}" for name in families for end in ("_bucket", "_sum", "_count")}
    rules = yaml.safe_load(ALERTS.read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    queries = expressions(json.loads(DASHBOARD.read_text()))
    assert len(queries) > 20
    for where, expression in {**queries, **alerts}.items():
        unknown = set(re.findall(r"holdfast_\w+", expression)) - series
        assert not unknown, f"{where}: {expression}"
        found = server.query(expression)
        assert found or where in alerts or MAY_BE_EMPTY.search(expression), f"nothing found, {where}: {expression}"


def _rules_hold(server: Server) -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        rules = [rule for group in server.api("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules = until(evaluated, START_S, "all rules evaluated")
    assert len(rules) == ALERTS.read_text().count("- alert: ")
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    firing = until(lambda: [each for each in server.api("alerts")["alerts"] if each["state"] == "firing"], START_S, "")
    assert [(each["labels"]["alertname"], each["labels"]["job_id"]) for each in firing] == [
        ("HoldfastRestartBudgetNearlyUsed", "watched")
    ]
    assert "used 100% of its restarts" in firing[0]["annotations"]["summary"]


@needs_promtool
def test_the_linter_of_the_rules_and_of_the_configuration_has_nothing_to_say():
    for command in (["check", "rules", str(ALERTS)], ["check", "config", str(CONFIGURATION)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_before():
    done = subprocess.run(
        ["promtool", "test", "rules", RULE_TESTS.name],
        capture_output=True, text=True, timeout=30, check=False, cwd=RULE_TESTS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tested = [test["name"] for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]]
    assert tested == re.findall(r"- alert: (\w+)", ALERTS.read_text())


@needs_promtool
def test_the_dashboard_counts_jobs_and_restarts_and_not_their_nodes(tmp_path: Path):
    """A rank of n1 and one of n2 hang in a collective; n1 leads and decides on the restart."""
    runs = {("trains", "n1"): 1, ("trains", "n2"): 1, ("trains", "spare"): 0, ("waits", "n1"): 0, ("waits", "n2"): 0}
    series = {
        f'holdfast_job_running{{job_id="{job}", instance="{node}"}}': f"{value} {value}"
        for (job, node), value in runs.items()
    } | {
        'holdfast_events_total{kind="restart_decided", instance="n1"}': "0 1",
        'holdfast_events_total{kind="restart_decided", instance="n2"}': "0 0",
        'holdfast_restarts_total{cause="hang_detected", instance="n1"}': "0 1",
        'holdfast_restarts_total{cause="hang_detected", instance="n2"}': "0 1",
        'holdfast_restarts_total{cause="another_node", instance="n3"}': "0 1",
        'holdfast_restarts_total{cause="worker_failed", instance="n3"}': "0 0",
        'holdfast_job_restarts_used{job_id="trains", instance="n1"}': "1 1",
        'holdfast_job_restarts_used{job_id="trains", instance="n2"}': "1 1",
        'holdfast_job_restarts_allowed{job_id="trains", instance="n1"}': "4 4",
        'holdfast_job_restarts_allowed{job_id="trains", instance="n2"}': "4 4",
    }
    wanted = {
        "Jobs that run A": ("{}", 1),
        "Jobs that wait A": ("{}", 1),
        "Restarts, 24 hours A": ("{}", 1),
        "Restarts by cause, an hour A": ('{cause="hang_detected"}', 2),
        "Restart budget used A": ('{job_id="trains"}', 0.25),
    }
    found = expressions(json.loads(DASHBOARD.read_text()))
    _find(tmp_path, series, {found[where]: expected for where, expected in wanted.items()})


@needs_promtool
def test_the_alert_on_a_budget_tells_its_used_share_once_for_all_nodes(tmp_path: Path):
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    (alert,) = [rule["expr"] for rule in rules if rule["alert"] == "HoldfastRestartBudgetNearlyUsed"]
    budget = {"used": "0 4", "allowed": "5 5"}
    series = {
        f'holdfast_job_restarts_{which}{{job_id="trains", instance="{node}"}}': values
        for which, values in budget.items()
        for node in ("n1", "n2")
    }
    _find(tmp_path, series, {alert: ('{job_id="trains"}', 0.8)})


def _find(folder: Path, series: dict[str, str], wanted: dict[str, tuple[str, float]]) -> None:
    """Checks what these expressions find at the second value of each series."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": "1m", "exp_samples": [{"labels": labels, "value": value}]}
            for expression, (labels, value) in wanted.items()
        ],
    }
    (folder / "test.json").write_text(json.dumps({"tests": [test]}))  # which is YAML, too
    done = subprocess.run(
        ["promtool", "test", "rules", str(folder / "test.json")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_says_what_to_do():
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket", "info"), rule
            assert set(rule["annotations"]) == {"summary", "action"}, rule
            for path in re.findall(r"docs/[\w-]+\.md", rule["annotations"]["action"]):
                assert (ROOT / path).is_file(), rule


def test_the_panels_of_the_dashboard_lie_side_by_side():
    dashboard = json.loads(DASHBOARD.read_text())
    taken = dict[tuple[int, int], str]()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"], f"{panel['title']} on another"
