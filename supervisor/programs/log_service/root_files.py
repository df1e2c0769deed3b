"""Which writer gets a piece? The supervisors' messages have one of their own: a disk that hangs holds up its own file.

The file of --ft-nvrx-logfile may lie on another disk than the logs of the cycles. Its messages never make those wait:
beyond a bound they are lost, and the root's own log says how many bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
from holdfast_wire.log_pieces import SUPERVISORS, Piece, Receipt

from supervisor.programs.log_service.file_writer import FileWriter, Paths
from supervisor.programs.log_service.position_file import place_beside

WORDS_BYTES_MAX = 2 * 1024 * 1024  # that may wait for the file of the supervisors' messages

_log = logging.getLogger("holdfast.logs")


class RootFiles:
    """All files of a job. See FileWriter for the callbacks."""

    def __init__(
        self,
        job_id: str,
        cycle_prefix: str,
        supervisor_log: str,
        *,
        on_receipt: Callable[[int, Receipt], None],
        on_trouble: Callable[[str], None],
        run_began_ms: int = 0,
    ) -> None:
        self._on_receipt = on_receipt
        self._cycles = FileWriter(
            Paths(cycle_prefix, "" if cycle_prefix else supervisor_log),
            place_beside(cycle_prefix or supervisor_log, job_id),
            on_receipt=on_receipt,
            on_trouble=on_trouble,
            run_began_ms=run_began_ms,
        )
        self._words = self._cycles
        if cycle_prefix and supervisor_log:
            self._words = FileWriter(
                Paths("", supervisor_log),
                place_beside(supervisor_log, job_id),
                on_receipt=on_receipt,
                on_trouble=_nobody,  # It would stand for the logs of the cycles.
            )
        self._lost_bytes = 0

    @property
    def is_idle(self) -> bool:
        return self._cycles.is_idle and self._words.is_idle

    # --- see log_receiving.Taker ------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self._cycles.is_full

    def take(self, link: int, piece: Piece) -> None:
        if piece.file != SUPERVISORS or self._words is self._cycles:
            self._cycles.take(link, piece)
        elif self._words.held_bytes + len(piece.lines) <= WORDS_BYTES_MAX:
            self._words.take(link, piece)
        else:
            self._lose(link, piece)

    def lose(self, link: int) -> None:
        self._cycles.lose(link)
        if self._words is not self._cycles:
            self._words.lose(link)

    async def until_room(self) -> None:
        await self._cycles.until_room()

    def _lose(self, link: int, piece: Piece) -> None:
        if not self._lost_bytes:
            _log.warning("the disk of --ft-nvrx-logfile takes nothing: messages of the supervisors are lost")
        self._lost_bytes += len(piece.lines)
        self._on_receipt(link, Receipt(piece.stream, piece.end, piece.ends))

    # --- the disks ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cycles.run)
            if self._words is not self._cycles:
                tasks.start_soon(self._words.run)

    async def aclose(self) -> None:
        """Closes the files: the job's output is complete."""
        if self._lost_bytes:
            _log.warning("%d bytes of the supervisors' messages are lost: their disk took nothing", self._lost_bytes)
        await self._cycles.aclose()
        if self._words is not self._cycles:
            await self._words.aclose()


def _nobody(trouble: str) -> None:
    del trouble  # The writer's own log has it.
