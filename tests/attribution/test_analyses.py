"""Are logs read as they grow, confined to their folder, and compared with earlier cycles?"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.attribution import analyses as module
from supervisor.attribution.analyses import Analyses, Asked, Result
from supervisor.core.attribution.analysis import Judgement
from supervisor.core.attribution.signs import Advice
from supervisor.errors import ExhaustedError, InvalidRequestError

FAILED = '0: Traceback (most recent call last):\n0:   File "a.py", line 3, in f\n0: ValueError: x\n'


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[Analyses]:
    analyses = Analyses(folder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(analyses.run)
        yield analyses
        tasks.cancel_scope.cancel()


async def result(analyses: Analyses, path: Path, *, is_terminal: bool = True) -> Result:
    analyses.submit(Asked(str(path), is_terminal, job_id="job"))
    log = analyses.logs[analyses.place(str(path))]
    with anyio.fail_after(20):
        while log.is_due:
            await log.changed.wait()
    assert log.result is not None, log.problem
    return log.result


async def test_a_log_is_read_on_from_where_it_ended(tmp_path: Path):
    path = tmp_path / "train_cycle0.log"
    path.write_text("0: step 1\n0: CUDA out of mem")
    async with running(tmp_path) as analyses:
        assert (await result(analyses, path, is_terminal=False)).judgement.advice is Advice.CONTINUE
        with path.open("a") as file:
            file.write("ory. Tried to allocate 2.00 GiB\n")
        found = await result(analyses, path, is_terminal=False)
        assert found.judgement.findings[0].kind == "gpu_out_of_memory"
        assert found.judgement.findings[0].line_number == 2


async def test_three_cycles_that_end_alike_are_one_too_many(tmp_path: Path):
    async with running(tmp_path) as analyses:
        for cycle, advice in enumerate((Advice.RESTART, Advice.RESTART, Advice.STOP)):
            path = tmp_path / f"train_cycle{cycle}.log"
            path.write_text(FAILED)
            assert (await result(analyses, path)).judgement.advice is advice


async def test_another_jobs_cycles_do_not_count(tmp_path: Path):
    async with running(tmp_path) as analyses:
        for name in ("a_cycle0.log", "b_cycle1.log", "c_cycle2.log"):
            (tmp_path / name).write_text(FAILED)
            assert (await result(analyses, tmp_path / name)).judgement.advice is Advice.RESTART


@pytest.mark.parametrize("path", ["/etc/passwd", "train.log", "{folder}/../x", "{folder}/link"])
async def test_nothing_outside_of_the_folder_is_read(path: str, tmp_path: Path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(InvalidRequestError, match="is not below"):
        Analyses(tmp_path).submit(Asked(path.format(folder=tmp_path), is_terminal=True))


async def test_what_is_no_file_or_missing_is_said(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    async with running(tmp_path) as analyses:
        for name, why in (("folder", "it is no file"), ("missing", "No such file")):
            path = tmp_path / name
            with pytest.raises(AssertionError, match=f"cannot read {path}: {why}"):
                await result(analyses, path)


async def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "QUEUE_LOGS_MAX", 1)
    analyses = Analyses(tmp_path)  # nobody runs it
    analyses.submit(Asked(str(tmp_path / "a"), is_terminal=True))
    with pytest.raises(ExhaustedError, match="1 logs are already waiting"):
        analyses.submit(Asked(str(tmp_path / "b"), is_terminal=True))


async def test_a_second_opinion_counts_for_ended_cycles_alone(tmp_path: Path):
    heard: list[str] = []

    async def opinion(judgement: Judgement, tail: str) -> tuple[Judgement, str]:
        heard.append(tail)
        return Judgement(Advice.STOP, "says the other"), "other"

    path = tmp_path / "train.log"
    path.write_text(FAILED)
    analyses = Analyses(tmp_path, opinion)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(analyses.run)
        assert (await result(analyses, path, is_terminal=False)).source == "rules"
        ended = await result(analyses, path)
        assert (ended.source, ended.judgement.reason) == ("other", "says the other")
        assert heard == [FAILED.rstrip("\n")]
        tasks.cancel_scope.cancel()
