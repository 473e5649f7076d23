"""The state of one function's lowering: where code goes, what every value is held in, and what
scope that is true in.
"""

from __future__ import annotations

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

#: Stack memory a program may take for its tiles; larger kernels get theirs from the heap.
STACK_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor in stack memory, dense, with its dimensions in any order."""

    memory: ll.Value
    elem: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def viewed(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Buffer:
        return Buffer(self.memory, self.elem, shape, strides)


@dataclass(frozen=True)
class Index:
    """A position along one dimension; `lane` if the lanes of the vector run along it."""

    at: ll.Value
    lane: bool = False


Point = tuple[Index, ...]

ZERO = Index(i64(0))


def row_major(shape: tuple[int, ...], fastest: int | None = None) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimension `fastest` (the last, by default) is contiguous."""
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
    """The values every function of a kernel can ask for: its place in the grid, and where to report
    a failure.
    """

    ids: tuple[ll.Value, ll.Value, ll.Value]
    counts: tuple[ll.Value, ll.Value, ll.Value]
    status: ll.Value

    @property
    def as_args(self) -> list[ll.Value]:
        return [*self.ids, *self.counts, self.status]


@dataclass(eq=False)
class Kernel:
    """What the functions of one module share."""

    module: ll.Module
    options: Any
    cpu: Cpu
    metadata: dict[str, Any]
    functions: dict[str, ll.Function] = field(default_factory=dict)
    #: Names of functions that may stop at a failed assertion.
    asserting: set[str] = field(default_factory=set)
    #: Whether anything is stored past the caches.
    uses_nontemporal: bool = False

    @property
    def vector_bits(self) -> int:
        """Bits of the vectors that code is written in; they may be more than a register has."""
        return int(self.options.vector_bits or self.cpu.vector_bits)

    @property
    def many_registers(self) -> bool:
        """Whether there are 32 vector registers, not 16."""
        return self.cpu.vector_bits >= 512 or "aarch64" in self.cpu.triple

    @property
    def multiplies_bf16(self) -> bool:
        """Whether bf16 is multiplied two at a time, by an instruction for vectors of a register."""
        return self.cpu.multiplies_bf16 and self.vector_bits <= self.cpu.vector_bits


class Context:
    def __init__(self, kernel: Kernel, e: Emitter, usage: Usage, program: Program) -> None:
        self.kernel = kernel
        self.e = e
        self.usage = usage
        self.program = program
        self._scopes: list[dict[ir.Value, ll.Value | Buffer]] = [{}]
        #: Lazy loads that have been passed in program order but not been read yet.
        self._pending: list[list[ir.Value]] = [[]]
        #: Which dimension of a tensor should be contiguous if it is put into a buffer.
        self.layout: dict[ir.Value, int] = {}
        #: Where a tensor is to be put when it is computed: the buffer of the loop variable it
        #: becomes.
        self.destination: dict[ir.Value, Buffer] = {}
        #: Inside the version of a nest that assumes nothing, further nests assume nothing either.
        self.conservative = False
        #: The innermost loop around the code that is being written.
        self.loop: LoopInfo | None = None
        #: What the combine function of the reduction or scan that is being written asserts.
        self.assertions: dict[ir.Op, Assertion] = {}
        self.buffer_bytes = 0
        self.heap_buffers: list[ll.Value] = []
        self.returns: list[ll.Instruction] = []
        self._dummy: ll.Value | None = None

    @property
    def b(self) -> ll.IRBuilder:
        return self.e.b

    @property
    def lanes32(self) -> int:
        """Lanes of 32 bits in a vector register."""
        return self.kernel.vector_bits // 32

    def lanes(self, elem_bits: int = 32) -> int:
        return max(1, self.lanes32 * 32 // max(32, elem_bits))

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
        """What is put into buffers inside is known inside only: the code after may be reached
        another way.
        """
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
        strides = row_major(shape, fastest)
        count = 1
        for n in shape:
            count *= n
        size = count * memory_bytes(elem)
        self.buffer_bytes += size
        if self.buffer_bytes <= STACK_LIMIT_BYTES:
            memory = self.e.slot(memory_type(elem), count, align=64, name="tile")
        else:
            memory = self._heap(size)
        return Buffer(memory, elem, shape, strides)

    def _heap(self, size: int) -> ll.Value:
        slots = self.e.slots
        slots.position_before(self.e.entry_branch)
        allocate = declare(self.e.module, "aligned_alloc", ll.FunctionType(PTR, [I64, I64]))
        memory = slots.call(allocate, [i64(64), i64((size + 63) // 64 * 64)], name="tile")
        self.heap_buffers.append(memory)
        return memory

    def emit_return(self, value: ll.Value | None = None) -> None:
        """Leave the function; `release_heap` comes back to every place that does."""
        self.returns.append(self.b.ret_void() if value is None else self.b.ret(value))

    def release_heap(self) -> None:
        """Free the tiles that did not fit the stack, once all of them and all returns are known."""
        if not self.heap_buffers:
            return
        free = declare(self.e.module, "free", ll.FunctionType(ll.VoidType(), [PTR]))
        for instruction in self.returns:
            builder = ll.IRBuilder(instruction.parent)
            builder.position_before(instruction)
            for memory in self.heap_buffers:
                builder.call(free, [memory])

    def dummy(self) -> ll.Value:
        """The address of memory that masked-off lanes may read and write instead of theirs."""
        if self._dummy is None:
            slot = self.e.slot(I64, 64, align=64, name="masked.off")
            self.e.slots.position_before(self.e.entry_branch)
            self._dummy = self.e.slots.ptrtoint(slot, I64)
        return self._dummy
