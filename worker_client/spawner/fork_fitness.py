"""After the preload: may this process be forked, or would a worker notice?"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from . import child_state

# Threads that a library restarts, or does without, in a forked process: jemalloc's own handlers of a fork switch its
# thread off there, and it then returns memory when it is asked for some (pyarrow brings it).
_HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})


def objection(new_modules: set[str], script_folder: str, folders: Sequence[str] = ()) -> str:
    """Returns why workers must be executed; "" if they may be forked. Forks once, to check the threads.

    `folders`: further folders that the script puts before the installed modules.
    """
    hidden = shadowed(new_modules, script_folder, "beside the script")
    for folder in folders:
        hidden = hidden or shadowed(new_modules, folder, f"in {folder}")
    return hidden or cuda_context() or foreign_thread()


def shadowed(new_modules: set[str], folder: str, where: str = "beside the script") -> str:
    """Returns a file in `folder` that the script would import if no preloaded module had its name."""
    if not folder:
        return ""
    try:
        present = set(os.listdir(folder))
    except OSError:
        return ""
    suffixes = importlib.machinery.all_suffixes()
    for name in sorted({each.partition(".")[0] for each in new_modules}):
        for suffix in suffixes:
            if f"{name}{suffix}" in present:
                return f"{name}{suffix} {where} would be hidden by the preloaded module {name}"
        if name in present and any(
            os.path.exists(os.path.join(folder, name, f"__init__{suffix}")) for suffix in suffixes
        ):
            return f"the package {name} {where} would be hidden by the preloaded one"
    return ""


def cuda_context() -> str:
    """Returns an open NVIDIA device: a CUDA context does not survive a fork. Never calls CUDA itself."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("/dev/nvidia"):
                return f"a preloaded module opened {target}, and a CUDA context cannot be shared by a fork"
    return ""


def foreign_thread() -> str:
    """Returns a thread that a fork would silently lose.

    OpenBLAS ends its pool at a fork and restarts it when needed, so one fork distinguishes its threads from others.
    """
    if len(os.listdir("/proc/self/task")) == 1:
        return ""
    pid = child_state.fork_quietly()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid() and _comm(int(task)) not in _HARMLESS_THREADS:
            return f"a preloaded module runs the thread {_thread_name(int(task))}, which a fork would lose"
    return ""


def _thread_name(task: int) -> str:
    threading = sys.modules.get("threading")
    if threading is not None:
        for thread in threading.enumerate():
            if thread.native_id == task:
                return repr(thread.name)
    name = _comm(task)
    return f"{name!r} (id {task})" if name else str(task)


def _comm(task: int) -> str:
    with suppress(OSError), open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""
