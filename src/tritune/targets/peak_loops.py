"""Generate the loops that measure a CPU's peaks: multiply in registers, read memory, copy it.

A library's matrix product may be written for other CPUs, so it does not show a CPU's peak. Each
function returns the text of an LLVM module with one program, to be run as a grid on all threads.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll

from tritune.cpu import codegen
from tritune.cpu.features import Cpu
from tritune.cpu.launch import loader
from tritune.cpu.launch.entry import emit_launch
from tritune.cpu.lower.llvm import FLOAT, HALF, I8, I32, I64, PTR, declare, i64

_VOID = ll.VoidType()

#: Bytes of a cache line, and of the widest vector.
LINE = 64
#: Independent accumulators: enough to hide the latency of an instruction, and few enough for 32 or
#: 16 registers.
_SUMS, _SUMS_OF_16_REGISTERS = 24, 12
#: Vectors in the data of `multiplying`: both factors, and the first values of the accumulators.
OPERANDS = 2 + _SUMS


class _BFloat(ll.Type):
    """LLVM's bf16, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"


@dataclass(frozen=True)
class MultiplyAdd:
    """An instruction that multiplies vectors and accumulates the products."""

    #: LLVM's intrinsic; None for a multiplication and an addition.
    intrinsic: str | None
    #: The types of the accumulator and of both factors.
    total: Any
    factor: Any
    #: Multiplications and additions of one instruction.
    flops: int

    def emit(self, b: Any, x: Any, y: Any, total: Any) -> Any:
        if self.intrinsic is None:
            # The product of the factors alone would be computed once, before the loop.
            return b.fadd(b.fmul(total, x), y)
        args = [x, y, total] if self.intrinsic.startswith("llvm.fma") else [total, x, y]
        return _call(b, self.intrinsic, self.total, args)


def multiply_adds(cpu: Cpu) -> Mapping[str, MultiplyAdd]:
    """Return the instruction with the most operations for each dtype that has one."""
    lanes, on_arm = cpu.vector_bits // 32, cpu.arch == "aarch64"
    wide, halves = ll.VectorType(FLOAT, lanes), ll.VectorType(HALF, 2 * lanes)
    pairs = ll.VectorType(_BFloat(), 2 * lanes)
    # Without an instruction for it, LLVM would call C's `fmaf` for every element.
    fma = f"llvm.fma.v{lanes}f32" if on_arm or cpu.has("fma") else None
    found = {"float32": MultiplyAdd(fma, wide, wide, 2 * lanes)}
    if cpu.multiplies_bf16:
        dot = f"llvm.x86.avx512bf16.dpbf16ps.{cpu.vector_bits}"
        found["bfloat16"] = MultiplyAdd(dot, wide, pairs, 4 * lanes)
    elif on_arm and cpu.has("bf16"):
        # The product of a 2 x 4 and a 4 x 2 matrix.
        found["bfloat16"] = MultiplyAdd("llvm.aarch64.neon.bfmmla", wide, pairs, 32)
    if cpu.has("avx512fp16") or (on_arm and cpu.has("fullfp16")):
        found["float16"] = MultiplyAdd(f"llvm.fma.v{2 * lanes}f16", halves, halves, 4 * lanes)
    return found


def sums(cpu: Cpu) -> int:
    """Return how many instructions one iteration of `multiplying` has."""
    return _SUMS if cpu.arch == "aarch64" or cpu.vector_bits == 512 else _SUMS_OF_16_REGISTERS


def multiplying(cpu: Cpu, instruction: MultiplyAdd) -> str:
    """Return a program that runs one instruction on registers.

    Arguments: the address of the OPERANDS to begin with, a cache line for each; a cache line to
    write to; the number of iterations.
    """
    b, (operands, result), (iterations,) = _program(pointers=2, numbers=1)
    vectors = [
        b.load(_at(b, operands, i * LINE), typ=kind, align=LINE)
        for i, kind in enumerate([instruction.factor] * 2 + [instruction.total] * sums(cpu))
    ]
    loop = _Loop(b, iterations)
    totals = loop.carried(vectors[2:])
    following = [instruction.emit(b, vectors[0], vectors[1], total) for total in totals]
    loop.end(totals, following)
    b.store(functools.reduce(b.fadd, following), result, align=LINE)
    b.ret_void()
    return str(b.module)


def reading(cpu: Cpu, streams: int, ahead: int) -> str:
    """Return a program that reads a piece of a buffer, a line of each of `streams` parts in turn.

    Arguments: the buffer, a cache line to write to, bytes of the piece of each program, cache lines
    of a part. Lines are prefetched `ahead` bytes before they are read, unless that is 0.
    """
    b, (buffer, result), (piece, lines) = _program(pointers=2, numbers=2)
    kind, per_line = _words(cpu)
    begin = _offset(b, buffer, b.mul(_program_number(b), piece))
    length = b.mul(lines, i64(LINE))
    loop = _Loop(b, lines)
    totals = loop.carried([ll.Constant(kind, [0] * kind.count)] * (streams * per_line))
    line = _offset(b, begin, b.mul(loop.index, i64(LINE)))
    following = []
    for stream in range(streams):
        at = _offset(b, line, b.mul(length, i64(stream)))
        if ahead:
            _call(b, "llvm.prefetch.p0", _VOID, [_at(b, at, ahead), I32(0), I32(3), I32(1)])
        for part, total in enumerate(totals[stream * per_line : (stream + 1) * per_line]):
            address = _at(b, at, part * LINE // per_line)
            following.append(b.add(total, b.load(address, typ=kind, align=LINE // per_line)))
    loop.end(totals, following)
    b.store(functools.reduce(b.add, following), result, align=LINE)
    b.ret_void()
    return str(b.module)


def copying(cpu: Cpu) -> str:
    """Return a program that copies a piece of a buffer with nontemporal stores.

    Arguments: the buffer, where to write it, bytes of the piece of each program, its cache lines.
    """
    b, (buffer, target), (piece, lines) = _program(pointers=2, numbers=2)
    kind, per_line = _words(cpu)
    own = b.mul(_program_number(b), piece)
    loop = _Loop(b, lines)
    at = b.add(own, b.mul(loop.index, i64(LINE)))
    for part in range(per_line):
        offset, align = part * LINE // per_line, LINE // per_line
        value = b.load(_at(b, _offset(b, buffer, at), offset), typ=kind, align=align)
        stored = b.store(value, _at(b, _offset(b, target, at), offset), align=align)
        stored.set_metadata("nontemporal", b.module.add_metadata([I32(1)]))
    loop.end([], [])
    b.ret_void()
    return str(b.module)


@functools.cache
def entry_of(text: str, cpu: Cpu) -> Any:
    """Compile a module and return its entry point, which takes args, x, y, z, threads, status."""
    llir = codegen.optimise(text, cpu)
    code = codegen.object_code(llir, codegen.assembly(llir, cpu), cpu)
    return loader.load(loader.seal(code)).entry


def _program(pointers: int, numbers: int) -> tuple[Any, list[Any], list[Any]]:
    """Return a builder at the start of a new program, and the program's arguments."""
    module = ll.Module("peak")
    program = ll.Function(module, ll.FunctionType(_VOID, [PTR, *[I32] * 6, PTR]), "program")
    program.attributes.add("nounwind")
    emit_launch(module, program, nontemporal=True)
    b = ll.IRBuilder(program.append_basic_block("entry"))
    kinds = [PTR] * pointers + [I64] * numbers
    args = [b.load(_at(b, program.args[0], 8 * i), typ=kind) for i, kind in enumerate(kinds)]
    return b, args[:pointers], args[pointers:]


def _program_number(b: Any) -> Any:
    return b.zext(b.function.args[1], I64)


class _Loop:
    """A loop with at least one iteration; the builder is in its body until `end`."""

    def __init__(self, b: Any, count: Any) -> None:
        self._b, self._count, self._before = b, count, b.block
        self._body = b.append_basic_block("loop")
        b.branch(self._body)
        b.position_at_end(self._body)
        (self.index,) = self.carried([i64(0)])

    def carried(self, initial: Sequence[Any]) -> list[Any]:
        """Return loop-carried variables. Called before anything else is in the body."""
        variables = [self._b.phi(value.type) for value in initial]
        for variable, value in zip(variables, initial, strict=True):
            variable.add_incoming(value, self._before)
        return variables

    def end(self, variables: Sequence[Any], following: Sequence[Any]) -> None:
        """Close the loop with the values of the next iteration."""
        b = self._b
        index = b.add(self.index, i64(1))
        for variable, value in zip([self.index, *variables], [index, *following], strict=True):
            variable.add_incoming(value, self._body)
        after = b.append_basic_block("end")
        b.cbranch(b.icmp_unsigned("<", index, self._count), self._body, after)
        b.position_at_end(after)


def _words(cpu: Cpu) -> tuple[Any, int]:
    """Return the widest vector of integers, and how many of them fill a cache line."""
    return ll.VectorType(I32, cpu.vector_bits // 32), 8 * LINE // cpu.vector_bits


def _offset(b: Any, pointer: Any, offset: Any) -> Any:
    return b.gep(pointer, [offset], source_etype=I8)


def _at(b: Any, pointer: Any, offset: int) -> Any:
    return _offset(b, pointer, i64(offset))


def _call(b: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    kind = ll.FunctionType(result, [arg.type for arg in args])
    return b.call(declare(b.module, name, kind), args)
