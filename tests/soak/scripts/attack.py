"""One attack of a hostile user, with nothing but her rights: argv is its name, the seconds it lasts, then its targets.

All that it receives from anybody goes to stdout, where the soak looks for words of others.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from supervisor.edges.users import user_link_messages as messages

NAME, SECONDS, *TARGETS = sys.argv[1:]
END_S = time.monotonic() + float(SECONDS)
HOLDFAST = (sys.executable, "-m", "supervisor")
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m\u202e"
CONNECTIONS = 3000
GETFD, OPEN = 438, 434  # pidfd_getfd, pidfd_open
PTRACE_POKETEXT, PTRACE_CONT, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_ATTACH, PTRACE_DETACH = 4, 7, 12, 13, 16, 17
_c = ctypes.CDLL(None, use_errno=True)


def goes_on() -> bool:
    return time.monotonic() < END_S


def received(data: bytes | str) -> None:
    """Keeps what others have sent."""
    sys.stdout.write(data if isinstance(data, str) else data.decode("utf-8", "backslashreplace"))
    sys.stdout.write("\n")


def holdfast(*arguments: str, timeout_s: float = 15.0) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run([*HOLDFAST, *arguments], capture_output=True, timeout=timeout_s, check=False)
        received(done.stdout + done.stderr)


def own_supervisors() -> list[int]:
    found: list[int] = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
            if b"serve-user" in words and os.stat(f"/proc/{entry}").st_uid in (os.getuid(), 0):
                status = Path("/proc", entry, "status").read_text()
                if f"Uid:\t{os.getuid()}\t" in status:
                    found.append(int(entry))
    return found


# --- her own supervisor --------------------------------------------------------------------------------------------


def ptrace(request: int, pid: int, address: object = None, data: object = None) -> int:
    return _c.ptrace(ctypes.c_long(request), ctypes.c_long(pid), address, data)


REGISTERS = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss f g ds es fs gs"


class Registers(ctypes.Structure):
    """user_regs_struct of x86-64."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in REGISTERS.split()]


def exec_in(pid: int) -> bool:
    """Makes a process of hers execute `sleep`: its socket closes, the process stays."""
    if ptrace(PTRACE_ATTACH, pid) != 0:
        return False
    os.waitpid(pid, 0x40000000)  # __WALL
    registers = Registers()
    ptrace(PTRACE_GETREGS, pid, None, ctypes.byref(registers))
    base = (registers.rsp - 4096) & ~0xF
    words = [b"/bin/sleep\0", b"600\0"]
    at = [base, base + 16]
    image = words[0].ljust(16, b"\0") + words[1].ljust(16, b"\0")
    image += at[0].to_bytes(8, "little") + at[1].to_bytes(8, "little") + bytes(8)
    for offset in range(0, len(image), 8):
        value = int.from_bytes(image[offset : offset + 8], "little")
        ptrace(PTRACE_POKETEXT, pid, ctypes.c_void_p(base + offset), ctypes.c_void_p(value))
    ptrace(PTRACE_POKETEXT, pid, ctypes.c_void_p(registers.rip), ctypes.c_void_p(0xCCCC_CCCC_CCCC_050F))
    registers.rax, registers.rdi, registers.rsi, registers.rdx = 59, base, base + 32, 0
    registers.orig_rax = ctypes.c_ulonglong(-1).value
    ptrace(PTRACE_SETREGS, pid, None, ctypes.byref(registers))
    ptrace(PTRACE_CONT, pid, None, None)
    os.waitpid(pid, 0x40000000)  # the trap that follows an exec
    ptrace(PTRACE_DETACH, pid, None, None)
    return True


def ptrace_exec() -> None:
    while goes_on():
        holdfast("jobs")
        for pid in own_supervisors():
            received(f"exec in {pid}: {exec_in(pid)}")


def stop_supervisor() -> None:
    while goes_on():
        holdfast("jobs", timeout_s=3)
        for pid in own_supervisors():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
        for _ in range(5):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.connect(TARGETS[0])
                client.settimeout(0.5)
                received(client.recv(4096))


def kill_supervisor() -> None:
    while goes_on():
        holdfast("jobs")
        for pid in own_supervisors():
            with contextlib.suppress(OSError):
                os.kill(pid, random.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))


def flood_socket() -> None:
    """Takes the descriptors of her own supervisor and writes to each that it can, among them its link to root's."""
    while goes_on():
        holdfast("jobs")
        for pid in own_supervisors():
            pidfd = _c.syscall(OPEN, pid, 0)
            if pidfd < 0:
                continue
            for number in range(3, 64):
                taken = _c.syscall(GETFD, pidfd, number, 0)
                if taken < 0:
                    continue
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.fstat(taken).st_mode):
                        flood(taken)
                    os.close(taken)
            os.close(pidfd)


def flood(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as link:
        link.setblocking(False)
        said = (messages.Cordon(ESCAPES * 20), messages.Idle(0), messages.Taken(1), messages.Taken(1 << 62))
        nasty = (*map(messages.encode, said), b"\xff" * 200, b"[" * 1000, b"{}", b"9" * 4000)
        is_link = link.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_SEQPACKET
        until_s = min(END_S, time.monotonic() + (3 if is_link else 0.1))
        while time.monotonic() < until_s:
            try:
                link.send(random.choice(nasty))
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                return


# --- sockets of others -----------------------------------------------------------------------------------------------


def crowd(connect: Callable[[], socket.socket | None], words: tuple[bytes, ...]) -> None:
    """Keeps as many connections as she may have, each after one of the words, and reads what they get."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    while goes_on():
        each = connect()
        if each is None or len(held) > min(CONNECTIONS, hard - 64):
            for old in held[: len(held) // 2 + 1]:
                with contextlib.suppress(OSError):
                    received(old.recv(65536, socket.MSG_DONTWAIT))
                old.close()
            held = held[len(held) // 2 + 1 :]
            time.sleep(0.01)
            continue
        with contextlib.suppress(OSError):
            each.setblocking(False)
            each.send(random.choice(words))
        held.append(each)


def unix(path: str) -> socket.socket | None:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(1)
    try:
        client.connect(path)
    except OSError:
        client.close()
        return None
    return client


GREETINGS = (
    b"", b"\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 200, os.urandom(300), b"\xff\xff\xff\xff" + b"{" * 500,
)  # fmt: skip


def connections() -> None:
    crowd(lambda: unix(TARGETS[0]), GREETINGS)


def cluster_connections() -> None:
    """Idle and forging connections at the endpoint of somebody's job."""
    host, port = TARGETS[0].rsplit(":", 1)

    def connect() -> socket.socket | None:
        try:
            return socket.create_connection((host, int(port)), timeout=1)
        except OSError:
            return None

    hello = json.dumps({"job_id": TARGETS[1], "node": "node1", "version": 1}).encode()
    forged = (len(hello).to_bytes(4, "big") + hello, len(hello).to_bytes(4, "little") + hello)
    crowd(connect, (*GREETINGS[:1] * 6, *GREETINGS, *forged))


def join_cluster() -> None:
    """Joins a job of somebody as one of its nodes, with holdfast itself."""
    while goes_on():
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [*HOLDFAST, "run", "--nnodes", "2", "--rdzv-id", TARGETS[1], "--rdzv-endpoint", TARGETS[0],
                 "--local-addr", "127.0.0.9", "--nproc-per-node", "1", "-m", "this"],
                env={**os.environ, "HOLDFAST_STATE_DIR": f"{TARGETS[2]}/state", "XDG_RUNTIME_DIR": TARGETS[2],
                     "HOLDFAST_CLAIM_DIR": f"{TARGETS[2]}/claims"},
                capture_output=True, timeout=12, check=False,
            )  # fmt: skip
            received(done.stdout + done.stderr)


def health_connections() -> None:
    crowd(lambda: unix(TARGETS[0]), GREETINGS)


def health_requests() -> None:
    """Asks for checks without end."""
    import grpc as untyped
    from nvhcd import nvhcd_pb2 as wire

    grpc = cast("Any", untyped)
    channels = [
        grpc.insecure_channel(f"unix:{TARGETS[0]}", options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(50)
    ]
    method = "/nvhcd.HealthCheckService/RunHealthCheck"
    while goes_on():
        request = wire.HealthCheckRequest(args=["x"] * 8).SerializeToString()
        asked = [channel.unary_unary(method).future(request, timeout=5) for channel in channels for _ in range(20)]
        for each in asked:
            with contextlib.suppress(grpc.RpcError):
                received(each.result())


def others_jobs() -> None:
    """Asks for the jobs of others by each call of the API, and with words that break terminals."""
    script = Path(__file__).parents[2] / "e2e/scripts/every_call.py"
    while goes_on():
        job_id = random.choice(TARGETS[1:])
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [sys.executable, str(script), TARGETS[0], job_id, str(script), socket.gethostname()],
                capture_output=True, timeout=20, check=False,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            )  # fmt: skip
            received(done.stdout + done.stderr)
        for command in (
            ("stop", job_id),
            ("stop", job_id, "--reason", ESCAPES),
            ("logs", job_id),
            ("stacks", job_id),
            ("events", job_id),
        ):
            holdfast(*command)


def bad_records() -> None:
    """Puts what no reader expects in place of each file of her own folders."""
    while goes_on():
        holdfast("jobs")
        files = [path for top in TARGETS for path in Path(top).rglob("*") if path.is_file() or path.is_socket()]
        spoilt = random.sample(files, min(len(files), 6))
        for path in [*spoilt, *(Path(top, "spawners", f"bad{random.random()}.json") for top in TARGETS)]:
            with contextlib.suppress(OSError):
                path.parent.mkdir(exist_ok=True)
                path.unlink(missing_ok=True)
                spoil(path)
        for pid in own_supervisors():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def spoil(path: Path) -> None:
    kind = random.randrange(7)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.write_bytes(b"[" * 30_000)
    elif kind == 2:
        path.symlink_to("/etc/shadow")
    elif kind == 3:
        path.mkdir()
    elif kind == 4:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == 5:
        path.write_bytes(b'{"pid": 1, "started_ticks": NaN, "job_id": "\\ud800\\u0000../../x"}')
    else:
        path.write_bytes(os.urandom(4096))


def sparse_logs() -> None:
    """Submits logs of 30 GB without content, and paths that no file can have, to another user's attribution service."""
    folder = Path(TARGETS[1])
    number = 0
    while goes_on():
        number += 1
        path = folder / f"sparse{os.getpid()}-{number % 20}_cycle{number}.log"
        with contextlib.suppress(OSError), path.open("wb") as file:
            file.truncate(30 << 30)
        for told in (str(path), f"{folder}/\0", f"{folder}/../x", "/" * 5000, f"{folder}/{'x' * 300}"):
            body = json.dumps({"log_path": told, "user": ESCAPES, "job_id": ESCAPES}).encode()
            with contextlib.suppress(OSError, ValueError):
                request = urllib.request.Request(f"{TARGETS[0]}/logs", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=2) as answer:
                    received(answer.read(65536))
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"{TARGETS[0]}/inflight", timeout=2) as answer,
        ):
            received(answer.read(65536))
        path.unlink(missing_ok=True) if number % 5 == 0 else None


def deceive() -> None:
    """Changes what the program says that is in the place of her supervisor: TARGETS are its file, a folder, and ids."""
    lies, folder, *ids = TARGETS
    now_ns = time.time_ns()
    while goes_on():
        odd = random.choice(("NaN", "Infinity", "-Infinity", -1e308, 1e308))
        rank = {"rank": 0, "node": ESCAPES, "state": ESCAPES, "heartbeatAgeS": odd, "cycleStartedAtNs": str(2**63 - 1)}
        jobs = [
            {
                "jobId": each, "state": random.choice(("JOB_STATE_RUNNING", "JOB_STATE_FAILED")),
                "submittedAtNs": random.choice((str(now_ns), "1", str(2**63 - 1))),
                "reason": ESCAPES * 20, "logDir": folder, "command": [ESCAPES],
                "nodes": [{"name": socket.gethostname(), "logDir": folder, "reason": ESCAPES}], "ranks": [rank],
            }
            for each in ("lied", *ids, f"x{ESCAPES}")
        ]  # fmt: skip
        event = {
            "atNs": str(2**62),
            "jobId": "lied",
            "kind": ESCAPES,
            "reason": ESCAPES,
            "node": ESCAPES,
            "sequence": "1",
        }
        said: dict[str, object] = {
            "jobs": jobs, "events": [event], "logs": [f"{ESCAPES}\n"], "notes": [ESCAPES],
            "nodes": [{"name": socket.gethostname(), "state": "cordoned", "reason": ESCAPES}, {"name": ESCAPES}],
            **random.choice((
                {}, {"unending": 2000}, {"empty_ranks": 500_000}, {"sleep_s": 60}, {"unending_events": True},
                {"unending_logs": True}, {"refusals": {"ListJobs": ESCAPES, "GetJob": ESCAPES}}, {"has_no_logs": True},
            )),
        }  # fmt: skip
        fresh = Path(f"{lies}.new")
        fresh.write_text(json.dumps(said))
        fresh.replace(lies)
        holdfast("jobs", timeout_s=4)
        time.sleep(1)


ATTACKS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        ptrace_exec, stop_supervisor, kill_supervisor, flood_socket, connections, cluster_connections, join_cluster,
        health_connections, health_requests, others_jobs, bad_records, sparse_logs, deceive,
    )
}  # fmt: skip

if __name__ == "__main__":
    ATTACKS[NAME]()
