"""What can a program see of how it was started? Tests run this as a script and as a module; it writes it all down."""

import inspect
import json
import os
import resource
import signal
import sys
from typing import Any

depth = len(inspect.stack())  # before anything else adds a frame


def stream(file: Any) -> dict[str, Any] | None:  # noqa: ANN401 - any stream a program may meet
    if file is None:
        return None
    return {
        "encoding": file.encoding,
        "errors": file.errors,
        "newlines": file.newlines,
        "line_buffering": file.line_buffering,
        "write_through": file.write_through,
        "isatty": file.isatty(),
        "mode": file.mode,
        "name": file.name,
        "fileno": file.fileno(),
        "buffer": type(file.buffer).__name__,
        "buffer_name": file.buffer.name if hasattr(file.buffer, "name") else None,
        "seekable": file.seekable(),
        "closefd": getattr(getattr(file.buffer, "raw", file.buffer), "closefd", None),
    }


def main_attributes() -> dict[str, Any]:
    main: Any = sys.modules["__main__"]
    shown: dict[str, Any] = {
        name: repr(getattr(main, name, "absent")) for name in ("__file__", "__name__", "__package__", "__doc__")
    }
    shown["__loader__"] = type(main.__loader__).__name__
    shown["__spec__"] = main.__spec__.name if main.__spec__ else None
    shown["__builtins__"] = type(main.__builtins__).__name__
    return shown


def read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


def open_fds() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    kinds = {name: target.split(":")[0] for name, target in found.items()}
    return {name: kind for name, kind in kinds.items() if not kind.startswith("/proc/")}


status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
report = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "executable": sys.executable,
    "path": sys.path,
    "meta_path": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
    "path_hooks": len(sys.path_hooks),
    "importer_cache": sorted(sys.path_importer_cache),
    "flags": repr(sys.flags),
    "warnoptions": sys.warnoptions,
    "xoptions": sys._xoptions,  # pyright: ignore[reportPrivateUsage]
    "excepthook": repr(sys.excepthook is sys.__excepthook__),
    "dont_write_bytecode": sys.dont_write_bytecode,
    "main": main_attributes(),
    "stack_depth": depth,
    "cmdline": read("/proc/self/cmdline"),
    "comm": read("/proc/self/comm"),
    "environ": dict(os.environ),
    "fds": open_fds(),
    "signal_mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": {int(each): repr(signal.getsignal(each)).split(" at ")[0] for each in signal.valid_signals()},
    "default_int_handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "kernel_signals": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")},
    "wakeup_fd": signal.set_wakeup_fd(-1),
    "umask": status["Umask"],
    "cwd": os.getcwd(),
    "threads": len(os.listdir("/proc/self/task")),
    "nice": os.nice(0),
    "rlimits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"},
    "oom_score_adj": read("/proc/self/oom_score_adj"),
    "session_leader": os.getsid(0) == os.getpid() and os.getpgid(0) == os.getpid(),
    "affinity": sorted(os.sched_getaffinity(0)),
    "streams": {name: stream(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")},
    "same_streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__],
    "modules": sorted(sys.modules),
    "sitecustomize_ran": sys.modules.get("sitecustomize") is not None,
}
with open(os.environ["PROBE_REPORT"], "w") as file:
    json.dump(report, file)
