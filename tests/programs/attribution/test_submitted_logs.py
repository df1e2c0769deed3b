"""Are logs read as they grow, confined to their folder, and compared with earlier cycles?"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from supervisor.core.attribution.log_patterns import Advice
from supervisor.core.attribution.log_verdict import Judgement
from supervisor.errors import ExhaustedError, InvalidRequestError
from supervisor.programs.attribution import submitted_logs as module
from supervisor.programs.attribution.log_file import LogFile
from supervisor.programs.attribution.submitted_logs import Analyses, Asked, Result

FAILED = '0: Traceback (most recent call last):\n0:   File "a.py", line 3, in f\n0: ValueError: x\n'


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[Analyses]:
    analyses = Analyses(folder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(analyses.run)
        yield analyses
        tasks.cancel_scope.cancel()


async def result(analyses: Analyses, path: Path, *, is_terminal: bool = True) -> Result:
    await analyses.submit(Asked(str(path), is_terminal, job_id="job"))
    log = analyses.logs[await analyses.place(str(path))]
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
        await Analyses(tmp_path).submit(Asked(path.format(folder=tmp_path), is_terminal=True))


async def test_what_is_no_file_or_missing_is_said(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    async with running(tmp_path) as analyses:
        for name, why in (("folder", "it is not a regular file"), ("missing", "No such file")):
            path = tmp_path / name
            with pytest.raises(AssertionError, match=f"cannot read {path}: {why}"):
                await result(analyses, path)


async def test_an_earlier_result_does_not_stand_for_a_log_that_cannot_be_read(tmp_path: Path):
    path = tmp_path / "train_cycle0.log"
    path.write_text("0: step 1\n")
    async with running(tmp_path) as analyses:
        await result(analyses, path, is_terminal=False)
        path.unlink()
        with pytest.raises(AssertionError, match="cannot read"):
            await result(analyses, path)


async def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "QUEUE_LOGS_MAX", 1)
    analyses = Analyses(tmp_path)  # nobody runs it
    await analyses.submit(Asked(str(tmp_path / "a"), is_terminal=True))
    with pytest.raises(ExhaustedError, match="1 logs are already waiting"):
        await analyses.submit(Asked(str(tmp_path / "b"), is_terminal=True))


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


async def test_a_log_is_due_until_its_last_submission_is_analysed(tmp_path: Path):
    asked, may_answer = anyio.Event(), anyio.Event()

    async def opinion(judgement: Judgement, tail: str) -> tuple[Judgement, str]:
        del judgement, tail
        asked.set()
        await may_answer.wait()
        return Judgement(Advice.STOP, "says the other"), "other"

    path = tmp_path / "train_cycle1.log"
    path.write_text(FAILED)
    analyses = Analyses(tmp_path, opinion)
    for is_terminal in (False, True):
        await analyses.submit(Asked(str(path), is_terminal, job_id="job"))
    log = analyses.logs[str(path)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(analyses.run)
        with anyio.fail_after(20):
            await asked.wait()
            assert log.is_due, "what was found while the cycle ran is not the verdict"
            may_answer.set()
            await analyses.idle()
        assert not log.is_due
        assert log.result is not None
        assert log.result.source == "other"
        tasks.cancel_scope.cancel()


async def test_a_log_on_a_dead_disk_holds_one_place_and_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = threading.Event()
    dead, well = tmp_path / "dead_cycle0.log", tmp_path / "well_cycle0.log"
    real = LogFile.read_on

    def read_on(self: LogFile, now_s: Callable[[], float], *, to_the_end: bool) -> None:
        if self.path == str(dead):
            assert answers.wait(30)
        else:
            real(self, now_s, to_the_end=to_the_end)

    monkeypatch.setattr(LogFile, "read_on", read_on)
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.5)
    for path in (dead, well):
        path.write_text(FAILED)
    async with running(tmp_path) as analyses:
        for _ in range(20):
            await analyses.submit(Asked(str(dead), is_terminal=True))
        assert (await result(analyses, well)).judgement.advice is Advice.RESTART
        await analyses.idle()
        assert analyses.logs[str(dead)].problem == (
            f"cannot read {dead}: an earlier call for it is stuck; check its disk"
        )
        answers.set()
        with anyio.fail_after(20):
            while analyses.logs[str(dead)].problem:
                with suppress(AssertionError):  # The thread has not returned yet.
                    await result(analyses, dead)


async def test_a_path_whose_disk_does_not_answer_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    answers = threading.Event()
    real = os.path.realpath

    def realpath(path: str) -> str:
        if path.endswith("dead.log"):
            assert answers.wait(30)
        return real(path)

    monkeypatch.setattr(module, "PLACE_TIMEOUT_S", 0.2)
    (tmp_path / "well.log").write_text(FAILED)
    async with running(tmp_path) as analyses:
        monkeypatch.setattr(module.os.path, "realpath", realpath)
        for _ in range(20):
            with pytest.raises(ExhaustedError, match=r"cannot look for .*dead\.log: .*; check its disk"):
                await analyses.place(str(tmp_path / "dead.log"))
        assert (await result(analyses, tmp_path / "well.log")).judgement.advice is Advice.RESTART
        answers.set()


async def test_what_was_not_examined_is_said(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text(FAILED)
    os.truncate(path, 30 << 30)
    async with running(tmp_path) as analyses:
        reason = (await result(analyses, path)).judgement.reason
    assert reason.startswith("rank 0: ValueError: x at a.py:3 (")
    assert reason.endswith(f" of the log's {30 << 30} bytes were not examined)")


async def test_what_is_kept_of_jobs_and_cycles_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    monkeypatch.setattr(module, "CYCLES_MAX", 2)
    async with running(tmp_path) as analyses:
        for name in ("a_cycle1", "b_cycle1", "c_cycle1", "c_cycle2", "c_cycle3", "c_cycle4"):
            (tmp_path / f"{name}.log").write_text(FAILED)
            found = await result(analyses, tmp_path / f"{name}.log")
        assert found.judgement.advice is Advice.STOP  # cycles 2 and 3 are enough to see that 4 ended alike
        kept = analyses._signatures  # pyright: ignore[reportPrivateUsage]
        assert {path.rsplit("/", 1)[-1]: list(each) for (_, path), each in kept.items()} == {
            "b.log": [1],
            "c.log": [3, 4],
        }
