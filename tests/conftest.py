"""What every test may rely on, however the suite was started."""

from __future__ import annotations

import signal

# Started by nohup, or in the background of a script, the suite ignores these, and so would all that it starts.
for _number, _default in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)
