"""Would Kubernetes accept the manifests, and Holdfast their command lines?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from supervisor.config.daemon_settings import parse_daemon
from supervisor.config.job_spec import OnSigterm
from supervisor.config.resolve import parse_run
from supervisor.edges.operators.metrics import exporter

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
RELEASE = "1.37"
PARTS_OF_A_JOBSET = {"network", "failurePolicy", "successPolicy", "startupPolicy", "replicatedJobs", "suspend"}
OF_THE_PLATFORM = {"POD_IP": "10.0.0.7", "JOBSET": "train"}


@pytest.fixture(scope="module")
def schemas() -> ModuleType:
    return pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: pip install --group e2e")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def jobset() -> dict[str, Any]:
    (found,) = documents("jobset.yaml")
    return found


def job_of_the_set() -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", **jobset()["spec"]["replicatedJobs"][0]["template"]}


def arguments(container: dict[str, Any], pod_ip: str = OF_THE_PLATFORM["POD_IP"]) -> list[str]:
    """Returns the arguments as the container's first process gets them."""
    found: list[str] = container["args"]
    for name, value in {**OF_THE_PLATFORM, "POD_IP": pod_ip}.items():
        found = [each.replace(f"$({name})", value) for each in found]
    assert not [each for each in found if "$(" in each], "a variable that the container does not have"
    assert {each["name"] for each in container["env"]} >= {
        name for name in OF_THE_PLATFORM if f"$({name})" in " ".join(container["args"])
    }
    return found


@pytest.mark.parametrize("document", [*documents("daemonset.yaml"), job_of_the_set()], ids=lambda each: each["kind"])
def test_kubernetes_knows_every_field(document: dict[str, Any], schemas: ModuleType):
    schemas.validate(document, RELEASE, strict=True)


def test_a_field_that_does_not_exist_is_found(schemas: ModuleType):
    wrong = job_of_the_set()
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(schemas.ValidationError, match="livenesProbe"):
        schemas.validate(wrong, RELEASE, strict=True)


def test_the_set_is_one_by_the_rules_of_its_controller():
    """No package has JobSet's schema: the used part is checked here, according to its Go types."""
    found = jobset()
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(found["spec"]) <= PARTS_OF_A_JOBSET
    assert set(found["spec"]["network"]) <= {"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"}
    assert set(found["spec"]["failurePolicy"]) <= {"maxRestarts", "rules", "restartStrategy"}
    for each in found["spec"]["replicatedJobs"]:
        assert set(each) <= {"name", "replicas", "template", "groupName", "dependsOn"}
        assert set(each["template"]) <= {"metadata", "spec"}


def test_the_pods_of_the_set_meet_at_the_first_one():
    found, job = jobset(), job_of_the_set()["spec"]
    (container,) = job["template"]["spec"]["containers"]
    given = arguments(container)
    first = f"{found['metadata']['name']}-{found['spec']['replicatedJobs'][0]['name']}-0-0.{found['metadata']['name']}"
    port = container["ports"][0]["containerPort"]
    assert f"--rdzv-endpoint={first}:{port}" in given
    assert job["completions"] == job["parallelism"], "all nodes at the same time"
    assert f"--nnodes=3:{job['completions']}" in given
    assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy wants it"


def test_holdfast_takes_the_command_line_of_a_pod(tmp_path: Path):
    (container,) = job_of_the_set()["spec"]["template"]["spec"]["containers"]
    token = tmp_path / "token"
    token.write_text("a secret that is long enough to be one\n")
    token.chmod(0o600)
    given = [each.replace("/tmp/token", str(token)).replace("/state", str(tmp_path)) for each in arguments(container)]
    (tmp_path / "train.py").write_text("pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", given[0], "--dry-run", *given[1:]],
        env={"PATH": os.environ["PATH"], "GROUP_RANK": "2", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "train-node-0-0.train" in done.stdout


# In the place of `holdfast`: ends with $CODE, if $UNTIL is set only once it has a signal.
HOLDFAST = f"""#!{sys.executable}
import os, signal, sys
if sys.argv[1] != "run":
    sys.exit(print("train  succeeded" if "SUCCEEDED" in os.environ else "old  failed"))
signal.signal(signal.SIGTERM, lambda *_: os._exit(int(os.environ["CODE"])))
print(oct(os.umask(0)), *sys.argv[1:], flush=True)
if "UNTIL" in os.environ:
    signal.pause()
sys.exit(int(os.environ["CODE"]))
"""


def started(folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Starts a pod's command with a stand-in for Holdfast, which has printed its umask and arguments."""
    (container,) = job_of_the_set()["spec"]["template"]["spec"]["containers"]
    (folder / "holdfast").write_text(HOLDFAST)
    (folder / "holdfast").chmod(0o755)
    (folder / "secret").write_text("a secret\n")
    paths = {"/token/token": str(folder / "secret"), "/tmp/token": str(folder / "token")}
    command: list[str] = container["command"]
    for path, here in paths.items():
        command = [each.replace(path, here) for each in command]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **OF_THE_PLATFORM, **variables}
    shell = subprocess.Popen([*command, "run", "a b"], env=environment, stdout=subprocess.PIPE, text=True, umask=0o027)
    assert shell.stdout is not None
    assert shell.stdout.readline() == "0o27 run a b\n"
    assert (folder / "token").read_text() == "a secret\n"
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    return shell


@pytest.mark.parametrize("code", [0, 1, 93])
def test_a_pod_ends_with_the_code_of_its_job(tmp_path: Path, code: int):
    with started(tmp_path, CODE=str(code)) as pod:
        assert pod.wait(60) == code


@pytest.mark.parametrize(
    ("variables", "ended_with"),
    [({"CODE": "0"}, 143), ({"CODE": "0", "SUCCEEDED": ""}, 0), ({"CODE": "143"}, 143), ({"CODE": "93"}, 93)],
)
def test_a_pod_that_leaves_the_job_counts_as_failed_so_that_another_replaces_it(
    tmp_path: Path, variables: dict[str, str], ended_with: int
):
    with started(tmp_path, UNTIL="a signal", **variables) as pod:
        pod.terminate()
        assert pod.wait(60) == ended_with


@pytest.mark.parametrize("pod_ip", [OF_THE_PLATFORM["POD_IP"], "fd00::7"])
def test_a_pod_on_a_drained_node_leaves_the_job_to_the_others(pod_ip: str):
    (container,) = job_of_the_set()["spec"]["template"]["spec"]["containers"]
    request = parse_run(arguments(container, pod_ip)[1:], environ={"GROUP_RANK": "2"}, cwd="/", count_gpus=lambda _: 0)
    assert request.spec.on_sigterm is OnSigterm.LEAVE


@pytest.mark.parametrize("pod_ip", [OF_THE_PLATFORM["POD_IP"], "fd00::7"])
def test_the_daemon_takes_its_command_line_and_its_probes_ask_what_it_answers(pod_ip: str):
    (supervisor,) = documents("daemonset.yaml")[1]["spec"]["template"]["spec"]["containers"]
    command, *given = arguments(supervisor, pod_ip)
    assert command == "daemon"
    environment = {each["name"]: each["value"] for each in supervisor["env"] if "value" in each}
    settings = parse_daemon(given, environ=environment)
    (port,) = supervisor["ports"]
    assert settings.metrics == (pod_ip, port["containerPort"])
    volumes = {each["mountPath"] for each in supervisor["volumeMounts"]}
    for folder in (settings.socket_dir, settings.state_dir):
        assert folder is not None
        assert str(Path(folder).parent) in volumes, "a volume itself is open to others, and refused"
    for probe, path in (("livenessProbe", exporter.LIVE), ("readinessProbe", exporter.READY)):
        assert supervisor[probe]["httpGet"] == {"path": path, "port": port["name"]}
