"""Launches: packing the arguments into slots, the call, and errors from its outcome.

The launcher of a kernel is a function generated for its signature, because a launch should cost
a few microseconds: no loop over the arguments, no look-up, no allocation that can be avoided.
"""

from __future__ import annotations

import ctypes
import operator
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tritune.cpu import features
from tritune.cpu.launch import arguments as packing
from tritune.cpu.launch import loader, threads
from tritune.errors import DamagedObjectError, DeviceAssertionError, LaunchError

_MOST_PROGRAMS = 2**31 - 1

# Status words of launches that are over, to be used again. Only clean ones come back.
_statuses: list[Any] = []
_Status = ctypes.c_int32 * 8

# The kernel that this thread is about to load: Triton makes its launcher first, then has it loaded.
_loading = threading.local()

# Loading takes milliseconds, compiling a damaged entry again takes seconds.
_LOADING_TIMEOUT_S = 120.0


class _Loading:
    """The source of a kernel, and its entry point once that is loaded."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.src = src
        self.metadata = metadata
        self.entry: Callable[..., None] | None = None
        self.over = threading.Event()

    def wait(self) -> Callable[..., None]:
        """Return the entry point, for a thread that came while another one was loading."""
        self.over.wait(_LOADING_TIMEOUT_S)
        if self.entry is None:
            raise LaunchError("the kernel could not be loaded by the thread that launched it first")
        return self.entry


def make_launcher(src: Any, metadata: Any) -> Callable[..., None]:
    """Return the launcher of one kernel: Triton's `launcher_cls(src, metadata)`."""
    loading = _loading.kernel = _Loading(src, metadata)
    slots = packing.slots(src.signature)
    # A kernel without parameters leaves a trailing comma, which Python accepts.
    parameters = "".join(f"a{i}, " for i in range(len(src.signature)))
    # A compiled kernel may be called without the constexprs at its end: they are in the code.
    types = list(src.signature.values())
    needed = max((i + 1 for i, type_ in enumerate(types) if type_ != "constexpr"), default=0)
    declared = "".join(f"a{i}{'' if i < needed else '=None'}, " for i in range(len(types)))
    pack = struct.Struct("<" + "".join(slot.code for slot in slots)).pack
    tensors = [slot.expression for slot in slots if slot.is_pointer]
    placed = " and ".join(f"{tensor}.is_cpu" for tensor in tensors) or "True"
    packed = ", ".join(slot.value() for slot in slots)
    lines = f"""
def launch(
    gx, gy, gz, stream, function, packed_metadata, launch_metadata, enter, leave, {declared}
):
    if enter is not None:
        enter(launch_metadata)
    try:
        args = pack({packed}) if {placed} else pack_slowly(({parameters}))
    except (AttributeError, TypeError, OverflowError, StructError):
        args = pack_slowly(({parameters}))
    try:
        status = statuses.pop()
    except IndexError:
        status = Status()
    if 0 < gx <= MOST and 0 < gy <= MOST and 0 < gz <= MOST and fork.thread is None:
        try:
            function(args, gx, gy, gz, count(), status)
        except (ArgumentError, TypeError):
            launch_slowly(function or loading.wait(), args, gx, gy, gz, status)
    else:
        launch_slowly(function or loading.wait(), args, gx, gy, gz, status)
    if leave is not None:
        leave(launch_metadata)
    if status[0]:
        fail(status)
    statuses.append(status)
"""
    prints = bool(getattr(metadata, "prints", False))
    asserts = getattr(metadata, "asserts", ())
    namespace: dict[str, Any] = {
        "pack": pack,
        "pack_slowly": lambda values: _pack_slowly(pack, slots, src, values),
        "StructError": struct.error,
        "ArgumentError": ctypes.ArgumentError,
        "statuses": _statuses,
        "Status": _Status,
        "MOST": _MOST_PROGRAMS,
        "count": threads.count,
        "fork": threads.fork,
        "loading": loading,
        "launch_slowly": _launch_slowly,
        "fail": lambda status: _fail(status, asserts),
        "bf16": packing.bf16,
    }
    exec(compile(lines, f"<launcher of {getattr(metadata, 'name', 'kernel')}>", "exec"), namespace)
    launch: Any = namespace["launch"]
    launch.prepared = prepared
    wrapped: Callable[..., None] = _flushing(launch) if prints else launch
    return wrapped


def prepared(
    compiled: Any, grid: tuple[int, int, int], arguments: Sequence[Any], tensors: int
) -> Callable[..., None] | None:
    """Return a launch with all arguments but the tensors' addresses, which it takes; or None.

    So many tensors are given, and they are the kernel's first arguments. Nobody is told of the
    launch: hooks are the caller's.
    """
    slots = packing.slots(compiled.src.signature)
    pointers = [slot.is_pointer for slot in slots]
    if pointers != sorted(pointers, reverse=True) or sum(pointers) != tensors:
        return None
    if any(not 0 < size <= _MOST_PROGRAMS for size in grid):
        return None
    function = compiled.function
    names = _argument_names(compiled.src, len(arguments))
    values = [packing.convert(slot, names[slot.argument], tuple(arguments)) for slot in slots]
    addresses = struct.Struct(f"<{tensors}Q").pack
    rest = struct.pack("<" + "".join(s.code for s in slots[tensors:]), *values[tensors:])
    asserts = getattr(compiled.metadata, "asserts", ())
    fork, count, statuses = threads.fork, threads.count, _statuses
    x, y, z = grid

    def launch(*tensors: int) -> None:
        try:
            status = statuses.pop()
        except IndexError:
            status = _Status()
        if fork.thread is None:
            function(addresses(*tensors) + rest, x, y, z, count(), status)
        else:
            _launch_slowly(function, addresses(*tensors) + rest, x, y, z, status)
        if status[0]:
            _fail(status, asserts)
        statuses.append(status)

    return launch


def load(name: str, sealed: bytes) -> loader.Loaded:
    """Load the object code of the kernel whose launcher this thread made last.

    A damaged entry of the cache is compiled again.
    """
    loading: _Loading = getattr(_loading, "kernel", None) or _Loading(None, None)
    _loading.kernel = None
    try:
        loaded = _load(name, sealed, loading.src, loading.metadata)
        loading.entry = loaded.entry
    finally:
        loading.over.set()
    return loaded


def _load(name: str, sealed: bytes, src: Any, metadata: Any) -> loader.Loaded:
    if metadata is not None:
        reason = features.why_not_here(metadata.target.arch)
        if reason is not None:
            raise LaunchError(f"kernel {name} cannot run here: {reason}")
    try:
        return loader.load(sealed)
    except DamagedObjectError as error:
        if src is None:
            raise LaunchError(f"kernel {name}: {error}; delete it and try again") from error
        warnings.warn(
            f"kernel {name}: {error} (entry {metadata.hash}); compiling it again",
            RuntimeWarning,
            stacklevel=2,
        )
        return loader.load(_compile_again(src, metadata))


def _compile_again(src: Any, metadata: Any) -> bytes:
    """Compile a kernel whose cache entry is damaged, and replace the entry."""
    import triton
    from triton import knobs

    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        # An IR source is compiled from its file; only a function's source can be passed as it is.
        kernel = triton.compile(
            getattr(src, "path", src), target=metadata.target, options=metadata._asdict()
        )
    code: bytes = kernel.asm["obj"]
    return code


def _launch_slowly(
    function: Callable[..., None], args: bytes, gx: Any, gy: Any, gz: Any, status: Any
) -> None:
    """Launch on the slow path: odd or empty grids, and launches of a forked child."""
    try:
        grid = [operator.index(size) for size in (gx, gy, gz)]
    except TypeError:
        raise LaunchError(f"the grid must be integers, not {(gx, gy, gz)}") from None
    if any(not 0 <= size <= _MOST_PROGRAMS for size in grid):
        raise LaunchError(
            f"a grid of {tuple(grid)} cannot be launched: "
            f"each size must be from 0 to {_MOST_PROGRAMS}"
        )
    if 0 in grid:
        return
    count = threads.count()
    if threads.fork.thread is None or count == 1:
        function(args, *grid, count, status)
    else:
        threads.run_in_child(function, args, *grid, count, status)


def _pack_slowly(
    pack: Callable[..., bytes], slots: Sequence[packing.Slot], src: Any, values: tuple[Any, ...]
) -> bytes:
    """Pack the arguments on the slow path: convert or name what is unusual or wrong."""
    names = _argument_names(src, len(values))
    return pack(*(packing.convert(slot, names[slot.argument], values) for slot in slots))


def _argument_names(src: Any, count: int) -> list[str]:
    function = getattr(src, "fn", None)
    return list(getattr(function, "arg_names", None) or [f"argument {i}" for i in range(count)])


def _fail(status: Any, asserts: Sequence[Sequence[str]]) -> None:
    _, site, x, y, z = status[:5]
    message, place = asserts[site] if 0 <= site < len(asserts) else ("", "")
    where = f"{place and f' at {place}'} in program ({x}, {y}, {z})"
    raise DeviceAssertionError(f"assertion failed{where}{message and f': {message}'}")


def _flushing(launch: Callable[..., None]) -> Callable[..., None]:
    """Wrap the launch of a kernel that prints, so that C's output and Python's stay in order."""
    libc = ctypes.CDLL(None)

    def flushing(*args: Any) -> None:
        sys.stdout.flush()
        try:
            launch(*args)
        finally:
            libc.fflush(None)

    return flushing
