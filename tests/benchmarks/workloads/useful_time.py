"""Runs the demo's training without end: rank 0 reports each step; faults come from outside by signals.

SIGUSR1 makes a rank silent at its next step. With --wrapped the training is a function under the Wrapper, and SIGUSR2
makes it raise. The steps begin at the last checkpoint, as in any script that may be restarted.
"""

# torch's annotations are too partial for strict types.
# pyright: basic

from recording import RANK, record

import argparse  # isort: skip
import contextlib
import datetime
import itertools
import os
import signal
import sys
import time
import types
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from monitoring import connect
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from wrapping import call_wrapped

# The demo's script names our client; the ranks of the other launchers have their own.
if os.environ["BENCH_CLIENT"] != "worker_client":

    @contextlib.contextmanager
    def write_beside(path: Path) -> Generator[Path]:
        """Writes a checkpoint as scripts without our client do: beside the last one, which it then replaces."""
        temporary = path.with_suffix(".new")
        yield temporary
        os.replace(temporary, path)

    sys.modules["worker_client"] = types.ModuleType("worker_client")
    sys.modules["worker_client"].RankMonitorClient = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["worker_client"].commit = write_beside  # pyright: ignore[reportAttributeAccessIssue]
sys.path.append(str(Path(__file__).parents[3] / "docs" / "examples"))
import train_lm  # pyright: ignore

PACE_S = 0.002


class Wanted:
    """What the bench wants of this rank."""

    silence = False
    exception = False


def want_silence(*_: object) -> None:
    Wanted.silence = True


def want_exception(*_: object) -> None:
    Wanted.exception = True


def strike() -> None:
    if Wanted.silence:
        Wanted.silence = False
        be_silent()
    if Wanted.exception:
        Wanted.exception = False
        raise ValueError("by intention")


def be_silent() -> NoReturn:
    while True:  # returns to Python code now and then, so that either Wrapper can interrupt it
        time.sleep(PACE_S)


def train(call: object) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=given.gloo_timeout_s))
    rank = dist.get_rank()
    text = train_lm.read_text()
    torch.manual_seed(0)
    model = DistributedDataParallel(train_lm.LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    path = Path("checkpoint.pt")
    first_step = 0
    if path.exists():
        checkpoint = torch.load(path, weights_only=True)
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first_step = checkpoint["step"]
    for step in itertools.count(first_step):
        began_ns = time.monotonic_ns()
        strike()
        batch = train_lm.read_batch(text, step, rank)
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach().clone())
        tell_alive(call)
        if rank == 0:
            if (step + 1) % train_lm.CHECKPOINT_EVERY_STEPS == 0:
                state = train_lm.Checkpoint(
                    step=step + 1, model=model.module.state_dict(), optimizer=optimizer.state_dict()
                )
                train_lm.save(path, state)
            record("step", step=step, began_ns=began_ns)


def tell_alive(call: object) -> None:
    """Sends heartbeats only after a step: the time before the first step is longer than any silence allowed."""
    if call is not None:
        call.ping()  # pyright: ignore[reportAttributeAccessIssue]
    elif monitor is not None:
        monitor.send_heartbeat()


parser = argparse.ArgumentParser()
parser.add_argument("--wrapped", action="store_true")
parser.add_argument("--silence-limit-s", type=float, default=0.0, help="0: silence is not watched")
parser.add_argument("--gloo-timeout-s", type=float, default=1800.0)
given = parser.parse_args()
signal.signal(signal.SIGUSR1, want_silence)
signal.signal(signal.SIGUSR2, want_exception)
monitor = connect(limit_s=given.silence_limit_s) if given.silence_limit_s and not given.wrapped else None
record("ready", of=RANK)
if given.wrapped:
    try:  # what changes in a script that moves over
        from worker_client import inprocess
    except ImportError:
        from nvidia_resiliency_ext import inprocess  # pyright: ignore
    limits = {"soft_timeout": given.silence_limit_s, "hard_timeout": 30.0} if given.silence_limit_s else {}
    call_wrapped(inprocess, train, **limits)
else:
    train(None)
