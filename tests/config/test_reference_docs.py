"""Do help and reference page name everything that can be set, and are they up to date?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.daemon_settings import DAEMON_SETTINGS
from supervisor.config.help_text import daemon_help, run_help
from supervisor.config.launch_settings import RUN_SETTINGS, settings_by_flag, settings_by_key
from supervisor.config.plan_text import plan_text
from supervisor.config.reference_docs import configuration_page
from supervisor.config.setting import Status
from tests.config.runs import request

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == configuration_page(), "run `make docs` and commit what it changes"


def test_the_page_names_everything() -> None:
    page = configuration_page()
    for setting in RUN_SETTINGS + DAEMON_SETTINGS:
        for word in (setting.flag, *setting.other_flags, *setting.old_flags, *setting.keys, *setting.variables):
            assert f"`{word}" in page or f", {word}" in page
    assert all(f"`{key}`" in page for key in settings_by_key())


def test_no_name_has_two_meanings() -> None:
    names = [setting.name for setting in RUN_SETTINGS]
    assert len(names) == len(set(names))
    keys = [key for setting in RUN_SETTINGS for key in setting.keys]
    assert len(keys) == len(set(keys)) == len(settings_by_key())
    assert {setting.flag for setting in RUN_SETTINGS} <= set(settings_by_flag())


def test_every_default_is_a_value_of_its_kind() -> None:
    for setting in RUN_SETTINGS:
        value = setting.default_value()
        if value is not None and value != "":
            assert setting.kind.parse(setting.kind.show(value)) == value, setting.flag


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        request("--help")
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    works = [setting for setting in RUN_SETTINGS if setting.status is Status.WORKS]
    assert all(setting.flag in printed for setting in works)
    assert not any(f"{setting.flag} " in printed for setting in RUN_SETTINGS if setting not in works)
    assert "longest time between two heartbeats [2700 s]" in printed


@pytest.mark.parametrize("width", [80, 100])
def test_help_fits_the_terminal_and_can_name_everything(width: int) -> None:
    for everything in (False, True):
        printed = run_help(everything=everything, width=width) + daemon_help(
            DAEMON_SETTINGS, everything=everything, width=width
        )
        assert max(map(len, printed.splitlines())) <= width
        assert all(setting.flag in printed for setting in RUN_SETTINGS + DAEMON_SETTINGS) is everything


def test_a_plan_shows_the_job_and_no_environment() -> None:
    environ = {"SECRET": "hunter2"}
    run = request("--python", "/opt/python", "--job-id", "a", "--dry-run", "-m", "pkg", "it's", environ=environ)
    assert run.dry_run
    printed = plan_text(run)
    assert 'job_id: "a"\n' in printed
    assert "command: \"/opt/python -m pkg 'it'\\\"'\\\"'s'\"\n" in printed
    assert "  rank_heartbeat_timeout: 2700\n" in printed
    assert "hunter2" not in printed
