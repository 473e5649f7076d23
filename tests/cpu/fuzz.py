"""Random Triton kernels, for comparing the CPU backend with Triton's interpreter.

`kernel_<seed>` of this module is the kernel of that seed: it is generated when it is asked for, so
that the interpreter's process finds the same kernel by the same name. All floats of a program are
integers of small magnitude, so that every result is exact and any difference is a fault.
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

#: Offsets into the arrays that a kernel reads and writes stay below this; advanced pointers may go
#: further, and the arrays are longer.
SIZE = 2048
#: Elements of the largest tensor.
LARGEST = 512
#: Elements of the outputs. Every result has its own place there.
OUT = 1 << 16
#: Floats stay within this after every operation that could make them grow.
BOUND = 60

_FLOATS = ("float32", "float16", "float64")
_INTEGERS = ("int32", "int64", "int16", "int8")
_DIMS = (1, 2, 4, 8, 16)
_LENGTHS = (2, 4, 8, 16, 32, 64)

Shape = tuple[int, ...]
#: Source lines; a pair is a line that opens a block, and the block.
Tree = list[Any]


@dataclass(frozen=True)
class Variable:
    name: str
    dtype: str
    shape: Shape

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")


@dataclass
class _Scope:
    """What can be named at a place in the program."""

    variables: list[Variable]
    pointers: list[tuple[str, Shape]]
    scalars: list[str]
    lines: Tree = field(default_factory=list)

    def inner(self) -> _Scope:
        return _Scope(list(self.variables), list(self.pointers), list(self.scalars))


def render(tree: Tree, indent: int = 1) -> str:
    text = ""
    for node in tree:
        head, block = (node, None) if isinstance(node, str) else node
        text += "    " * indent + head + "\n"
        if block is not None:
            text += render(block or ["pass"], indent + 1)
    return text


class Generator:
    """Writes one kernel: statements that define, change and store tensors, at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.stored = 0
        self.scope = _Scope([], [], ["n", "f", "s"])
        self.depth = 0

    def program(self) -> Tree:
        for _ in range(4):
            self.load()
        for _ in range(self.rng.randint(6, 18)):
            self.statement()
        if self.chance(0.25):
            with self.block(f"if f == {self.rng.randint(0, 3)}:"):
                self.statement()
                self.output(self.pick(self.scope.variables))
                self.line("return")
            for _ in range(3):
                self.statement()
        for variable in self.scope.variables:
            self.output(variable)
        for name, shape in self.scope.pointers:
            self.output(Variable(f"tl.load({name})", "float32", shape))
        return self.scope.lines

    # The smallest decisions

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def line(self, text: str) -> None:
        self.scope.lines.append(text)

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def define(self, text: str, dtype: str, shape: Shape) -> Variable:
        variable = Variable(self.fresh(), dtype, shape)
        self.line(f"{variable.name} = {text}")
        self.scope.variables.append(variable)
        return variable

    @contextmanager
    def block(self, head: str, *scalars: str) -> Iterator[None]:
        outer, inner = self.scope, self.scope.inner()
        outer.lines.append((head, inner.lines))
        inner.scalars += scalars
        self.scope = inner
        self.depth += 1
        yield
        self.depth -= 1
        self.scope = outer

    def shape(self) -> Shape:
        if self.chance(0.3):
            return (16, 16)
        rank = self.pick((1, 1, 2, 2, 2, 3))
        shape = tuple(self.pick(_DIMS if rank > 1 else _LENGTHS) for _ in range(rank))
        return shape if _numel(shape) <= LARGEST else self.shape()

    # Expressions

    def scalar(self) -> str:
        return self.pick((str(self.rng.randint(1, 5)), self.pick(self.scope.scalars)))

    def along(self, dim: int, shape: Shape) -> str:
        """0, 1, 2, ... along one dimension of a shape."""
        where = ", ".join(":" if d == dim else "None" for d in range(len(shape)))
        return f"tl.arange(0, {shape[dim]})" + (f"[{where}]" if len(shape) > 1 else "")

    def index(self, shape: Shape, strides: Sequence[int], start: str) -> str:
        terms = [f"{self.along(d, shape)} * {step}" for d, step in enumerate(strides)]
        return " + ".join([*terms, start])

    def of_shape(self, shape: Shape, dtype: str) -> str:
        """Some tensor of a shape, by whatever way there is from what the program has."""
        known = self.scope.variables
        ways: list[Callable[[], str]] = [lambda: self._ramp(shape, dtype)]
        same = [v for v in known if v.shape == shape]
        if same:
            ways += [lambda: self.converted(self.pick(same), dtype)] * 6
        if len(shape) > 1:
            lines = [(v, d) for v in known for d, n in enumerate(shape) if v.shape == (n,)]
            if lines:
                ways += [lambda: self._spread(self.pick(lines), shape, dtype)] * 4
            turned = [v for v in known if v.shape != shape and sorted(v.shape) == sorted(shape)]
            turned += [v for v in same if len(set(shape)) < len(shape)]
            if turned:
                ways += [lambda: self._turned(self.pick(turned), shape, dtype)] * 4
        folded = [v for v in known if _numel(v.shape) == _numel(shape) and v.shape != shape]
        if folded:
            ways += [
                lambda: f"tl.reshape({self.converted(self.pick(folded), dtype)}, {list(shape)})"
            ] * 3
        return self.pick(ways)()

    def _ramp(self, shape: Shape, dtype: str) -> str:
        strides = [self.rng.randint(-3, 3) for _ in shape]
        text = f"({self.index(shape, strides, self.scalar())}).to(tl.{dtype})"
        return f"tl.broadcast_to({text}, {list(shape)})"

    def _spread(self, line: tuple[Variable, int], shape: Shape, dtype: str) -> str:
        variable, dim = line
        where = ", ".join(":" if d == dim else "None" for d in range(len(shape)))
        return f"tl.broadcast_to({self.converted(variable, dtype)}[{where}], {list(shape)})"

    def _turned(self, variable: Variable, shape: Shape, dtype: str) -> str:
        order = list(range(len(shape)))
        for _ in range(20):
            self.rng.shuffle(order)
            if tuple(variable.shape[d] for d in order) == shape:
                return f"tl.permute({self.converted(variable, dtype)}, {order})"
        return f"tl.reshape({self.converted(variable, dtype)}, {list(shape)})"

    def converted(self, variable: Variable, dtype: str) -> str:
        if variable.dtype == dtype:
            return variable.name
        name = variable.name
        if not variable.is_float:
            name = f"({name} & 31)" if dtype.startswith("float") else name
        elif dtype == "float16":
            name = self.bounded(name, variable.dtype)
        elif not dtype.startswith("float"):
            # A float that does not fit a narrow integer has no defined value there.
            name = f"{name}.to(tl.int32)"
        return f"{name}.to(tl.{dtype})"

    def bounded(self, text: str, dtype: str) -> str:
        if not dtype.startswith("float"):
            return text
        return f"tl.minimum(tl.maximum({text}, -{BOUND}.0), {BOUND}.0)"

    def condition(self, shape: Shape) -> str:
        dtype = self.pick(("int32", "float32"))
        x, relation = self.of_shape(shape, dtype), self.pick(("<", "<=", ">", ">=", "==", "!="))
        if dtype == "int32" and self.chance(0.4):
            factor = self.pick(("1", "1", "1", "1103515245", f"{self.scalar()}"))
            wide = self.pick(("", "", ".to(tl.int64)"))
            limit = f"{self.scalar()} * {self.rng.randint(1, 9)}"
            return f"(({self._ramp(shape, dtype)} * {factor}){wide} {relation} {limit})"
        y = self.of_shape(shape, dtype) if self.chance(0.4) else self.rng.randint(-3, 9)
        return f"({x} {relation} {y})"

    def elementwise(self, shape: Shape, dtype: str) -> str:
        x, y = self.of_shape(shape, dtype), self.of_shape(shape, dtype)
        forms = [f"{x} + {y}", f"{x} - {y}", f"{x} * {y}", f"tl.abs({x})"]
        forms += [f"tl.maximum({x}, {y})", f"tl.minimum({x}, {y})"]
        forms += [f"tl.where({self.condition(shape)}, {x}, {y})"]
        if dtype in ("float32", "float64"):
            forms += [f"tl.floor({x} / 3)", f"tl.floor(tl.sqrt({x} * {x} + 1)) - {y}"]
        elif dtype != "float16":
            forms += [f"{x} ^ {y}", f"{x} & {y}", f"-{x}", f"{x} >> 1"]
            forms += [f"{x} // {self.rng.randint(2, 9)}"]
        if dtype in ("int32", "int64"):
            forms += [f"{x} % {self.rng.randint(2, 40)}", f"{x} % (({y} & 7) + 1)"]
            forms += [f"{x} * 1664525 + 1013904223"]
        text = self.bounded(self.pick(forms), dtype)
        return f"({text}).to(tl.{dtype})" if dtype in ("int8", "int16", "float16") else text

    # Statements

    def statement(self) -> None:
        options = [self.compute] * 6 + [self.load] * 3 + [self.reduce] * 3
        options += [self.store, self.change] * 2 + [self.product, self.rearrange, self.scan]
        options += [self.read_modify_write, self.atomic, self.point]
        if self.depth < 2:
            options += [self.loop] * 3 + [self.branch] * 2 + [self.repeat]
        self.pick(options)()

    def any_dtype(self) -> str:
        return self.pick(("float32",) * 6 + ("int32",) * 5 + _FLOATS + _INTEGERS)

    def some_shape(self) -> Shape:
        return (
            self.pick(self.scope.variables).shape
            if self.scope.variables and self.chance(0.65)
            else self.shape()
        )

    def compute(self) -> None:
        shape, dtype = self.some_shape(), self.any_dtype()
        self.define(self.elementwise(shape, dtype), dtype, shape)

    def change(self) -> None:
        """A variable that was there before gets another value: what loops and branches carry."""
        x = self.pick(self.scope.variables)
        like = [
            v for v in self.scope.variables if (v.dtype, v.shape) == (x.dtype, x.shape) and v != x
        ]
        if like and self.chance(0.4):
            y = self.pick(like)
            value = self.elementwise(x.shape, x.dtype)
            self.line(f"{x.name}, {y.name} = {y.name}, {self.pick((x.name, value))}")
        else:
            self.line(f"{x.name} = {self.elementwise(x.shape, x.dtype)}")

    def addresses(self, shape: Shape, once: bool) -> tuple[str, str]:
        """Offsets in an array, and the mask they need ("" for none); no offset twice if `once`."""
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        strides, reach = [0] * len(shape), 1
        for dim in order:
            strides[dim] = reach if once else self.rng.choice((reach, reach, 0, 1, 3))
            reach *= shape[dim]
        room = SIZE - 64 - sum(s * (n - 1) for s, n in zip(strides, shape, strict=True))
        start = f"{self.rng.randint(0, room // 2)}"
        if self.chance(0.4):
            start += f" + {self.pick(self.scope.scalars)}"
        kind = self.pick(("plain", "plain", "masked", "reverse", "wrapped", "beyond"))
        if not once and kind == "plain" and self.chance(0.4):
            return f"({self.of_shape(shape, 'int32')} & {SIZE - 1})", ""
        offsets = f"({self.index(shape, strides, start)})"
        if kind == "reverse":
            return f"({SIZE - 1} - {offsets})", ""
        if kind == "wrapped":
            wrap = SIZE if once else self.rng.randint(8, SIZE)
            return f"({offsets} % {wrap})", ""
        if kind == "masked":
            return offsets, self.condition(shape)
        if kind == "beyond":
            limit = self.rng.randint(1, SIZE)
            return f"({offsets} * {1 if once else 2})", f"({offsets} * 2 < {limit})"
        return offsets, ""

    def load(self) -> None:
        array = self.pick("PQAB")
        dtype = "float32" if array in "PA" else "int32"
        shape = self.some_shape()
        offsets, mask = self.addresses(shape, once=False)
        if mask:
            other = self.pick((f"{self.rng.randint(-5, 5)}", self.of_shape(shape, dtype)))
            mask = f", mask={mask}, other={other}"
        place = f"{array} + {offsets}"
        self.define(f"tl.load(tl.broadcast_to({place}, {list(shape)}){mask})", dtype, shape)

    def store(self) -> None:
        array, dtype = self.pick((("A", "float32"), ("B", "int32")))
        shape = self.some_shape()
        offsets, mask = self.addresses(shape, once=True)
        value = self.elementwise(shape, dtype)
        self.line(f"tl.store({array} + {offsets}, {value}{', mask=' + mask if mask else ''})")

    def read_modify_write(self) -> None:
        """Where two elements have one address, both write the same."""
        shape = self.some_shape()
        strides = [self.rng.choice((0, 1, 1, 2, 16)) for _ in shape]
        name = self.fresh()
        offsets = self.index(shape, strides, self.scalar())
        self.line(f"{name} = tl.broadcast_to(B + {offsets}, {list(shape)})")
        self.line(f"tl.store({name}, tl.load({name}) * 3 + 1)")

    def atomic(self) -> None:
        shape = self.some_shape()
        offsets, mask = self.addresses(shape, once=True)
        value, how = self.elementwise(shape, "int32"), self.pick(("add", "max", "xor"))
        mask = mask and f", mask={mask}"
        old = self.define(f"tl.atomic_{how}(B + {offsets}, {value}{mask})", "int32", shape)
        if mask:
            self.scope.variables.remove(old)

    def reduce(self) -> None:
        x = self.pick(self.scope.variables)
        wide = self.converted(x, "float32" if x.is_float else "int32")
        dtype = "float32" if x.is_float else "int32"
        axis = self.rng.randrange(len(x.shape))
        how = self.pick(("sum", "max", "min", "argmax", "xor_sum" if dtype == "int32" else "sum"))
        left = (*x.shape[:axis], *x.shape[axis + 1 :])
        if (how, dtype) == ("sum", "int32"):
            wide = f"{wide} & 4095"  # the interpreter refuses sums that overflow
        text = f"tl.{how}({wide}, {axis})"
        dtype = "int32" if how == "argmax" else dtype
        if not left:
            self.define(f"tl.full([4], 0, tl.{dtype}) + {self.bounded(text, dtype)}", dtype, (4,))
        else:
            self.define(self.bounded(text, dtype), dtype, left)

    def scan(self) -> None:
        x = self.pick(
            [v for v in self.scope.variables if v.dtype in ("float32", "int32")]
            or self.scope.variables
        )
        if x.dtype in ("float32", "int32"):
            axis, reverse = self.rng.randrange(len(x.shape)), self.chance(0.5)
            text = f"tl.cumsum({x.name}, {axis}, reverse={reverse})"
            self.define(self.bounded(text, x.dtype), x.dtype, x.shape)

    def product(self) -> None:
        m, n, k = (self.pick(_DIMS[1:]) for _ in range(3))
        square = [v for v in self.scope.variables if len(v.shape) == 2 and v.dtype == "float32"]
        if square and self.chance(0.7):
            m, k = self.pick(square).shape
            n = self.pick((m, k, n))
        batch: Shape = (self.pick((1, 2, 4)),) if self.chance(0.2) else ()
        a, b = self.of_shape((*batch, m, k), "float32"), self.of_shape((*batch, k, n), "float32")
        shape = (*batch, m, n)
        into = [v for v in square if v.shape == shape]
        accumulator = (
            self.pick(into).name if into and self.chance(0.6) else self.of_shape(shape, "float32")
        )
        # The result is not bounded: a loop variable whose next value is the product itself is a
        # case of its own.
        a, b, accumulator = (
            self.bounded(x, "float32") if self.chance(0.8) else x for x in (a, b, accumulator)
        )
        dot = f"tl.dot({a}, {b}, {accumulator}, input_precision='ieee')"
        if into and self.chance(0.7):
            self.line(f"{self.pick(into).name} = {dot}")
        else:
            self.define(dot, "float32", shape)

    def rearrange(self) -> None:
        x = self.pick(self.scope.variables)
        form = self.pick(("join", "split", "cat", "gather"))
        if form == "join" and 2 * _numel(x.shape) <= LARGEST:
            other = self.of_shape(x.shape, x.dtype)
            self.define(f"tl.join({x.name}, {other})", x.dtype, (*x.shape, 2))
        elif form == "split" and x.shape[-1] == 2 and len(x.shape) > 1:
            first, second = (Variable(self.fresh(), x.dtype, x.shape[:-1]) for _ in range(2))
            self.line(f"{first.name}, {second.name} = tl.split({x.name})")
            self.scope.variables += [first, second]
        elif form == "cat" and len(x.shape) == 1 and 2 * x.shape[0] <= LARGEST:
            other = self.of_shape(x.shape, x.dtype)
            self.define(f"tl.cat({x.name}, {other}, can_reorder=True)", x.dtype, (2 * x.shape[0],))
        else:
            axis = self.rng.randrange(len(x.shape))
            places = f"({self.of_shape(x.shape, 'int32')} & {x.shape[axis] - 1})"
            self.define(f"tl.gather({x.name}, {places}, {axis})", x.dtype, x.shape)

    def point(self) -> None:
        """A tensor of pointers, which loops then advance."""
        shape = self.shape()
        strides = [self.rng.choice((0, 1, 3, 16)) for _ in shape]
        name = self.fresh()
        offsets = self.index(shape, strides, self.scalar())
        self.line(f"{name} = tl.broadcast_to(A + {offsets}, {list(shape)})")
        self.scope.pointers.append((name, shape))

    def advance(self) -> None:
        name, shape = self.pick(self.scope.pointers)
        self.define(f"tl.load({name})", "float32", shape)
        by = self.pick((str(self.rng.randint(1, 9)), self.scalar(), f"tl.arange(0, {shape[-1]})"))
        self.line(f"{name} += {by}")

    def body(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.statement()
        for _ in range(self.rng.randint(1, 2)):
            self.change()
        if self.scope.pointers and self.chance(0.7):
            self.advance()

    def loop(self) -> None:
        counter = f"k{self.depth}"
        with self.block(
            f"for {counter} in range({self.pick(('n', '2', 's', '0', 'n + 1'))}):", counter
        ):
            self.body()

    def repeat(self) -> None:
        counter = self.fresh()
        self.line(f"{counter} = {self.pick(('0', 'f'))}")
        with self.block(f"while {counter} < {self.pick(('2', '3', 'n'))}:", counter):
            self.body()
            self.line(f"{counter} += 1")

    def branch(self) -> None:
        x = self.pick([v for v in self.scope.variables if not v.is_float] or self.scope.variables)
        total = (
            f"tl.xor_sum(tl.reshape({self.converted(x, 'int32')}, [{_numel(x.shape)}]), 0) % 2 == 0"
        )
        test = self.pick((f"{self.pick(self.scope.scalars)} > {self.rng.randint(0, 2)}", total))
        with self.block(f"if {test}:"):
            self.body()
        if self.chance(0.6):
            with self.block("else:"):
                self.body()

    def output(self, x: Variable) -> None:
        place, size = self.stored, _numel(x.shape)
        self.stored += size
        strides = [_numel(x.shape[d + 1 :]) for d in range(len(x.shape))]
        array, dtype = ("OF", "float64") if x.is_float else ("OI", "int64")
        offsets = self.index(x.shape, strides, str(place))
        self.line(f"tl.store({array} + {offsets}, {x.name}.to(tl.{dtype}))")


def _numel(shape: Shape) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def source(seed: int, tree: Tree | None = None) -> str:
    """The text of the kernel of a seed."""
    body = render(Generator(seed).program() if tree is None else tree)
    head = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
    return f"{head}def kernel_{seed}(P, Q, A, B, OF, OI, n, f, s):\n{body}"


def arguments(seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    small = [
        torch.randint(-9, 10, (4 * SIZE,), generator=generator, dtype=torch.int32) for _ in range(4)
    ]
    chooser = random.Random(seed)
    arrays = [small[0].float(), small[1], small[2].float(), small[3]]
    outputs = [torch.zeros(OUT, dtype=torch.float64), torch.zeros(OUT, dtype=torch.int64)]
    return [
        *arrays,
        *outputs,
        chooser.choice((0, 1, 2, 3)),
        chooser.randint(0, 3),
        chooser.choice((1, 2, 3)),
    ]


def load(path: Path, name: str) -> Any:
    """The kernel of a file. It says that it is this module's: the interpreter looks for it here."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, name)
    kernel.fn.__module__ = __name__
    return kernel


def __getattr__(name: str) -> Any:
    if not name.startswith("kernel_"):
        raise AttributeError(name)
    path = Path(tempfile.mkdtemp(prefix="fuzz-")) / f"{name}.py"
    path.write_text(source(int(name.removeprefix("kernel_"))))
    kernel = globals()[name] = load(path, name)
    return kernel
