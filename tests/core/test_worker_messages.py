"""When does a worker count as ended, and when as successful?"""

from supervisor.core.facts import WorkerExit
from supervisor.core.worker_messages import Worker


def test_ended_and_succeeded() -> None:
    assert not Worker(0, 0, 1).ended
    done = Worker(0, 0, 1, WorkerExit(0, 0, 1, 0, None, 1.0))
    assert (done.ended, done.succeeded) == (True, True)
    failed = Worker(0, 0, 1, WorkerExit(0, 0, 1, None, 9, 1.0))
    assert (failed.ended, failed.succeeded) == (True, False)
    never = Worker(0, 0, not_started="no such file")
    assert (never.ended, never.succeeded) == (True, False)
