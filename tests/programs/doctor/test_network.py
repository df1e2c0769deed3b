"""Are ports, names and places that a job would lack found before it starts?"""

from __future__ import annotations

import http.server
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.programs.doctor import machine_probe, network
from supervisor.programs.doctor.doctor_finding import DoctorFinding, Grade
from supervisor.programs.doctor.network import Endpoint
from tests.programs.doctor.machines import machine_of, program, the

NO_DNS = {"/etc/nsswitch.conf": "hosts: files\n"}
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def look(
    root: Path, files: dict[str, str], endpoint: Endpoint | None = None, environ: dict[str, str] | None = None
) -> list[DoctorFinding]:
    return network.look(machine_of(root, NO_DNS | files, environ), endpoint)


@pytest.mark.parametrize(
    ("ports", "grade"), [("32768\t60999", Grade.OK), ("1024 65535", Grade.PROBLEM), ("", Grade.SKIPPED)]
)
def test_ports(ports: str, grade: Grade, tmp_path: Path):
    assert the(look(tmp_path, {RANGE: ports}), "ports").grade is grade


@pytest.mark.parametrize(("value", "grade"), [("128", Grade.NOTE), ("4096", Grade.OK), ("", Grade.SKIPPED)])
def test_backlog(value: str, grade: Grade, tmp_path: Path):
    assert the(look(tmp_path, {"/proc/sys/net/core/somaxconn": value}), "backlog").grade is grade


def no_name(address: str) -> tuple[str, list[str], list[str]]:
    return address, [], []


def outward(*_: object) -> str:
    return "192.0.2.7"


def test_reverse_names_are_asked_where_dns_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert the(look(tmp_path, {}), "reverse names").found == "not asked of DNS"
    monkeypatch.setattr(network, "_outward_address", outward)
    monkeypatch.setattr(network, "REVERSE_SLOW_S", 0.0)
    monkeypatch.setattr(socket, "gethostbyaddr", no_name)
    found = the(look(tmp_path, {"/etc/nsswitch.conf": "hosts: files dns\n"}), "reverse names")
    assert found.grade is Grade.WARNING
    assert found.found.startswith("192.0.2.7 takes ")


# A node with two networks and no default route.
TWO_NETWORKS = """
ip link add ib0 type veth peer name eth0 && ip addr add 10.1.0.7/24 dev eth0 && ip addr add 10.2.0.7/24 dev ib0 &&
ip link set eth0 up && ip link set ib0 up && exec "$@"
"""
ASK = """
import socket, sys
from pathlib import Path
from supervisor.programs.doctor import network
from supervisor.programs.doctor.machine_probe import Machine

socket.gethostbyaddr = lambda address: (address, [], [])
network.REVERSE_SLOW_S = float(sys.argv[1])
(found,) = [each for each in network.look(Machine(Path(sys.argv[2]))) if each.check == "reverse names"]
print(found.grade.name, found.found)
"""


def test_without_a_default_route_the_addresses_of_the_interfaces_are_asked(tmp_path: Path):
    machine_of(tmp_path, {"/etc/nsswitch.conf": "hosts: files dns\n"})
    own = ["unshare", "-rn", "sh", "-c", TWO_NETWORKS, "sh"]
    if not (shutil.which("unshare") and shutil.which("ip")) or subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("needs networks of its own: unshare, ip and user namespaces")

    def asked(slow_s: float) -> str:
        command = [*own, sys.executable, "-c", ASK, str(slow_s), str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    assert re.fullmatch(r"OK 10\.1\.0\.7 in [\d.]+ ms, 10\.2\.0\.7 in [\d.]+ ms\n", asked(60.0))
    assert re.fullmatch(r"WARNING 10\.[12]\.0\.7 takes \d+ ms\n", asked(0.0))


# A node without IPv4; its list of addresses is where the machine is looked for.
IPV6_ALONE = """
ip link add eth0 type veth peer name eth1 && ip addr add fd00:1::7/64 dev eth0 nodad && ip link set eth0 up &&
ip link set eth1 up && ROUTE && mkdir -p proc/net && cat /proc/net/if_inet6 > proc/net/if_inet6 && exec "$@"
"""


@pytest.mark.parametrize("route", ["true", "ip -6 route add default dev eth0"])
def test_a_node_with_ipv6_alone_is_asked_its_reverse_name_too(tmp_path: Path, route: str):
    machine_of(tmp_path, {"/etc/nsswitch.conf": "hosts: files dns\n"})
    own = ["unshare", "-rn", "sh", "-c", IPV6_ALONE.replace("ROUTE", route), "sh"]
    has_tools = shutil.which("unshare") and shutil.which("ip")
    if not has_tools or subprocess.run([*own, "true"], check=False, cwd=tmp_path).returncode:
        pytest.skip("needs networks of its own: unshare, ip, user namespaces and IPv6")
    command = [*own, sys.executable, "-c", ASK, "60", str(tmp_path)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, cwd=tmp_path).stdout
    assert re.fullmatch(r"OK fd00:1::7 in [\d.]+ ms\n", told)


@pytest.mark.parametrize(
    ("variable", "value", "grade"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "=eth", Grade.PROBLEM),
        ("NCCL_SOCKET_IFNAME", "=eth0", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "ib0,eth0", Grade.PROBLEM),
        ("GLOO_SOCKET_IFNAME", "eth", Grade.PROBLEM),
        ("GLOO_SOCKET_IFNAME", "eth0", Grade.OK),
    ],
)
def test_interfaces(variable: str, value: str, grade: Grade, tmp_path: Path):
    found = look(tmp_path, {"/sys/class/net/eth0/": "", "/sys/class/net/lo/": ""}, environ={variable: value})
    assert the(found, variable).grade is grade


def test_interfaces_that_are_left_out_need_not_be_there(tmp_path: Path):
    found = look(tmp_path, {"/sys/class/net/lo/": ""}, environ={"NCCL_SOCKET_IFNAME": "^docker0"})
    assert [each for each in found if each.check == "NCCL_SOCKET_IFNAME"] == []


@pytest.mark.parametrize(
    ("script", "grade", "says"),
    [
        ("echo 'etcd Version: 3.5.9'; echo 'Git SHA: Not provided'", Grade.OK, "3.5.9, "),
        ("echo 'etcd Version: 3.6.0-rc.1'", Grade.OK, "3.6.0-rc.1, "),
        ("echo 'etcd Version: 3.3.25'", Grade.NOTE, "etcd Version: 3.3.25"),
        ("echo something else", Grade.NOTE, "it does not tell its version"),
        ("echo broken >&2; exit 1", Grade.NOTE, "broken"),
    ],
)
def test_the_program_of_a_jobs_own_etcd(script: str, grade: Grade, says: str, tmp_path: Path):
    program(tmp_path, "etcd", script)
    found = the(look(tmp_path, {}), "etcd program")
    assert found.grade is grade
    assert says in found.found


def test_a_silent_disk_in_path_does_not_hold_the_check_of_etcd_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    over = threading.Event()

    def wait(*_: object, **__: object) -> None:
        over.wait(60)

    monkeypatch.setattr("shutil.which", wait)
    monkeypatch.setattr(machine_probe, "ANSWER_TIMEOUT_S", 0.1)
    started_s = time.monotonic()
    assert the(look(tmp_path, {}), "etcd program").found == "etcd: not found"
    assert time.monotonic() - started_s < 30
    over.set()


def test_a_program_that_is_only_beside_our_python_is_not_the_etcd_of_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program(tmp_path, "etcd", "echo 'etcd Version: 3.5.9'")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    assert the(look(tmp_path, {}, environ={"PATH": "/none/such"}), "etcd program").found == "etcd: not found"


def test_a_node_without_the_program_etcd_has_no_problem(tmp_path: Path):
    found = the(look(tmp_path, {}), "etcd program")
    assert (found.grade, found.found) == (Grade.NOTE, "etcd: not found")
    assert "--rdzv-conf members=3" in found.why


def test_an_endpoint_that_nobody_serves_is_a_leader_to_come_but_no_etcd(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert the(look(tmp_path, {}, Endpoint("127.0.0.1", port)), "endpoint").grade is Grade.NOTE
    assert the(look(tmp_path, {}, Endpoint("127.0.0.1", port, is_etcd=True)), "endpoint").grade is Grade.PROBLEM
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint("127.0.0.1", server.getsockname()[1])
        assert the(look(tmp_path, {}, endpoint), "endpoint").grade is Grade.OK


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b"])
def test_a_name_that_cannot_be_resolved(name: str, tmp_path: Path):
    found = the(look(tmp_path, {}, Endpoint(name, 29400)), "endpoint")
    assert found.grade is Grade.PROBLEM
    assert found.found.startswith(f"{name}:29400: ")


def test_etcd_is_asked_at_an_address_of_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with etcd_that_says(b'{"health":"true"}') as served:

        def connect(*_: object) -> socket.socket:
            return connected(("127.0.0.1", served.port))

        connected = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", connect)
        found = the(look(tmp_path, {}, Endpoint("::1", served.port, is_etcd=True)), "etcd")
    assert (found.grade, found.found) == (Grade.OK, f"[::1]:{served.port} is well")


@contextmanager
def etcd_that_says(answer: bytes) -> Generator[Endpoint]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Endpoint("127.0.0.1", server.server_address[1], is_etcd=True)
        server.shutdown()


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        (b'{"health":"true"}', Grade.OK),
        (b'{"health":"false"}', Grade.PROBLEM),
        (b"<html>", Grade.NOTE),
        (b"[]", Grade.NOTE),
    ],
)
def test_etcd_says_how_it_is(answer: bytes, grade: Grade, tmp_path: Path):
    with etcd_that_says(answer) as endpoint:
        assert the(look(tmp_path, {}, endpoint), "etcd").grade is grade


def test_etcd_is_asked_without_a_proxy_as_a_job_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{free.getsockname()[1]}"
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setattr(urllib.request, "_opener", None)  # of an earlier test, from before the variable
    with etcd_that_says(b'{"health":"true"}') as endpoint:
        assert the(look(tmp_path, {}, endpoint), "etcd").grade is Grade.OK


def test_an_etcd_that_does_not_speak_http_is_a_note(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # the connection of the endpoint's check, and the request
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(10)
                    if connection.recv(4096):
                        connection.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00 of HTTP/2\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        found = the(look(tmp_path, {}, Endpoint("127.0.0.1", server.getsockname()[1], is_etcd=True)), "etcd")
        thread.join(10)
    assert found.grade is Grade.NOTE
    assert "does not say over plain HTTP whether it is healthy" in found.found
