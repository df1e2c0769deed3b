"""Do the examples of deploy/slurm do under a real Slurm what they say?"""

from __future__ import annotations

from tests.slurm.batch import TRAIN, submit
from tests.slurm.slurm_lab import SlurmLab


def test_a_job_on_two_nodes_recovers_from_a_killed_rank_and_every_fact_comes_from_slurm(slurm: SlurmLab):
    job = submit(slurm, "one", "job.sbatch", str(TRAIN), ".", "0.5", "kill:3:0")
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    assert "rank 3 (pid " in job.log()
    assert "restarting at once, restarts used 1 of 3" in job.log()
    ranks = sorted(job.noted("done", cycle=1), key=lambda rank: int(str(rank["RANK"])))
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert [rank["node"] for rank in ranks] == ["node1", "node1", "node2", "node2"]
    assert [rank["GROUP_RANK"] for rank in ranks] == [rank["SLURM_PROCID"] for rank in ranks]
    assert {rank["TORCHELASTIC_RUN_ID"] for rank in ranks} == {f"slurm-{job.number}-0"}
    assert not list(job.folder.glob(".holdfast-token*"))
