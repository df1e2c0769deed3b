"""Does the epilog of deploy/slurm end processes that fork faster than anybody can look? In a pid namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "deploy/slurm"
UID = 4321
CHAINS, OTHERS = 4, 300

# What a supervisor does with the leftovers of a spawner that an earlier one started, and that is gone.
OWN = f"""
import os
from supervisor.edges.workers.spawner.lost_spawner_processes import Orphans
os.setgid({UID}); os.setuid({UID})  # of the job, as the supervisor of a user is
orphans = Orphans(os.environ["HOLDFAST_JOB_ID"], 0, "0123456789ab", found=True)
while orphans.sweep(others=frozenset()):
    pass
"""

# The first process of the namespace reaps what nobody else does; its child plays the rounds.
PROGRAM = f"""
import os, subprocess, sys, time
rounds, chain, *command = sys.argv[1:]

if (player := os.fork()):
    while os.wait()[0] != player:
        pass
    os._exit(0)

def lives():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = open(f"/proc/{{name}}/status").read()
        except OSError:
            continue
        if "\\nUid:\\t{UID}\\t" in status and "State:\\tZ" not in status:
            found.append(status)
    return found

def forks_on():
    return any(lives() for _ in range(20))

def become():
    os.setgid({UID}); os.setuid({UID})

for _ in range({OTHERS}):
    subprocess.Popen(["sleep", "600"])
for number in range(int(rounds)):
    job = dict(os.environ, SLURM_JOB_ID=str(number), SLURM_JOB_UID="{UID}", SLURMD_NODENAME="n")
    job["HOLDFAST_JOB_ID"] = str(number)
    for pause_us in range({CHAINS}):
        subprocess.Popen([chain, str(100 * pause_us)], env=job, preexec_fn=become, start_new_session=True)
    while len(lives()) < 1:
        pass
    before = time.monotonic()
    code = subprocess.run([sys.executable, *command], env=job, timeout=60).returncode
    print(code, forks_on(), round(time.monotonic() - before, 2), flush=True)
"""


def test_the_copy_beside_the_epilog_is_the_one_of_the_product() -> None:
    ours = ROOT / "proto/holdfast_wire/process_sweep.py"
    assert (SLURM / ours.name).read_bytes() == ours.read_bytes(), f"cp {ours} {SLURM}"


@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.soak)])
@pytest.mark.parametrize("by", ["the epilog", "a supervisor"])
def test_a_chain_of_forks_is_ended_each_time(by: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)  # for the job's user
        folder, chain = Path(place, "slurm"), Path(place, "chain")
        shutil.copytree(SLURM, folder)
        subprocess.run(["cc", "-O1", "-o", chain, Path(__file__).with_name("fork_chain.c")], check=True, timeout=60)
        done = played(rounds, chain, *(("-I", str(folder / "epilog.py")) if by == "the epilog" else ("-c", OWN)))
    ends = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ends == [["0", "False"]] * rounds, done.stdout + done.stderr


def played(rounds: int, chain: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "-pf", "--mount-proc", sys.executable, "-c", PROGRAM, str(rounds), str(chain), *command],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
