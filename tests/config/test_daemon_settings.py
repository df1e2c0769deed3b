"""What does a daemon read from flags, variables and its file?"""

# ruff: noqa: E501 - messages are quoted whole

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.config.daemon_settings import DaemonSettings, TlsFiles, parse_daemon
from supervisor.config.log_limits import LogLimits
from supervisor.errors import ConfigurationError, HoldfastError, InvalidRequestError

TLS = ["--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a"]


def parse(*argv: str, environ: dict[str, str] | None = None) -> DaemonSettings:
    return parse_daemon(argv, environ=environ or {})


def from_file(folder: Path, text: str, *argv: str, environ: dict[str, str] | None = None) -> DaemonSettings:
    (folder / "daemon.yaml").write_text(text)
    return parse("--config", str(folder / "daemon.yaml"), *argv, environ=environ)


def test_defaults() -> None:
    assert parse() == DaemonSettings()


def test_whether_slurms_prolog_has_started_it_for_a_job() -> None:
    assert parse(environ={"HOLDFAST_SUPERVISOR_OF": "812"}).is_of_one_job
    assert not parse(environ={"HOLDFAST_SUPERVISOR_OF": ""}).is_of_one_job


def test_where_metrics_are_served(tmp_path: Path) -> None:
    assert parse("--metrics", "127.0.0.1:9464").metrics == ("127.0.0.1", 9464)
    assert from_file(tmp_path, "metrics: 0.0.0.0:9464").metrics == ("0.0.0.0", 9464)


def test_flags() -> None:
    found = parse(
        "--socket_dir=/s", "--state-dir", "/v", "--supervisor-return-timeout", "5", "--listen", "[::1]:70", *TLS
    )
    assert found == DaemonSettings(
        socket_dir="/s",
        state_dir="/v",
        supervisor_return_timeout_s=5.0,
        listen=("::1", 70),
        tls=TlsFiles("/c", "/k", "/a"),
    )


def test_command_line_beats_variable_beats_file(tmp_path: Path) -> None:
    text = (
        "socket_dir: /file\nsupervisor_return_timeout: 7\nlisten: localhost:7\ntls_cert: /c\ntls_key: /k\ntls_ca: /a\n"
    )
    found = from_file(tmp_path, text)
    assert (found.socket_dir, found.supervisor_return_timeout_s, found.listen) == ("/file", 7.0, ("localhost", 7))
    environ = {"HOLDFAST_SOCKET_DIR": "/variable"}
    assert from_file(tmp_path, text, environ=environ).socket_dir == "/variable"
    assert from_file(tmp_path, text, "--socket-dir", "/flag", environ=environ).socket_dir == "/flag"


def test_how_much_of_old_logs_is_kept(tmp_path: Path) -> None:
    assert parse().log_limits == LogLimits(jobs_max=200, gib_max=20.0)
    assert from_file(tmp_path, "log_jobs_max: 7\nlog_gib_max: 1.5").log_limits == LogLimits(7, 1.5)
    environ = {"HOLDFAST_LOG_JOBS_MAX": "9"}
    assert from_file(tmp_path, "log_jobs_max: 7", "--log-gib-max=0", environ=environ).log_limits == LogLimits(9, 0.0)
    with pytest.raises(InvalidRequestError, match="--log-jobs-max"):
        parse("--log-jobs-max", "-1")


def test_pet_variables_are_the_job_s() -> None:
    assert parse(environ={"PET_SOCKET_DIR": "/x", "PET_STATE_DIR": "/x"}) == DaemonSettings()


def test_one_file_may_serve_the_daemon_and_the_jobs(tmp_path: Path) -> None:
    found = from_file(tmp_path, "state_dir: /v\nfault_tolerance:\n  safety_factor: 2\n")
    assert found.state_dir == "/v"
    assert found.warnings == (
        f"{tmp_path}/daemon.yaml, line 2: fault_tolerance has no effect on the daemon: "
        "give the file to holdfast run --ft-cfg-path",
    )
    assert from_file(tmp_path, "").state_dir is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("socketdir: /s", "cannot use {}, line 1: there is no key socketdir; write socket_dir"),
        ("state_dir: /s\nmax_restarts: 3", "cannot use {}, line 2: there is no key max_restarts; remove it"),
        ("socket_dir: 5", "cannot use {}, line 1: socket_dir must be text; quote it: '5'"),
        ("- a", "cannot use {}, line 1: its top is not a mapping; write KEY: VALUE lines"),
        ("fault_tolerance:\n  x: 1", "cannot use {}, line 2: there is no key x; remove it"),
        ("fault_tolerance: 1",
         "cannot use {}, line 1: fault_tolerance is not a mapping; write its keys below it, indented"),
        ("metrics: localhost", "cannot use {}, line 1 (metrics: localhost): it needs a host and a port; "
         "write --metrics HOST:PORT, such as 127.0.0.1:9464"),
        ("supervisor_return_timeout: 1m", "cannot use {}, line 1 (supervisor_return_timeout: 1m): "
         "seconds are plain numbers without a unit; write 60"),
    ],
)  # fmt: skip
def test_mistakes_in_the_file(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_file(tmp_path, text)
    assert str(caught.value) == message.format(f"{tmp_path}/daemon.yaml")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train.py"], "cannot use train.py: holdfast daemon takes flags only; remove it"),
        (["--max-restarts", "3"], "cannot use --max-restarts: there is no such flag; see holdfast daemon --help"),
        (["--socketdir", "/s"], "cannot use --socketdir: there is no such flag; did you mean --socket-dir"),
        (["--listen", "localhost", *TLS],
         "cannot use --listen localhost: it needs a host and a port; write --listen HOST:PORT, such as 127.0.0.1:9464"),
        (["--listen", "localhost:70"],
         "cannot use --listen localhost:70: the control API is served over TCP with mutual TLS only; "
         "give --tls-cert, --tls-key and --tls-ca"),
        (TLS, "cannot use --tls-cert /c: there is no --listen that it could serve; give --listen, or remove --tls-cert"),
        (["--metrics", "localhost"],
         "cannot use --metrics localhost: it needs a host and a port; write --metrics HOST:PORT, such as 127.0.0.1:9464"),
    ],
)  # fmt: skip
def test_mistakes_on_the_command_line(argv: list[str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(*argv)
    assert str(caught.value) == message


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(HoldfastError, match="cannot read /nowhere: No such file or directory"):
        parse("--config", "/nowhere")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "--supervisor-return-timeout SECONDS" in printed
    assert "[60 s]" in printed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may serve other users")
def test_the_unit_of_users_supervisors_comes_with_the_unit_of_the_service() -> None:
    environ = {"HOLDFAST_USER_UNIT": "holdfast-user@.service"}
    assert parse_daemon(["--users", "all"], environ=environ).user_service.unit == "holdfast-user@"
    assert parse_daemon(["--users", "all", "--user-unit", "mine@"], environ=environ).user_service.unit == "mine@"
    with pytest.raises(
        InvalidRequestError, match=r"it is not the name of a template unit; write holdfast-user@\.service"
    ):
        parse_daemon(["--users", "all", "--user-unit", "holdfast.service"], environ={})
    with pytest.raises(HoldfastError, match="it is for the jobs of other users; give --users as well"):
        parse_daemon([], environ=environ)
