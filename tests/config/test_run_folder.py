import pytest

from supervisor.config.run_folder import check_log_dir, run_folder, run_name
from supervisor.errors import InvalidRequestError


def test_runs_of_one_id_have_folders_that_sort_by_age() -> None:
    first, second = run_folder("/logs", "job", 1_000_000_000), run_folder("/logs", "job", 1_001_000_000)
    assert first == "/logs/job/run_19700101T000001.000Z"
    assert first < second
    assert run_name(1_795_000_000_123_456_789) == "run_20261118T110640.123Z"


@pytest.mark.parametrize("log_dir", ["", "/logs", "relative", "/" + "x" * 255, "/grüße/日志"])
def test_a_folder_that_a_file_system_can_hold_is_taken(log_dir: str) -> None:
    check_log_dir(log_dir)


@pytest.mark.parametrize(
    ("log_dir", "why"),
    [
        ("/logs/\ud800", "it is not valid UTF-8; choose another --log-dir"),
        ("/logs/\udcff", "it is not valid UTF-8"),
        ("/logs/" + "x" * 300, "a name in it has 300 bytes, the limit is 255"),
        ("/ü" * 2000, "the path has 6000 bytes"),
        ("/a\0b", "a NUL byte"),
        ("/a" * 1900, "it is more than 500 folders deep; choose another --log-dir"),
    ],
)
def test_any_other_is_refused_with_the_remedy(log_dir: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"cannot keep logs in .*{why}") as refused:
        check_log_dir(log_dir)
    assert str(refused.value).isascii()
