"""Does a session of the web page count at one address only, end when unused, and never outnumber its bound?"""

from __future__ import annotations

from supervisor.cli.web_page.web_sessions import SESSIONS_MAX, UNUSED_S, Sessions

HERE = "127.0.0.1:8790"


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_it_counts_where_the_page_was_opened() -> None:
    sessions = Sessions(Time())
    secret = sessions.begin(HERE)
    assert sessions.is_open(secret, HERE)
    for host in ("127.0.0.1:8791", "127.0.0.1", "localhost:8790", "evil.example:8790", ""):
        assert not sessions.is_open(secret, host)
    assert not sessions.is_open("", HERE)
    assert not sessions.is_open(secret[:-1], HERE)
    assert secret != sessions.begin(HERE)


def test_it_ends_when_it_was_not_used() -> None:
    time = Time()
    sessions = Sessions(time)
    used, unused = sessions.begin(HERE), sessions.begin(HERE)
    for _ in range(3):
        time.now_s += UNUSED_S / 2
        assert sessions.is_open(used, HERE)
    assert not sessions.is_open(unused, HERE)


def test_of_too_many_the_one_that_was_unused_for_longest_ends() -> None:
    sessions = Sessions(Time())
    first, second = sessions.begin(HERE), sessions.begin(HERE)
    assert sessions.is_open(first, HERE)
    others = [sessions.begin(HERE) for _ in range(SESSIONS_MAX - 1)]
    assert not sessions.is_open(second, HERE)
    assert all(sessions.is_open(each, HERE) for each in (first, *others))
