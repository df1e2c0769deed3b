"""Do help and the reference page name everything that can be set, and does a plan say where each value came from?"""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.make_configuration import configuration_page
from supervisor.config.daemon_settings import DAEMON_SETTINGS
from supervisor.config.help_text import daemon_help, run_help
from supervisor.config.launch_settings import RUN_SETTINGS, settings_by_flag, settings_by_key
from supervisor.config.plan_text import plan_text
from supervisor.config.setting import Status
from tests.config.runs import request


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
    assert not any(f"{each.flag} " in printed for each in RUN_SETTINGS if each.status is not Status.WORKS)
    assert "longest time between two heartbeats [2700 s]" in printed
    assert "--help-all lists all flags" in printed


def test_the_help_is_at_most_a_screen_and_a_half() -> None:
    assert len(run_help(width=80).splitlines()) <= 36
    assert len(run_help(everything=True, width=80).splitlines()) > 200


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
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert 'job_id: "a" # --job-id a' in lines
    assert "command: \"/opt/python -m pkg 'it'\\\"'\\\"'s'\" # the command line" in lines
    assert "rank_heartbeat_timeout: 2700 # default" in lines
    assert "hunter2" not in printed


def test_a_plan_says_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "ft.yaml"
    file.write_text("fault_tolerance:\n  safety_factor: 3\n  max_restarts: 1\n")
    environ = {"PET_MAX_RESTARTS": "2", "PET_NPROC_PER_NODE": "4"}
    run = request("--ft-cfg-path", str(file), "--nproc-per-node=3", "--dry-run", "t.py", environ=environ)
    lines = [" ".join(line.split()) for line in plan_text(run, supervisor="private").splitlines()]
    assert "workers: 3 # --nproc-per-node 3" in lines
    assert "max_restarts: 2 # PET_MAX_RESTARTS=2" in lines
    assert f"safety_factor: 3 # {file}, line 2 (safety_factor: 3)" in lines
    assert 'supervisor: "private" # found' in lines
    assert 'WORLD_SIZE: "3"' in lines
    assert 'MASTER_PORT: "known when it starts"' in lines


def test_a_plan_for_several_nodes_shows_no_password(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hunter2" * 8)
    token.chmod(0o600)
    run = request(
        *("--nnodes", "2:3", "--rdzv-backend", "etcd", "--rdzv-endpoint", "127.0.0.1:2379", "--rdzv-id", "j"),
        *("--rdzv-conf", f"username=me,password=hunter2,token_file={token}", "--dry-run", "t.py"),
    )
    printed = plan_text(run)
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert 'wanted: "2:3" # --nnodes 2:3' in lines
    assert 'backend: "etcd" # --rdzv-backend etcd' in lines
    assert 'RANK: "known when the nodes have met"' in lines
    assert "hunter2" not in printed


@pytest.mark.parametrize(
    ("flags", "job", "store"),
    [
        (["--rdzv-id", "j"], 'job_id: "j" # --rdzv-id j', "the address of rank 0's node, a fresh port # default"),
        (
            ["--rdzv-id", "j", "--job-id", "k", "--local-addr", "10.0.0.7"],
            'job_id: "k" # --job-id k',
            "the address of rank 0's node (here: 10.0.0.7), a fresh port # --local-addr 10.0.0.7",
        ),
        (
            ["--rdzv-id", "j", "--master-addr", "10.0.0.1", "--master-port", "29500"],
            'job_id: "j" # --rdzv-id j',
            "10.0.0.1, port 29500 # --master-addr 10.0.0.1",
        ),
    ],
)
def test_a_plan_for_several_nodes_says_whose_id_the_job_has_and_where_its_store_is(
    flags: list[str], job: str, store: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("hunter2" * 8)
    token.chmod(0o600)
    meeting = ["--nnodes", "2", "--rdzv-endpoint", "10.0.0.1:29400", "--rdzv-conf", f"token_file={token}"]
    lines = [" ".join(line.split()) for line in plan_text(request(*meeting, *flags, "t.py")).splitlines()]
    assert job in lines
    address, source = store.split(" # ")
    address = address.replace("a fresh port", "a fresh port each cycle")
    assert f'store: "{address}, served by the store host" # {source}' in lines


def test_the_id_of_a_rendezvous_names_no_job_of_one_node() -> None:
    lines = [" ".join(line.split()) for line in plan_text(request("--rdzv-id", "j", "t.py")).splitlines()]
    (line,) = [line for line in lines if line.startswith("job_id: ")]
    assert line.startswith('job_id: "t-')
    assert line.endswith("# made from the script's name")
