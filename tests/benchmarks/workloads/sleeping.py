"""A script without torch that does nothing."""

from recording import STARTED_NS, record

record("first_line", STARTED_NS)

import time  # noqa: E402  (after the first line)

while True:
    time.sleep(3600)
