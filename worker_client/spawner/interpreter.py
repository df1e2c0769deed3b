"""Is this interpreter new enough to be a spawner? If not, it says so over the link before it loads more.

Any Python 3 from 3.6 on must be able to read this file.
"""

import json
import os
import struct
import sys

OLDEST = (3, 11)
BAD_CONFIGURATION = 78


def refuse_old() -> None:
    """Ends this process if its interpreter is too old, after telling the supervisor."""
    version = tuple(sys.version_info[:2])
    if version >= OLDEST:
        return
    words: dict[str, object] = {
        "type": "Ready",
        "pid": os.getpid(),
        "protocol": 1,
        "python": "{}.{}".format(*version),
        "method": "exec",
        "method_reason": "",
        "preloaded": [],
        "cgroup": "",
        "refusal": "cannot run with {}: it is Python {}.{}, and {}.{} is the oldest that works; "
        "name another with --python".format(sys.executable, *version, *OLDEST),
        "refusal_code": BAD_CONFIGURATION,
    }
    body = json.dumps(words).encode()
    os.write(int(os.environ["HOLDFAST_SPAWNER_FD"]), struct.pack(">I", len(body)) + body)
    os._exit(BAD_CONFIGURATION)
