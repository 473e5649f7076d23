"""The state of one function's lowering: where code goes and where every value is held."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.features import Cpu
from tritune.cpu.lower.analysis.usage import Usage
from tritune.cpu.lower.llvm import I64, PTR, Emitter, declare, i64, memory_bytes, memory_type

if TYPE_CHECKING:
    from tritune.cpu.lower.emit.effects import Assertion
    from tritune.cpu.lower.emit.prefetch import LoopInfo

#: Stack memory for a program's tiles; those beyond it lie on the heap.
STACK_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Buffer:
    """A dense tensor in memory, with its dimensions in any order."""

    memory: ll.Value
    elem: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_row_major(self) -> bool:
        dims = zip(self.shape, self.strides, row_major(self.shape), strict=True)
        return all(n == 1 or stride == dense for n, stride, dense in dims)


@dataclass(frozen=True)
class Index:
    """A position along one dimension; `lane` if the lanes of the vector run along it."""

    at: ll.Value
    lane: bool = False


Point = tuple[Index, ...]

ZERO = Index(i64(0))


def row_major(shape: tuple[int, ...], fastest: int | None = None) -> tuple[int, ...]:
    """Return the strides of a dense tensor; dimension `fastest` is contiguous, else the last."""
    order = [d for d in range(len(shape)) if d != fastest]
    if fastest is not None:
        order.append(fastest)
    strides, stride = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = stride
        stride *= shape[d]
    return tuple(strides)


@dataclass(eq=False)
class Program:
    """One program of the grid: its place, and where it reports a failed assertion."""

    ids: tuple[ll.Value, ll.Value, ll.Value]
    counts: tuple[ll.Value, ll.Value, ll.Value]
    status: ll.Value


@dataclass(eq=False)
class Kernel:
    """The state that the functions of one module share."""

    module: ll.Module
    options: Any
    cpu: Cpu
    metadata: dict[str, Any]
    functions: dict[str, ll.Function] = field(default_factory=dict)
    #: Functions that may stop at a failed assertion.
    asserting: set[str] = field(default_factory=set)
    #: Whether there are nontemporal stores.
    uses_nontemporal: bool = False

    @property
    def vector_bits(self) -> int:
        """Return the bits of the vectors in generated code, which may be wider than registers."""
        return int(self.options.vector_bits or self.cpu.vector_bits)

    @property
    def many_registers(self) -> bool:
        """Return whether there are 32 vector registers, not 16."""
        return self.cpu.vector_bits >= 512 or "aarch64" in self.cpu.triple

    @property
    def multiplies_bf16(self) -> bool:
        """Return whether an instruction multiplies pairs of bf16 in vectors of this width."""
        return self.cpu.multiplies_bf16 and self.vector_bits <= self.cpu.vector_bits


class Context:
    """The state of one function's lowering."""

    def __init__(self, kernel: Kernel, e: Emitter, usage: Usage, program: Program) -> None:
        self.kernel = kernel
        self.e = e
        self.usage = usage
        self.program = program
        self._scopes: list[dict[ir.Value, ll.Value | Buffer]] = [{}]
        #: Lazy loads that were passed in program order and have not been evaluated yet.
        self._pending: list[list[ir.Value]] = [[]]
        #: The dimension of a tensor that should be contiguous in a buffer.
        self.layout: dict[ir.Value, int] = {}
        #: The buffer of the loop variable that a tensor becomes.
        self.destination: dict[ir.Value, Buffer] = {}
        #: Whether this is the conservative version of a nest; nests inside assume nothing either.
        self.conservative = False
        #: The innermost loop around the code.
        self.loop: LoopInfo | None = None
        #: The assertions in the combine function of the current reduction or scan.
        self.assertions: dict[ir.Op, Assertion] = {}
        self.buffer_bytes = 0
        self.heap_buffers: list[ll.Value] = []
        self.returns: list[ll.Instruction] = []
        self._dummy: ll.Value | None = None

    @property
    def b(self) -> ll.IRBuilder:
        return self.e.b

    def lanes(self, elem_bits: int = 32) -> int:
        """Return the number of lanes in a vector; narrow elements have lanes of 32 bits."""
        return max(1, self.kernel.vector_bits // max(32, elem_bits))

    @staticmethod
    def lane_bits(kind: ir.Type) -> int:
        """Return the bits of an element that decide how many lanes a nest has."""
        return kind.bits if kind.is_float else 32

    def get(self, value: ir.Value) -> ll.Value | Buffer | None:
        for scope in reversed(self._scopes):
            found = scope.get(value)
            if found is not None:
                return found
        return None

    def scalar(self, value: ir.Value) -> ll.Value:
        found = self.get(value)
        assert found is not None and not isinstance(found, Buffer), f"{value} has not been computed"
        return found

    def set(self, value: ir.Value, held: ll.Value | Buffer) -> None:
        self._scopes[-1][value] = held

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget at the end what was computed inside: it need not dominate the code after."""
        self._scopes.append({})
        self._pending.append([])
        try:
            yield
        finally:
            self._scopes.pop()
            self._pending.pop()

    def note_load(self, value: ir.Value) -> None:
        self._pending[-1].append(value)

    def pending_loads(self) -> list[ir.Value]:
        return [v for loads in self._pending for v in loads if self.get(v) is None]

    def new_buffer(self, elem: str, shape: tuple[int, ...], fastest: int | None = None) -> Buffer:
        count = math.prod(shape)
        size = count * memory_bytes(elem)
        self.buffer_bytes += size
        if self.buffer_bytes <= STACK_LIMIT_BYTES:
            memory = self.e.slot(memory_type(elem), count, align=64, name="tile")
        else:
            memory = self._heap(size)
        return Buffer(memory, elem, shape, row_major(shape, fastest))

    def buffer_of(self, value: ir.Value, fastest: int | None = None) -> Buffer:
        """Return a new buffer for a tensor; a scalar gets one of one element."""
        return self.new_buffer(value.type.elem, value.type.shape or (1,), fastest)

    def _heap(self, size: int) -> ll.Value:
        slots = self.e.slots
        slots.position_before(self.e.entry_branch)
        allocate = declare(self.e.module, "aligned_alloc", ll.FunctionType(PTR, [I64, I64]))
        memory = slots.call(allocate, [i64(64), i64((size + 63) // 64 * 64)], name="tile")
        self.heap_buffers.append(memory)
        return memory

    def emit_return(self, value: ll.Value | None = None) -> None:
        """Return from the function; `release_heap` inserts code before every return."""
        self.returns.append(self.b.ret_void() if value is None else self.b.ret(value))

    def release_heap(self) -> None:
        """Free the tiles on the heap before every return, once all of both are known."""
        if not self.heap_buffers:
            return
        free = declare(self.e.module, "free", ll.FunctionType(ll.VoidType(), [PTR]))
        for instruction in self.returns:
            builder = ll.IRBuilder(instruction.parent)
            builder.position_before(instruction)
            for memory in self.heap_buffers:
                builder.call(free, [memory])

    def dummy(self) -> ll.Value:
        """Return the address of memory that masked-off lanes access instead of theirs."""
        if self._dummy is None:
            slot = self.e.slot(I64, 64, align=64, name="masked.off")
            self.e.slots.position_before(self.e.entry_branch)
            self._dummy = self.e.slots.ptrtoint(slot, I64)
        return self._dummy
