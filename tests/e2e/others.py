"""Scripts in other people's styles, and launches of them that are killed and stopped at random moments."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.e2e.launch import SCRIPTS, Launch, launched

OTHERS = SCRIPTS / "others"
RESTARTS_MAX = 9
SILENCE_S = 4  # a shared machine may stall for seconds
START = re.compile(r"rank (\d+) is process (\d+)\n")
END = re.compile(r"rank (\d+) ends with (\S+)")


@dataclass(frozen=True)
class Script:
    """`arguments` start it in its folder; `steps` is how often it prints "step …". Each rank prints its pid first."""

    name: str  # the file or folder in scripts/others
    arguments: tuple[str, ...]
    steps: int
    ranks: int = 2
    flags: tuple[str, ...] = ()  # flags that detect a stopped rank; without them it is only killed
    needs: str = ""
    is_slow: bool = False  # left to `make soak`

    @property
    def may_be_stopped(self) -> bool:
        return bool(self.flags)


SECTIONS = f"setup:60,step:{SILENCE_S},checkpointing:60"
HEARTBEATS = ("--ft-initial-rank-heartbeat-timeout", "90", "--ft-rank-heartbeat-timeout", str(SILENCE_S))
ALL = {
    script.name: script
    for script in (
        Script("bytes_lm", ("train.py", "config/tiny.py", "--max_iters=30", "--step_s=0.04", "--out_dir=o=1"), 30),
        Script("vision", ("-m", "vision.train", "12", "1", "-b", "4", "--workers=2", "--pause_s", "0.03"), 12,
               is_slow=True),
        Script("spawning.py", ("--no-agent-store", "spawning.py", "2"), 24, ranks=1, is_slow=True),
        Script("accelerated.py", ("accelerated.py", "--with-tracking", "--checkpointing_steps", "3"), 12,
               flags=HEARTBEATS, needs="accelerate", is_slow=True),
        Script("sections.py", ("sections.py", "--num_steps", "20"), 20,
               flags=("--ft-rank-section-timeouts", SECTIONS), is_slow=True),
    )
}  # fmt: skip


@contextmanager
def running(script: Script, folder: Path) -> Generator[Launch]:
    """Runs the script in a copy of its folder; nothing of it outlives the block."""
    source = OTHERS / script.name
    if source.is_file():
        folder.mkdir()
        shutil.copy(source, folder)
    elif script.arguments[0] == "-m":
        shutil.copytree(source, folder / script.name)
    else:
        shutil.copytree(source, folder)
    if script.name == "bytes_lm":
        (folder / "train.bin").write_bytes(bytes(at * at % 251 for at in range(4000)))
    flags = ("--nproc-per-node", str(script.ranks), "--max-restarts", str(RESTARTS_MAX), *script.flags)
    with launched(folder, *flags, *script.arguments, environment={"OMP_NUM_THREADS": "1"}) as launch:
        yield launch


def strike(launch: Launch, script: Script, dice: random.Random, number: signal.Signals) -> None:
    """Sends the signal to a random process of the job, a rank or its child, at a random later step."""
    steps = launch.stdout_text().count("step ") + dice.randint(1, max(1, script.steps // 3))
    launch.wait_for_output("step ", count=steps, timeout_s=90)
    newest = dict(START.findall(launch.stdout_text()))  # a restarted rank prints it again
    ranks = [psutil.Process(int(pid)) for pid in newest.values()]
    if number is signal.SIGSTOP:
        found = ranks
    else:
        found = [process for rank in ranks for process in (rank, *rank.children(recursive=True))]
    victim = dice.choice([process for process in found if "resource_tracker" not in " ".join(process.cmdline())])
    os.kill(victim.pid, number)


def results(launch: Launch) -> dict[str, str]:
    """Returns the final result of each rank, digit by digit."""
    code = launch.wait(100)
    assert code == 0, f"exit code {code}\n{launch.explained()}"
    return dict(END.findall(launch.stdout_text()))
