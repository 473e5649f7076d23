"""Probes of a device's peak rates: generated loops on a CPU, torch's functions on a GPU."""

from __future__ import annotations

import functools
import itertools
import math
import mmap
import struct
import time
from collections.abc import Callable
from ctypes import c_int32
from dataclasses import dataclass
from typing import Any

import torch

from tritune.targets.device import detect

#: Kinds of probes; the others are dtypes.
READ, COPY = "read", "copy"
#: The dtype that holds every value of the narrow ones.
WIDE, NARROW = "float32", ("bfloat16", "float16")

#: Rows and columns of a library's product.
_PRODUCT_SIZES = {"cpu": 1024, "cuda": 8192}
#: LLVM's names of matrix units of CPUs, by dtype. They are measured with torch's product.
_MATRIX_UNITS = {"bfloat16": "amx-bf16", "float16": "amx-fp16"}
#: Iterations of a loop in registers: about half a millisecond.
_ITERATIONS = 2**15
#: Programs per thread, so that none waits long for the last one.
_PROGRAMS = 4
#: Ways to read memory: streams per thread, and the prefetch distance in bytes.
_READS = ((1, 0), (2, 2048))
#: Parts of the buffer that are read or copied one after the other, in a call each; all of them are
#: several times the caches, so that each part is in memory when its turn comes.
_PARTS = 4
_LEAST_PART = 2**24
#: The buffer has at most this fraction of the memory.
_MEMORY_SHARE = 16


@dataclass(frozen=True)
class Probe:
    """A function whose calls do one thing only."""

    call: Callable[[], Any]
    #: Operations or bytes of a call.
    units: float

    def rate(self, device: torch.device, calls: int = 3) -> float:
        """Return the units per second of the shortest call."""
        best = math.inf
        for _ in range(calls):
            _wait_for(device)
            start = time.perf_counter()
            self.call()
            _wait_for(device)
            best = min(best, time.perf_counter() - start)
        return self.units / best


def probes(kind: str, device: torch.device) -> list[Probe]:
    """Return the candidates for the fastest way to multiply in a dtype, to READ or to COPY.

    None for a dtype without instructions of its own, whose numbers are converted to WIDE.
    """
    if kind in (READ, COPY):
        return _memory(kind, device)
    if device.type != "cpu" or _has_matrix_unit(kind):
        return [_product(kind, device)]
    return _in_registers(kind)


def _in_registers(dtype: str) -> list[Probe]:
    from tritune.cpu import features
    from tritune.targets import peak_loops

    cpu = features.host()
    instruction = peak_loops.multiply_adds(cpu).get(dtype)
    if instruction is None:
        return []
    entry = peak_loops.entry_of(peak_loops.multiplying(cpu, instruction), cpu)
    sums = dtype if instruction.total == instruction.factor else WIDE
    operands = torch.cat((_lines(2, dtype), _lines(peak_loops.OPERANDS - 2, sums)))
    result = torch.zeros_like(operands[0])
    arguments = struct.pack("<QQq", operands.data_ptr(), result.data_ptr(), _ITERATIONS)
    units = _programs() * _ITERATIONS * peak_loops.sums(cpu) * instruction.flops
    return [Probe(_launching(entry, [arguments], (operands, result)), units)]


def _lines(count: int, dtype: str) -> torch.Tensor:
    """Return cache lines of small numbers. Sums of their products stay finite, and none is
    denormal.
    """
    from tritune.targets import peak_loops

    kind: torch.dtype = getattr(torch, dtype)
    return torch.full((count, peak_loops.LINE // kind.itemsize), 2.0**-7, dtype=kind).view(
        torch.uint8
    )


def _launching(entry: Any, arguments: list[bytes], kept: Any) -> Callable[[], None]:
    """Return a launch on all threads, with each of the arguments in turn. `kept` is kept alive."""
    from tritune.cpu.launch import threads

    turns = itertools.cycle(arguments)
    status, programs = (c_int32 * 8)(), _programs()

    def call(kept: Any = kept) -> None:
        entry(next(turns), programs, 1, 1, threads.count(), status)

    return call


def _programs() -> int:
    from tritune.cpu.launch import threads

    return _PROGRAMS * threads.count()


def _has_matrix_unit(dtype: str) -> bool:
    from tritune.cpu import features

    return dtype in _MATRIX_UNITS and features.host().has(_MATRIX_UNITS[dtype])


def _product(dtype: str, device: torch.device) -> Probe:
    size = _PRODUCT_SIZES[device.type]
    square = torch.ones((size, size), device=device, dtype=getattr(torch, dtype))
    return Probe(functools.partial(torch.matmul, square, square), 2.0 * size**3)


def cache_bytes(device: torch.device) -> int:
    """Return the bytes of all last-level caches of a device."""
    if device.type == "cpu":
        from tritune.cpu.launch.runtime import last_level_cache_bytes

        return last_level_cache_bytes()
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _memory(kind: str, device: torch.device) -> list[Probe]:
    part = max(cache_bytes(device), _LEAST_PART)
    memory = detect(device).memory_bytes
    if memory:
        part = min(part, memory // (_MEMORY_SHARE * _PARTS))
    if device.type == "cpu":
        return _cpu_memory(kind, part)
    buffer = torch.ones(_PARTS * part // torch.float32.itemsize, device=device)
    if kind == READ:
        return [Probe(buffer.sum, buffer.nbytes)]
    source, target = buffer.chunk(2)
    return [Probe(functools.partial(target.copy_, source), buffer.nbytes)]


def _cpu_memory(kind: str, part: int) -> list[Probe]:
    from tritune.cpu import features
    from tritune.targets import peak_loops

    cpu, programs = features.host(), _programs()
    # Whole lines for each stream of each program.
    streams = max(streams for streams, _ in _READS)
    part -= part % (programs * streams * peak_loops.LINE)
    buffer = _in_huge_pages(_PARTS * part).fill_(1)
    places = [buffer.data_ptr() + i * part for i in range(_PARTS)]
    piece, half = part // programs, _PARTS // 2
    lines = piece // peak_loops.LINE
    if kind == COPY:
        entry = peak_loops.entry_of(peak_loops.copying(cpu), cpu)
        ways = zip(places[:half], places[half:], strict=True)
        arguments = [struct.pack("<QQqq", *way, piece, lines) for way in ways]
        return [Probe(_launching(entry, arguments, buffer), 2 * part)]
    found, line = [], torch.zeros(peak_loops.LINE, dtype=torch.uint8)
    for streams, ahead in _READS:
        entry = peak_loops.entry_of(peak_loops.reading(cpu, streams, ahead), cpu)
        fixed = line.data_ptr(), piece, lines // streams
        arguments = [struct.pack("<QQqq", place, *fixed) for place in places]
        found.append(Probe(_launching(entry, arguments, (buffer, line)), part))
    return found


def _in_huge_pages(size: int) -> torch.Tensor:
    """Allocate memory in huge pages if the system has them, for fewer TLB misses."""
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
