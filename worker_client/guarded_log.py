"""How does a rank's client log, if the script's own filter or handler raises?

Scripts put filters on the root's handlers that call `torch.distributed.get_rank()`, for example, which raises while
there is no group. Python guards no filter. Such an error must not end the thread that aborts, or take a rank out of the
call; its line is lost.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

_Adapter = logging.LoggerAdapter[logging.Logger] if TYPE_CHECKING else logging.LoggerAdapter


class GuardedLog(_Adapter):
    """The logger of that name, whose methods raise nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ANN401  # as logging has it
        with contextlib.suppress(Exception):
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
