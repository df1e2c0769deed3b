"""Does the main thread execute bytecode, and if not, since when?

Python runs pending calls on the main thread, between two bytecodes. This module uses the C library's sem_post(): no
Python code is involved that an exception could hit, and checking needs no system call.
"""

from __future__ import annotations

SEMAPHORE_BYTES = 64  # more than sem_t needs anywhere


class BytecodeProbe:
    """Makes pending calls, at most one at a time. An object must live as long as the process: a call may still be
    pending after a Wrapper has ended, and then posts to memory that must still exist.
    """

    def __init__(self) -> None:
        import ctypes  # Late: a spawner loads this module for each job, and few jobs use it.

        library = ctypes.PyDLL(None)  # called with the GIL held: all of these return at once
        self._semaphore = ctypes.create_string_buffer(SEMAPHORE_BYTES)
        self._address = ctypes.c_void_p(ctypes.addressof(self._semaphore))
        self._post = ctypes.cast(library.sem_post, ctypes.c_void_p)
        self._try_wait = library.sem_trywait
        self._add = ctypes.pythonapi.Py_AddPendingCall
        self._add.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._since_ns = 0
        library.sem_init(self._address, 0, 0)

    def look(self, now_ns: int) -> int:
        """Returns since when the main thread has executed nothing; 0 if it has since the last look."""
        if self._since_ns and self._try_wait(self._address) != 0:
            return self._since_ns
        # Without room for a pending call, there is nothing to wait for.
        self._since_ns = now_ns if self._add(self._post, self._address) == 0 else 0
        return 0


_mark: BytecodeProbe | None = None


def bytecode_probe() -> BytecodeProbe:
    global _mark
    if _mark is None:
        _mark = BytecodeProbe()
    return _mark
