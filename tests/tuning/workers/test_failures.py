from __future__ import annotations

import signal

import pytest
import torch
from triton.runtime.errors import OutOfResources, PTXASError

from tritune.errors import CompileError
from tritune.tuning.workers.failures import brief, failure_of, failure_of_compiler, failure_of_exit


@pytest.mark.parametrize(
    ("error", "reason", "tainted"),
    [
        (OutOfResources(1 << 18, 1 << 16, "shared memory"), "out_of_resources", False),
        (MemoryError(), "out_of_resources", True),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_resources", True),
        (PTXASError("ptxas died"), "compile_error", False),
        (CompileError("tt.histogram", "it is not known"), "compile_error", False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crash", True),
        (ValueError("not so"), "crash", False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exceptions_have_a_reason_in_the_stores_words(error, reason, tainted):
    failure = failure_of(error)
    assert (failure.reason, failure.tainted) == (reason, tainted)
    assert failure.message


def test_whatever_compiling_raises_is_a_compile_error_but_for_lack_of_resources():
    assert failure_of_compiler(ValueError("not so")).reason == "compile_error"
    assert failure_of_compiler(MemoryError()).reason == "out_of_resources"


def test_a_real_lack_of_memory_in_torch_is_recognised():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    assert failure_of(raised.value).reason == "out_of_resources"


@pytest.mark.parametrize(
    ("status", "stderr", "reason", "message"),
    [
        (-signal.SIGABRT, "terminate called after throwing std::bad_alloc",
         "out_of_resources", "out of memory"),
        (-signal.SIGKILL, "", "out_of_resources", "killed by the system"),
        (-signal.SIGILL, "", "crash", "illegal instruction (SIGILL)"),
        (-signal.SIGFPE, 'Thread 0x1:\n  File "/a/b.py", line 3 in run\n', "crash", "b.py:3"),
        (7, "last words", "crash", "status 7\nlast words"),
    ],
)  # fmt: skip
def test_the_end_of_a_process_has_a_reason_too(status, stderr, reason, message):
    failure = failure_of_exit(status, stderr)
    assert failure.reason == reason
    assert message in failure.message


def test_a_long_message_keeps_its_beginning_and_its_end():
    lines = [f"line {number}" for number in range(100)]
    assert brief("\n\n".join(lines)).splitlines() == [*lines[:2], "…", *lines[-5:]]
    assert len(brief("x" * 10_000)) < 1100
