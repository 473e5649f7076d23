"""The loader of object code, which checks cached objects before it links them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

from tritune.errors import DamagedObjectError, LaunchError

#: The symbol of the entry point (`entry.py` emits it).
ENTRY = "tritune_launch"

#: args, gx, gy, gz, threads, status. ctypes lets go of the interpreter lock during the call.
Entry = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_void_p,
)

_MAGIC = b"tritune\x01"
_HEADER_BYTES = len(_MAGIC) + 32

_names = itertools.count()
# Re-entrant, and taken around a fork, so that no child inherits it locked by a thread it lacks.
_lock = threading.RLock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def seal(code: bytes) -> bytes:
    """Return what the cache keeps of an object file: a magic number, its digest, and itself."""
    return _MAGIC + hashlib.sha256(code).digest() + code


def unseal(sealed: bytes) -> bytes:
    """Return the object file within; raise DamagedObjectError if a byte has changed."""
    code = sealed[_HEADER_BYTES:]
    if sealed[:_HEADER_BYTES] != _MAGIC + hashlib.sha256(code).digest():
        raise DamagedObjectError("the object code in Triton's cache is damaged")
    return code


@dataclass(eq=False)
class Loaded:
    """Object code in memory. It stays there as long as this object or its entry does."""

    entry: Any


def load(sealed: bytes) -> Loaded:
    """Link a sealed object file into this process."""
    code = unseal(sealed)
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(code)
    builder.add_current_process()
    parallel = _gomp_parallel()
    if parallel is None:
        builder.add_jit_library(_serial_library())
    else:
        builder.import_symbol("GOMP_parallel", parallel)
    builder.export_symbol(ENTRY)
    with _lock:
        try:
            tracker = builder.link(_jit(), f"kernel{next(_names)}")
        except RuntimeError as error:
            raise LaunchError(f"the kernel's object code cannot be linked: {error}") from error
    entry: Any = Entry(tracker[ENTRY])
    # The entry keeps the code: of two threads that load one kernel at once, one finds its module
    # replaced while it runs.
    entry.tracker = tracker
    return Loaded(entry)


def unload(loaded: Loaded) -> None:
    """Let go of object code; it leaves memory when no launch uses it any more."""
    loaded.entry = None


@functools.cache
def _jit() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if sys.platform == "linux":
        # Kernels may call the maths library, which need not be visible process-wide yet.
        ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    return llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)


@functools.cache
def _gomp_parallel() -> int | None:
    """Return the address of GOMP_parallel in the OpenMP library that torch itself runs on."""
    import torch

    try:
        # A look-up in libtorch_cpu searches what it was linked with, in that order.
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib/libtorch_cpu.so"))
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


@functools.cache
def _serial_library() -> str:
    """Define a GOMP_parallel for one thread, where torch has no GNU-compatible OpenMP."""
    import llvmlite.binding as llvm

    llvm.initialize_native_asmparser()
    builder = llvm.JITLibraryBuilder()
    builder.add_ir(
        "define void @GOMP_parallel(ptr %worker, ptr %data, i32 %threads, i32 %flags) {\n"
        "  call void %worker(ptr %data)\n"
        "  ret void\n"
        "}\n"
    )
    builder.export_symbol("GOMP_parallel")
    # The tracker keeps the library in memory; it is wanted for the life of the process.
    _kept.append(builder.link(_jit(), "serial"))
    return "serial"


_kept: list[Any] = []
