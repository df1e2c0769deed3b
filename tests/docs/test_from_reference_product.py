"""Do the imports that the migration page names work?"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "from-reference-product.md"
IMPORTS = re.findall(r"^(from worker_client\S* import \S+)  # now$", PAGE.read_text(), re.MULTILINE)


def test_each_package_has_its_line():
    before = re.findall(r"^from nvidia_resiliency_ext(\S*) import (\S+)  # before$", PAGE.read_text(), re.MULTILINE)
    assert before == [
        (".fault_tolerance", "RankMonitorClient"), ("", "inprocess"), (".ptl_resiliency", "FaultToleranceCallback"),
    ]  # fmt: skip
    assert len(IMPORTS) == len(before)


@pytest.mark.parametrize("line", IMPORTS)
def test_what_is_imported_now_is_there(line: str):
    if "lightning" in line and importlib.util.find_spec("lightning") is None:
        pytest.skip("Lightning is not installed")
    subprocess.run([sys.executable, "-c", line], check=True, timeout=100)
