"""`--store-ports`: are the stores of all cycles where a firewall allows them?"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HOLDFAST = Path(sys.executable).with_name("holdfast")
RESTARTS = 6
# Each cycle leaves connections that were ended from both sides.
SCRIPT = f"""
import os, sys
from torch.distributed import TCPStore
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
own = TCPStore(host, port + 1, is_master=True)
own.set("mine", "")
TCPStore(host, port, is_master=False).set("the launcher's", "")
print("port", port, flush=True)
sys.exit(int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < {RESTARTS})
"""


@pytest.mark.parametrize("given", ["flag", "variable"])
def test_each_cycle_takes_its_store_s_port_from_the_least_range(given: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HOLDFAST_STATE_DIR": str(tmp_path / "state")}
    first = 22_000 if given == "flag" else 22_200
    within = f"{first}-{first + 129}"
    flags = ["--store-ports", within] if given == "flag" else []
    variables = {"HOLDFAST_STORE_PORTS": within} if given == "variable" else {}
    done = subprocess.run(
        [HOLDFAST, "run", *flags, "--max-restarts", str(RESTARTS), "--nproc-per-node", "1", "train.py"],
        cwd=tmp_path, env=environment | variables, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = [int(port) for port in re.findall(r"^port (\d+)$", done.stdout, re.MULTILINE)]
    assert done.returncode == 0, done.stderr
    assert len(found) == RESTARTS + 1
    assert set(found) <= {first, first + 65}


def test_a_range_in_which_nothing_is_free_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with socket.create_server(("127.0.0.1", 23_010)), socket.create_server(("127.0.0.1", 23_070)):
        done = subprocess.run(
            [HOLDFAST, "run", "--store-ports", "23000-23129", "train.py"],
            cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    assert "cannot serve a store on 127.0.0.1: no 65 neighbouring ports of 23000-23129 are free" in done.stderr
    assert "widen --store-ports" in done.stderr
