"""The backend's own small IR, which Triton's MLIR is parsed into.

A module is a list of functions; a function is a region; a region is a list of blocks; a block is a
list of operations. Values are tensors or scalars (a scalar is a tensor of rank 0). Operation names
are MLIR's own (`arith.addf`, `tt.load`), so that a dump can be read beside the TTIR it came from.
Nothing here knows how MLIR is printed (`ttir/` does) or how code is made of it (`lower/` does).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Bits of every element type. Floats and integers are told apart by their first letter; `ptr` is a
#: 64-bit address.
BITS = {
    "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64,
    "f8E4M3FN": 8, "f8E5M2": 8, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "ptr": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """An element type and a shape. `pointee` is set for pointers only. Rank 0 is a scalar."""

    elem: str
    shape: tuple[int, ...] = ()
    pointee: Type | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bits(self) -> int:
        return BITS[self.elem]

    @property
    def is_float(self) -> bool:
        return self.elem[0] in "fb"

    @property
    def is_int(self) -> bool:
        return self.elem[0] == "i"

    @property
    def is_ptr(self) -> bool:
        return self.elem == "ptr"

    @property
    def scalar(self) -> Type:
        """Return the element type alone, as a scalar."""
        return Type(self.elem, (), self.pointee)

    def with_shape(self, shape: tuple[int, ...]) -> Type:
        return Type(self.elem, shape, self.pointee)

    def __str__(self) -> str:
        elem = f"ptr<{self.pointee}>" if self.is_ptr else self.elem
        return "x".join([*map(str, self.shape), elem])


@dataclass(frozen=True)
class Loc:
    """Where in the user's source an operation came from; `file` is empty when MLIR does not say."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "unknown location"


@dataclass(eq=False)
class Value:
    """An SSA value: the result of `owner`, or an argument of a block when `owner` is None."""

    type: Type
    name: str = ""
    owner: Op | None = None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(eq=False)
class Op:
    name: str
    operands: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    #: Branch targets with the values passed to their arguments (`cf.br`, `cf.cond_br`).
    successors: list[tuple[Block, list[Value]]] = field(default_factory=list)
    loc: Loc = Loc()

    @property
    def result(self) -> Value:
        """Return the only result."""
        (value,) = self.results
        return value

    def __repr__(self) -> str:
        results = ", ".join(f"%{r.name}" for r in self.results)
        operands = ", ".join(f"%{o.name}" for o in self.operands)
        return f"{results}{' = ' if results else ''}{self.name}({operands}) {self.attrs or ''}"


@dataclass(eq=False)
class Block:
    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    blocks: list[Block] = field(default_factory=list)


@dataclass(eq=False)
class Function:
    name: str
    args: list[Value]
    results: list[Type]
    body: Region
    public: bool
    #: Per argument: MLIR's attributes, e.g. `{"tt.divisibility": 16}`.
    arg_attrs: list[dict[str, Any]]
    loc: Loc = Loc()


@dataclass(eq=False)
class Module:
    functions: list[Function]

    @property
    def entry(self) -> Function:
        """Return the kernel itself, the one public function."""
        (function,) = [f for f in self.functions if f.public]
        return function
