"""Do completion and man pages see the same flags as the commands themselves?"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.cli.commands import COMMANDS, THEMES
from supervisor.cli.whole_parser import parser_of, whole_parser
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.setting import Status, value_at
from tests.config.runs import request

MAN = Path(__file__).parents[2] / "docs" / "man"


def test_run_has_each_flag_that_works() -> None:
    words = parser_of(COMMANDS["run"]).format_help()
    assert all(setting.flag in words for setting in RUN_SETTINGS if setting.status is Status.WORKS)
    assert not any(f"{setting.flag} " in words for setting in RUN_SETTINGS if setting.status is Status.LATER)


def test_a_switch_that_is_on_says_how_to_turn_it_off() -> None:
    """Without its default, it reads as one that turns something on."""
    actions = parser_of(COMMANDS["run"])._actions
    shown = {option: action.help or "" for action in actions for option in action.option_strings}
    switches = [each for each in RUN_SETTINGS if each.is_switch and each.status is Status.WORKS]
    on = [each for each in switches if each.default_value() is True]
    assert on
    assert on == [each for each in switches if shown[each.flag].endswith(" [true; false after it turns it off]")]
    spec = request(*(word for each in on for word in (each.flag, "false")), "train.py").spec
    assert not any(value_at(spec, each.path) for each in on)


def test_what_follows_the_script_is_the_scripts_own() -> None:
    line = ["run", "--max-restarts", "2", "train.py", "--max-restarts", "9"]
    given = whole_parser(only="run").parse_args(line)
    assert (given.max_restarts, given.script, given.args) == ("2", "train.py", ["--max-restarts", "9"])


def test_each_command_has_one_place_in_the_help() -> None:
    assert sorted(name for theme in THEMES for name in theme.names) == sorted(COMMANDS)


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
@pytest.mark.parametrize("name", ["holdfast", *(f"holdfast-{name}" for name in COMMANDS)])
def test_each_page_is_one_that_man_shows_without_a_warning(name: str) -> None:
    environment = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    command = ["man", "--warnings", "--local-file", str(MAN / f"{name}.1")]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0
    assert shown.stderr == ""
    assert name in shown.stdout
