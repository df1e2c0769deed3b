"""Makes each call of the control API about one job, and prints the answers as JSON."""

import json
import sys
from pathlib import Path

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import HangLimits
from supervisor.edges.operators.control_client import ControlClient
from supervisor.edges.operators.log_follower import LogChoice
from supervisor.errors import HoldfastError
from supervisor.ports.job_requests import RendezvousRequest

socket_path, job_id, script, node = sys.argv[1:5]
answers: dict[str, str] = {}
with ControlClient(Path(socket_path)) as client:
    spec = JobSpec(job_id=job_id, command=(script,), hang_limits=HangLimits(heartbeat_s=None), preload="none")
    calls = {
        "GetJob": lambda: client.job(job_id).job_id,
        "ListJobs": lambda: [job.job_id for job in client.jobs(include_ended=True)],
        "WatchJob": lambda: len(list(client.watch(job_id))),
        "StopJob": lambda: client.stop(job_id, reason="another user"),
        "RestartJob": lambda: client.restart(job_id, reason="another user"),
        "GetStacks": lambda: len(client.stacks(job_id).groups),
        "StreamLogs": lambda: len(list(client.logs(job_id, LogChoice()))),
        "GetNode": lambda: [each.job_ids for each in client.nodes()],
        "ListNodes": lambda: [each.job_ids for each in client.nodes()],
        "CordonNode": lambda: client.cordon(node, reason="another user").state,
        "UncordonNode": lambda: client.uncordon(node).state,
        "LeadRendezvous": lambda: client.lead_rendezvous(RendezvousRequest(job_id, "127.0.0.1", 1)),
        "SubmitJob": lambda: client.submit(spec, {}),
    }
    for name, call in calls.items():
        try:
            answers[name] = json.dumps(call())
        except HoldfastError as error:
            answers[name] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
