"""Can stores be served and found, and do the nodes reach each other?"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import socket
import struct
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from supervisor.config.launch_values import join_endpoint
from supervisor.edges.machine.clock import Clock
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Answer, Machine

ANSWER_TIMEOUT_S = 3.0
REVERSE_SLOW_S = 0.005
ADDRESSES_MAX = 4  # of interfaces; each may take ANSWER_TIMEOUT_S
SIOCGIFADDR = 0x8915  # linux/sockios.h
SCOPE, SCOPE_GLOBAL = 3, "00"  # a field of /proc/net/if_inet6
STORE_PORTS_MIN = 1024  # outside the kernel's range, for stores and the ports next to them
BACKLOG_MIN = 1024
ETCD_MIN = (3, 4)  # an older one knows no learners
T = TypeVar("T")
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Endpoint(msgspec.Struct, frozen=True):
    """The address at which the nodes of a job meet."""

    host: str
    port: int
    is_etcd: bool = False


def look(machine: Machine, endpoint: Endpoint | None = None) -> list[DoctorFinding]:
    area = Area("network")
    _ports(area, machine)
    _backlog(area, machine)
    _name(area, os.uname().nodename)
    _reverse(area, machine)
    _interfaces(area, machine)
    _etcd_program(area, machine)
    if endpoint is not None:
        _endpoint(area, endpoint)
    return area.findings


def _ports(area: Area, machine: Machine) -> None:
    words = machine.text("/proc/sys/net/ipv4/ip_local_port_range").split()
    if len(words) != 2:
        area.skip("ports", "the kernel does not report its range of ports")
        return
    low, high = map(int, words)
    free = max(0, low - 1024) + (65535 - high)
    if free >= STORE_PORTS_MIN:
        area.ok("ports", f"{free} for stores, outside the kernel's own {low} to {high}")
        return
    area.problem(
        "ports",
        f"{free} for stores, outside the kernel's own {low} to {high}",
        why="the kernel may give a store's port to somebody else before the store is served",
        remedy="sysctl net.ipv4.ip_local_port_range='32768 60999'",
    )


def _backlog(area: Area, machine: Machine) -> None:
    value = machine.text("/proc/sys/net/core/somaxconn")
    if not value.isdigit():
        area.skip("backlog", "the kernel does not report it")
    elif int(value) >= BACKLOG_MIN:
        area.ok("backlog", f"{value} connections may wait")
    else:
        area.note(
            "backlog",
            f"{value} connections may wait",
            why="if more ranks connect at once, some try again a second later",
            remedy="sysctl net.core.somaxconn=4096",
        )


def _name(area: Area, name: str) -> None:
    found = _answered(lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    if found is None:
        area.note(
            "host name",
            f"{name} cannot be resolved",
            why="one node needs no name; with several nodes, --rdzv-endpoint gives the leader's address",
            remedy=f"add {name} to DNS or /etc/hosts, or use IP addresses",
        )
        return
    addresses = sorted({str(each[4][0]) for each in found})
    area.ok("host name", f"{name} is {', '.join(addresses)}")


def _reverse(area: Area, machine: Machine) -> None:
    """Checks reverse lookups: torch's TCPStore server looks up the name of each address that connects, one by one."""
    hosts = next(
        (line for line in machine.text("/etc/nsswitch.conf").splitlines() if line.strip().startswith("hosts:")), ""
    )
    if hosts and "dns" not in hosts.split() and "resolve" not in hosts.split():
        area.ok("reverse names", "not asked of DNS")
        return
    outward = _outward_address(socket.AF_INET, "192.0.2.1")  # of TEST-NET-1, which nobody uses
    addresses = [outward] if outward else [*_interface_addresses(), *_ipv6_addresses(machine)]
    if not addresses:
        area.skip("reverse names", "this node has no addresses, apart from loopback")
        return
    taken_s = {address: _reverse_s(address) for address in addresses}
    address = max(addresses, key=lambda each: taken_s[each])
    took_s = taken_s[address]
    if took_s <= REVERSE_SLOW_S:
        area.ok("reverse names", ", ".join(f"{each} in {taken_s[each] * 1000:.1f} ms" for each in addresses))
        return
    area.warn(
        "reverse names",
        f"{address} takes {took_s * 1000:.0f} ms{' or longer' if took_s >= ANSWER_TIMEOUT_S else ''}",
        why="torch's TCPStore looks up each rank that connects, one after the other: 1,024 ranks take 1,024 times this",
        remedy="add the nodes to /etc/hosts, or write 'hosts: files' in /etc/nsswitch.conf",
    )


def _reverse_s(address: str) -> float:
    clock = Clock()
    started_s = clock.now_s()
    _answered(lambda: socket.gethostbyaddr(address))
    return clock.now_s() - started_s


def _outward_address(family: socket.AddressFamily, elsewhere: str) -> str:
    """Returns the address from which this node would reach others; "" without a default route. Sends nothing."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:  # The kernel may have no IPv6.
        probe.connect((elsewhere, 9))
        address = str(probe.getsockname()[0])
        return "" if address == "::1" or address.startswith(("127.", "0.")) else address
    return ""


def _ipv6_addresses(machine: Machine) -> list[str]:
    """Returns the address on the default route, or without such a route those of all interfaces, ADDRESSES_MAX at most.

    Those of one link are left out: the name of an interface is part of them.
    """
    if outward := _outward_address(socket.AF_INET6, "2001:db8::1"):  # an address for documents, which nobody uses
        return [outward]
    entries = [line.split() for line in machine.text("/proc/net/if_inet6").splitlines()]
    found = [each[0] for each in entries if len(each) > SCOPE and each[SCOPE] == SCOPE_GLOBAL]
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address)) for address in found[:ADDRESSES_MAX]]


def _interface_addresses() -> list[str]:
    """Returns the IPv4 address of each network interface, without loopback, of ADDRESSES_MAX at most."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has none.
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("40s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith(("127.", "0."))][:ADDRESSES_MAX]


def _interfaces(area: Area, machine: Machine) -> None:
    there = machine.names("/sys/class/net")
    for variable in INTERFACES:
        value = machine.environ.get(variable, "")
        wanted = value.lstrip("^=")
        if not wanted or value.startswith("^"):
            continue
        exact = value.startswith("=") or variable.startswith("GLOO")
        missing = [
            each
            for each in wanted.split(",")
            if not any(name == each if exact else name.startswith(each) for name in there)
        ]
        if missing:
            area.problem(
                variable,
                f"{value}: there is no interface {missing[0]}; there are {', '.join(there) or 'none'}",
                why="the process group cannot be made",
                remedy=f"set {variable} to one of them, or unset it",
            )
        else:
            area.ok(variable, value)


def _etcd_program(area: Area, machine: Machine) -> None:
    """Checks whether a node has the program of a job's own etcd, which few jobs use."""
    path = machine.program("etcd", also_beside_python=False)  # as a member finds it
    answer = machine.ask([path, "--version"]) if path else Answer(fault="not found")
    version = re.search(r"etcd Version: (\d+)\.(\d+)\S*", answer.stdout)
    is_new = version is not None and (int(version[1]), int(version[2])) >= ETCD_MIN
    if version is not None and is_new:
        area.ok("etcd program", f"{version[0].removeprefix('etcd Version: ')}, {path}")
        return
    area.note(
        "etcd program",
        version[0] if version is not None else f"{path or 'etcd'}: {answer.fault or 'it does not tell its version'}",
        why="only a job that brings its own etcd (--rdzv-conf members=3) needs it, in version 3.4 or newer",
        remedy="for such a job: apt-get install etcd-server",
    )


def _endpoint(area: Area, endpoint: Endpoint) -> None:
    place = join_endpoint(endpoint.host, endpoint.port)
    try:
        socket.create_connection((endpoint.host, endpoint.port), ANSWER_TIMEOUT_S).close()
    except ConnectionRefusedError:
        if endpoint.is_etcd:
            area.problem("endpoint", f"{place} refuses", why="no leader can be elected", remedy="start etcd there")
        else:
            area.note(
                "endpoint", f"{place} refuses: no leader yet", why="the node with that address leads once it runs"
            )
        return
    except (OSError, UnicodeError) as error:  # UnicodeError: no name can be so long, or have a part without letters
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        area.problem(
            "endpoint",
            f"{place}: {why}",
            why="this node could not join the job",
            remedy=f"check name and route, and let TCP port {endpoint.port} through the firewall",
        )
        return
    if endpoint.is_etcd:
        _etcd(area, place)
    else:
        area.ok("endpoint", f"somebody listens at {place}")


def _etcd(area: Area, place: str) -> None:
    """Asks etcd itself whether it has a leader and takes writes."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as a job connects to it
    try:
        with direct.open(f"http://{place}/health", timeout=ANSWER_TIMEOUT_S) as answer:
            healthy = str(json.loads(answer.read(4096)).get("health")) == "true"
    except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
        area.note(
            "etcd", f"{place} does not say over plain HTTP whether it is healthy ({error})", why="it may want TLS"
        )
        return
    if healthy:
        area.ok("etcd", f"{place} is well")
    else:
        area.problem(
            "etcd",
            f"{place} reports that it is unhealthy",
            why="no leader can be elected until it has a quorum",
            remedy=f"etcdctl --endpoints http://{place} endpoint status --cluster -w table",
        )


def _answered(question: Callable[[], T]) -> T | None:
    """Returns the answer; None if the question fails or takes longer than ANSWER_TIMEOUT_S, as a resolver may."""
    found: list[T] = []

    def ask() -> None:
        with suppress(OSError):
            found.append(question())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_TIMEOUT_S)
    return found[0] if found else None
