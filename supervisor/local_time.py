"""How is a time written for people? In ISO 8601 and local time with its offset, wherever they read it."""


def local_time(at_ns: int, *, milliseconds: bool = False, separator: str = "T") -> str:
    """Returns a Unix time in nanoseconds as local time, such as 2026-11-30T14:53:25+00:00."""
    from datetime import datetime  # Late: most commands show no time.

    moment = datetime.fromtimestamp(at_ns // 10**9).astimezone().replace(microsecond=at_ns % 10**9 // 1000)
    return moment.isoformat(sep=separator, timespec="milliseconds" if milliseconds else "seconds")
