"""How is a bug in Holdfast reported if it ends the job in which it occurred?"""

from __future__ import annotations

import traceback


def defect_sentence(error: BaseException) -> str:
    """Names the error and where it was raised; no full stop."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename.rpartition('/supervisor/')[2]}:{frames[-1].lineno}" if frames else ""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    report = "the job is ended, please report it with the supervisor's log"
    return f"Holdfast hit a defect of its own ({what}{where}); {report}"
