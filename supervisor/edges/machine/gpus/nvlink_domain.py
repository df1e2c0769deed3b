"""Which NVLink domain is this node in? Asked of NVML in another process, which is left alone if it hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio

PROBE = Path(__file__).with_name("nvlink_probe.py")
ANSWER_TIMEOUT_S = 20.0  # a healthy driver answers within 3 s, also where no process keeps it loaded
ANSWER_BYTES_MAX = 4096
END_TIMEOUT_S = 1.0

_hung: list[subprocess.Popen[bytes]] = []  # kept, so that nobody complains that they still run


class NoDomainError(Exception):
    """Raised where the domain is unknown; says why, as the end of a sentence."""


async def nvlink_domain(*, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
    """The ClusterUUID of this node's GPUs. Raises NoDomainError."""
    command = [sys.executable, "-P", str(PROBE)]
    try:
        probe = subprocess.Popen(  # noqa: ASYNC220 - starting takes a moment; reading, which may hang, is awaited
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise NoDomainError(f"{sys.executable} cannot be started ({error.strerror})") from error
    assert probe.stdout is not None
    assert probe.stderr is not None
    try:
        with anyio.fail_after(timeout_s):
            domain = await _said(probe.stdout.fileno())
            if domain:
                return domain
            why = await _said(probe.stderr.fileno())
            raise NoDomainError(why.splitlines()[-1] if why else "NVML gives no answer")
    except TimeoutError:
        raise NoDomainError(f"NVML does not answer within {timeout_s:g} s") from None
    finally:
        probe.stdout.close()
        probe.stderr.close()
        await _end(probe)


async def _said(pipe: int) -> str:
    """What comes first, or "" where the probe has ended without a word."""
    await anyio.wait_readable(pipe)
    return os.read(pipe, ANSWER_BYTES_MAX).decode(errors="replace").strip()


async def _end(probe: subprocess.Popen[bytes]) -> None:
    """Kills it. One in state D is not waited for."""
    probe.kill()
    if probe.poll() is not None:
        return
    handle = os.pidfd_open(probe.pid)
    try:
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_TIMEOUT_S):
            await anyio.wait_readable(handle)
    finally:
        os.close(handle)
    if probe.poll() is None:
        _hung.append(probe)
