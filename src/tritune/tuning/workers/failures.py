"""Failure reasons, in the store's words: from an exception, or from how a process ended.

`worker.py` kills a worker that overruns its time limit, and reports the timeout.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import PurePath

from tritune.errors import CompileError

_MOST_LINES = 8
_MOST_CHARACTERS = 1000

#: What allocators say, in exceptions and before they abort.
_NO_MEMORY = re.compile(
    r"bad_alloc|can't allocate memory|cannot allocate memory|out of memory|MemoryError"
    r"|failed to allocate",
    re.IGNORECASE,
)
#: After these a GPU refuses everything else that the process asks of it.
_DEVICE_LOST = re.compile(r"(CUDA|HIP) error|device-side assert|illegal memory access")
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGABRT: "abort",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed by the system",
}


@dataclass(frozen=True)
class Failure:
    """A reason, one of `tritune.store.records.FAILURES`, and a text for people."""

    reason: str
    message: str
    #: The process can no longer be trusted: memory is gone, overwritten, or the device is lost.
    tainted: bool = False


def failure_of(error: Exception) -> Failure:
    """Classify an exception from compiling or running a config."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    message = brief(str(error))
    if isinstance(error, OutOfResources):
        return Failure("out_of_resources", message)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(f"{type(error).__name__}: {error}"):
        return Failure("out_of_resources", brief(f"out of memory: {error}"), tainted=True)
    if isinstance(error, (CompilationError, CompileError, PTXASError)):
        return Failure("compile_error", message)
    lost = bool(_DEVICE_LOST.search(str(error)))
    return Failure("crash", f"{type(error).__name__}: {message}", tainted=lost)


def failure_of_compiler(error: Exception) -> Failure:
    """Classify an exception while nothing but compiling was going on."""
    failure = failure_of(error)
    if failure.reason == "crash":
        return Failure("compile_error", failure.message)
    return failure


def failure_of_exit(status: int, stderr: str) -> Failure:
    """Classify the end of a process, by its exit status and the last it wrote to stderr."""
    if _NO_MEMORY.search(stderr):
        return Failure("out_of_resources", brief(f"out of memory\n{stderr}"))
    if status == -signal.SIGKILL:
        # Not the parent's doing, so the kernel's: it kills whoever uses too much.
        return Failure("out_of_resources", "killed by the system, probably for lack of memory")
    if status >= 0:
        return Failure("crash", brief(f"the process ended with status {status}\n{stderr}"))
    what = _SIGNALS.get(signal.Signals(-status), "ended") + f" ({signal.Signals(-status).name})"
    places = re.findall(r'^  File "(.+)", line (\d+) in (\S+)', stderr, re.MULTILINE)
    if places:
        trail = ", called by ".join(
            f"{name} ({PurePath(file).name}:{line})" for file, line, name in places[:3]
        )
        return Failure("crash", f"{what} in {trail}")
    return Failure("crash", brief(f"{what}\n{stderr}"))


def brief(text: str) -> str:
    """Return the lines of a long message that tell the most: its beginning and its end."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:2], "…", *lines[3 - _MOST_LINES :]]
    joined = "\n".join(lines)
    if len(joined) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        joined = f"{joined[:half]} … {joined[-half:]}"
    return joined
