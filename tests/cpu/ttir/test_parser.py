"""The reader of Triton's IR, against the IR that the installed Triton makes.

Kernels go through the front end of Triton's own hip backend (it needs no GPU), so that nothing here
depends on the rest of the CPU backend.
"""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import triton
import triton.language as tl
from triton._C.libtriton import ir as mlir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.language.extra import libdevice

from tritune.cpu import ir, ttir
from tritune.errors import CompileError


@triton.jit
def sum_and_product(a, b):
    return a + b, a * b


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def larger_with_index(a, ai, b, bi):
    first = a > b
    return tl.where(first, a, b), tl.where(first, ai, bi)


@triton.jit(noinline=True)
def outlined(x, y):
    if x > 3:
        return x + y
    return x - y


@triton.jit
def maths(X, Y, P, n, f, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(X + i)
    tl.store(Y + i, tl.clamp(x, -1.0, 1.0))
    tl.store(Y + i, tl.clamp(x, -f, f, propagate_nan=tl.PropagateNan.ALL))
    y = tl.sqrt_rn(x) + tl.div_rn(x, f) + tl.fma(x, x, f) + tl.abs(x) + tl.floor(x) + tl.ceil(x)
    y += tl.rsqrt(x) + tl.log(x) + tl.log2(x) + tl.sin(x) + tl.cos(x) + tl.erf(x) + tl.exp2(x)
    y += tl.exp(x) + tl.sqrt(x) + libdevice.pow(x, x) + libdevice.tanh(x) + x % f + tl.umulhi(i, n)
    y += tl.minimum(x, f, propagate_nan=tl.PropagateNan.ALL) + tl.minimum(x, f)
    y += tl.maximum(x, f, propagate_nan=tl.PropagateNan.ALL) + tl.maximum(x, f)
    y += tl.where(n > 3, x, f) + tl.where(x > 0, x, f)
    tl.store(Y + i, y)
    a, b = tl.map_elementwise(sum_and_product, x, x + 1.0)
    tl.store(Y + i, a - b)
    k = x.to(tl.int32)
    k = k // n + k % n + (i >> 1) + (i.to(tl.uint32) >> 1).to(tl.int32) + (i << 2) + x.to(tl.uint32)
    tl.store(P + i, k)
    z = i.to(tl.uint32).to(tl.float32) + x.to(tl.bfloat16) + x.to(tl.float8e4nv).to(tl.float32)
    z += x.to(tl.float16, fp_downcast_rounding="rtz") + x.to(tl.int32, bitcast=True)
    tl.store(Y + i, z)
    tl.store((X.to(tl.int64) + 4).to(tl.pointer_type(tl.float32)), f)
    r = tl.inline_asm_elementwise(
        "{ mov $0, $2; // <x>\n mov $1, $2; }", "=r,=r,r", [x], (tl.int32, tl.int32), False, 1
    )
    tl.store(P + i, r[0] + r[1])
    tl.store(P + i, tl.inline_asm_elementwise("mov $0, 1;", "=r", [], tl.int32, True, 1))


@triton.jit
def memory(X, Y, P, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(X + i, mask=i < n, other=1.0, cache_modifier=".cg", eviction_policy="evict_last")
    x += tl.load(X + i, mask=i < n)
    x += tl.load(X + i, volatile=True)
    tl.store(Y + i, x, cache_modifier=".wt")
    tl.store(Y + i, x, mask=i < n, eviction_policy="evict_first")
    tl.store(Y, 0.0)
    tl.atomic_cas(P, n, 5, sem="relaxed", scope="cta")
    tl.atomic_cas(P + i, i, i + 1)
    tl.atomic_xchg(P + i, i)
    tl.atomic_max(P + i, i, sem="acquire", scope="sys")
    tl.atomic_min(Y + i, x)
    tl.atomic_and(P, n)
    tl.atomic_or(P, n)
    tl.atomic_xor(P, n)
    tl.atomic_add(P, n)
    tl.atomic_add(Y + i, x, mask=i < n)
    tl.atomic_min(P.to(tl.pointer_type(tl.uint32)) + i, i.to(tl.uint32))
    tl.assume(n > 4)
    tl.debug_barrier()


@triton.jit
def shapes(X, Y, P, n, f, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(X + i)
    tl.store(Y + tl.arange(0, 2 * B), tl.cat(x, x, can_reorder=True))
    r = tl.reshape(x, (B // 2, 2))
    tl.store(Y + i, tl.trans(r).reshape(B))
    tl.store(Y + i, tl.permute(tl.reshape(x, (2, B // 4, 2)), (2, 0, 1)).reshape(B))
    left, right = tl.split(tl.join(x, x + f))
    tl.store(Y + i, left * right)
    tl.store(Y + i, tl.histogram(i, B) + tl.histogram(i, B, mask=i < n))
    tl.store(Y + i, tl.gather(x, i, 0))
    tl.store(Y, tl.load(P + tl.arange(0, 1)).item())
    tl.store(Y, tl.num_programs(1) + tl.num_programs(0) + tl.program_id(2))
    square = i[:, None] * B + i[None, :]
    tl.store(Y + square, tl.load(X + square) + x[:, None])


@triton.jit
def reductions(X, Y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(X + i)
    best, at = tl.reduce((x, i), 0, larger_with_index)
    tl.store(Y, best + at + tl.argmax(x, 0) + tl.xor_sum(i) + tl.max(i.to(tl.uint32)))
    tl.store(Y + i, tl.associative_scan(x, 0, plus, reverse=True) + tl.cumsum(x, 0))
    tl.store(Y + i, tl.sort(x) + tl.flip(x, 0) + tl.softmax(x) + tl.rand(n, i))
    m = tl.load(X + i[:, None] * B + i[None, :])
    tl.store(Y + i, tl.sum(m, axis=1) + tl.max(m, axis=0))


@triton.jit
def control(X, Y, n, f):
    for i in tl.range(0, n, 2, num_stages=3, disallow_acc_multi_buffer=True):
        tl.store(X + i, f)
    for i in range(n.to(tl.int64)):
        tl.store(X + i, f)
    for i in range(n, 0, -1):
        if i > 3:
            tl.store(X + i, f)
        elif i > 2:
            f += 1.0
        else:
            f -= 1.0
    while n > 3:
        n -= 1
        if n == 7:
            tl.store(X, f)
            f += 1
    if n > 5:
        tl.store(X, f)
        return
    elif n > 2:
        tl.store(X, f)
    tl.store(Y, outlined(n, n))
    if n == 100:
        if f > 0:
            return
        f += 1
    tl.store(Y + 1, f)


@triton.jit
def talk(X, n, B: tl.constexpr):
    x = tl.load(X + tl.arange(0, B))
    tl.device_print('x "<y>\\"\n', x, n, hex=True)
    tl.device_print("plain")
    tl.device_assert(x > 0, 'a "quoted\\" <message>')


@triton.jit
def descriptors(X, Y, n, m, d, B: tl.constexpr):
    source = tl.make_tensor_descriptor(X, [n, m], [m, 1], [B, B])
    target = tl.make_tensor_descriptor(Y, [n, m], [m, 1], [B, B])
    target.store([0, n], source.load([0, 0]) + d.load([n, 0]))
    rows = tl.make_tensor_descriptor(X, [n, m], [m, 1], [1, B])
    target.store([0, 0], rows.gather(tl.arange(0, B), 0))
    rows.scatter(source.load([0, 0]), tl.arange(0, B), 0)
    target.atomic_add([0, 0], source.load([0, 0]))


@triton.jit
def products(X, Y, A, S, B: tl.constexpr):
    i = tl.arange(0, B)
    square = i[:, None] * B + i[None, :]
    x = tl.load(X + square)
    c = tl.dot(x, x, input_precision="ieee", max_num_imprecise_acc=4)
    c = tl.dot(x.to(tl.float32), x.to(tl.float32), c, input_precision="tf32")
    c += tl.dot(x.to(tl.int8), x.to(tl.int8))
    a = tl.load(A + square)
    s = tl.load(S + i[:, None] * 2 + tl.arange(0, 2)[None, :])
    c += tl.dot_scaled(a, s, "e4m3", a, s, "e4m3")
    c = tl.dot_scaled(a, None, "e5m2", a, s, "e4m3", c)
    tl.store(Y + square, c)


@triton.jit
def literals(X, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(X.to(tl.pointer_type(tl.float16)) + i, tl.full((B,), 0.1, tl.float16))
    tl.store(X.to(tl.pointer_type(tl.bfloat16)) + i, tl.full((B,), 0.1, tl.bfloat16))
    tl.store(X + i, tl.full((B,), 0.1, tl.float32))
    tl.store(X.to(tl.pointer_type(tl.float64)), tl.full((), 0.1, tl.float64))
    tl.store(X + i, tl.full((B,), float("-inf"), tl.float32))
    tl.store(X.to(tl.pointer_type(tl.bfloat16)), tl.full((), float("inf"), tl.bfloat16))
    tl.store(X + i, tl.full((B,), float("nan"), tl.float32))
    tl.store(X.to(tl.pointer_type(tl.float8e5)) + i, tl.full((B,), -1.5, tl.float8e5))
    tl.store(X.to(tl.pointer_type(tl.int8)) + i, tl.full((B,), -128, tl.int8))
    tl.store(X.to(tl.pointer_type(tl.uint64)), tl.full((), 0xFFFFFFFFFFFFFFFF, tl.uint64))
    tl.store(X + i, 1.0, mask=(i > 3) ^ True)


@triton.jit
def waiting(P, X, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.atomic_load(P + i, mask=i < n)
    tl.atomic_store(P + i, v + 1, mask=i < n, sem="relaxed")
    tl.atomic_poll(P, 3)
    tl.atomic_poll(P, n, timeout_ns=100, sem="relaxed")
    x = tl.load(X + i)
    tl.store(X + i, tl.fdiv(x, x + 1.0, approx=True))


@triton.jit
def nested_library_call(X, B: tl.constexpr):
    x = tl.load(X + tl.arange(0, B))
    total = tl.sum(x)
    tl.store(X, helper_of_user(total))


@triton.jit
def helper_of_user(x):
    return x * 3.0


@dataclass(frozen=True)
class Case:
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, int] = field(default_factory=dict)


FLOATS = {"X": "*fp32", "Y": "*fp32"}
CASES = {
    case.kernel.fn.__name__: case
    for case in (
        Case(maths, {**FLOATS, "P": "*i32", "n": "i32", "f": "fp32"}, {"B": 64}),
        Case(memory, {**FLOATS, "P": "*i32", "n": "i32"}, {"B": 64}),
        Case(shapes, {**FLOATS, "P": "*i32", "n": "i32", "f": "fp32"}, {"B": 64}),
        Case(reductions, {**FLOATS, "n": "i32"}, {"B": 64}),
        Case(control, {**FLOATS, "n": "i32", "f": "fp32"}),
        Case(talk, {"X": "*fp32", "n": "i32"}, {"B": 64}),
        Case(
            descriptors,
            {"X": "*fp16", "Y": "*fp16", "n": "i32", "m": "i32", "d": "tensordesc<fp16[64,64]>"},
            {"B": 64},
        ),
        Case(products, {"X": "*fp16", "Y": "*fp32", "A": "*u8", "S": "*u8"}, {"B": 64}),
        Case(literals, {"X": "*fp32"}, {"B": 64}),
        Case(nested_library_call, {"X": "*fp32"}, {"B": 64}),
    )
}
if hasattr(tl, "atomic_load"):
    CASES["waiting"] = Case(waiting, {"P": "*i32", "X": "*fp32", "n": "i32"}, {"B": 64})


@dataclass
class Built:
    """An MLIR module with what must outlive it."""

    context: Any
    module: Any
    backend: Any
    options: Any


def build(name: str, attrs: dict[tuple[int, ...], Any] | None = None) -> Built:
    """The unoptimised IR of a kernel."""
    case = CASES[name]
    names = case.kernel.arg_names
    constants = {(names.index(key),): value for key, value in case.constants.items()}
    signature = {**case.signature, **dict.fromkeys(case.constants, "constexpr")}
    source = ASTSource(case.kernel, signature, constants, attrs)
    target = GPUTarget("hip", "gfx942", 64)
    backend = make_backend(target)
    options = backend.parse_options({"debug": name == "talk"})
    context = mlir.context()
    mlir.load_dialects(context)
    backend.load_dialects(context)
    implementation = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, implementation, backend.get_module_map(), context)
    return Built(context, module, backend, options)


def read(name: str) -> ir.Module:
    """A kernel as the CPU backend gets to see it."""
    built = build(name)
    return ttir.parse(str(ttir.optimise(built.module, built.options)))


def walk(region: ir.Region) -> Iterator[ir.Op]:
    """Operations inside out, as MLIR walks them."""
    for block in region.blocks:
        for op in block.ops:
            for inner in op.regions:
                yield from walk(inner)
            yield op


def operations(module: ir.Module, name: str = "") -> list[ir.Op]:
    ops = [op for function in module.functions for op in walk(function.body)]
    return [op for op in ops if not name or op.name == name]


def printed(type: ir.Type) -> str:
    """A type as MLIR prints it."""
    elem = f"!tt.ptr<{printed(type.pointee)}>" if type.pointee is not None else type.elem
    return f"tensor<{'x'.join(map(str, type.shape))}x{elem}>" if type.shape else elem


def mlir_operations(module: Any) -> list[Any]:
    """Every operation by MLIR's own account: its name, and identities and types of its values."""
    found: list[Any] = []

    def visit(op: Any) -> None:
        if op.get_name() in ("builtin.module", "tt.func"):
            return
        operands = [op.get_operand(i) for i in range(op.get_num_operands())]
        results = [op.get_result(i) for i in range(op.get_num_results())]
        found.append(
            (
                op.get_name(),
                [(v.id(), str(v.get_type())) for v in operands],
                [(v.id(), str(v.get_type())) for v in results],
            )
        )

    module.walk(visit)
    return found


@pytest.mark.parametrize("debug_info", [True, False], ids=["located", "bare"])
@pytest.mark.parametrize("optimised", [True, False], ids=["optimised", "fresh"])
@pytest.mark.parametrize("name", CASES)
def test_operations_operands_and_types_are_those_that_mlir_holds(
    name: str, optimised: bool, debug_info: bool
) -> None:
    built = build(name)
    module = ttir.optimise(built.module, built.options) if optimised else built.module
    found = operations(ttir.parse(str(module) if debug_info else module.str_nodebug()))
    expected = mlir_operations(module)

    assert [op.name for op in found] == [name for name, _, _ in expected]
    identities: dict[int, ir.Value] = {}
    for op, (_, operands, results) in zip(found, expected, strict=True):
        # MLIR counts the values passed to a block among the operands of a branch.
        values = [*op.operands, *(v for _, passed in op.successors for v in passed)]
        assert [printed(v.type) for v in values] == [type for _, type in operands]
        assert [printed(v.type) for v in op.results] == [type for _, type in results]
        assert all(result.owner is op for result in op.results)
        pairs = zip([*values, *op.results], [*operands, *results], strict=True)
        for value, (identity, _) in pairs:
            assert identities.setdefault(identity, value) is value


@pytest.mark.parametrize("name", CASES)
def test_optimise_runs_the_passes_of_tritons_own_backends(name: str) -> None:
    ours, theirs = build(name), build(name)
    expected = theirs.backend.make_ttir(theirs.module, {}, theirs.options)
    assert str(ttir.optimise(ours.module, ours.options)) == str(expected)


def test_descriptors_become_pointers() -> None:
    names = {op.name for op in operations(read("descriptors"))}
    assert "tt.load" in names
    assert not [name for name in names if "descriptor" in name]


def test_arguments_have_types_names_and_attributes() -> None:
    built = build("memory", {(0,): [["tt.divisibility", 16]]})
    entry = ttir.parse(str(built.module)).entry
    assert (entry.name, entry.public, entry.results) == ("memory", True, [])
    assert [a.name for a in entry.args] == ["X", "Y", "P", "n"]
    assert [str(a.type) for a in entry.args] == ["ptr<f32>", "ptr<f32>", "ptr<i32>", "i32"]
    assert entry.arg_attrs == [{"tt.divisibility": 16}, {}, {}, {}]
    assert entry.args is entry.body.blocks[0].args
    assert entry.loc.file == __file__


def test_loads_and_stores_say_what_they_were_asked_for() -> None:
    module = read("memory")
    loads = {len(op.operands): op.attrs for op in operations(module, "tt.load")}
    assert loads == {3: {"cache": "cg", "evict": "evict_last"}, 2: {}, 1: {"is_volatile": True}}
    stores = [(len(op.operands), op.attrs) for op in operations(module, "tt.store")]
    assert stores == [(2, {"cache": "wt"}), (3, {"evict": "evict_first"}), (2, {})]


def test_atomics_have_an_operation_an_order_and_a_scope() -> None:
    module = read("memory")
    kinds = {op.attrs["op"] for op in operations(module, "tt.atomic_rmw")}
    assert kinds == {"exch", "max", "min", "umax", "and", "or", "xor", "add", "fadd", "umin"}
    (largest,) = [o for o in operations(module, "tt.atomic_rmw") if o.attrs["sem"] == "acquire"]
    assert largest.attrs == {"op": "max", "sem": "acquire", "scope": "sys"}
    scalar, tensor = operations(module, "tt.atomic_cas")
    assert scalar.attrs == {"sem": "relaxed", "scope": "cta"}
    assert tensor.attrs == {"sem": "acq_rel", "scope": "gpu"}


def test_barriers_and_assumptions_are_kept() -> None:
    names = [op.name for op in operations(read("memory"))]
    assert "llvm.intr.assume" in names
    assert [name for name in names if name.endswith(".barrier")]


def test_elementwise_attributes() -> None:
    module = read("maths")
    assert [op.attrs["propagateNan"] for op in operations(module, "tt.clampf")] == [False, True]
    roundings = {
        op.result.type.elem: op.attrs["rounding"] for op in operations(module, "tt.fp_to_fp")
    }
    assert roundings == {"f8E4M3FN": "rtne", "f32": None, "f16": "rtz"}
    symbols = {op.attrs["symbol"] for op in operations(module, "tt.extern_elementwise")}
    assert len(symbols) == 2
    assert any("pow" in symbol for symbol in symbols)
    two, none = operations(module, "tt.elementwise_inline_asm")
    assert two.attrs["asm_string"] == "{ mov $0, $2; // <x>\n mov $1, $2; }"
    assert (two.attrs["pure"], two.attrs["constraints"]) == (False, "=r,=r,r")
    assert (len(two.results), len(none.operands)) == (2, 0)
    (mapped,) = operations(module, "tt.map_elementwise")
    assert mapped.attrs["pack"] == 1
    assert [len(b.args) for b in mapped.regions[0].blocks] == [2]
    assert {op.attrs["predicate"] for op in operations(module, "arith.cmpf")} == {"ogt"}


def test_shape_attributes() -> None:
    module = read("shapes")
    ranges = {(op.attrs["start"], op.attrs["end"]) for op in operations(module, "tt.make_range")}
    assert ranges == {(0, 64), (0, 128)}
    assert {op.attrs["axis"] for op in operations(module, "tt.expand_dims")} == {0, 1}
    orders = [op.attrs["order"] for op in operations(module, "tt.trans")]
    assert orders == [[1, 0], [2, 0, 1]]
    assert {op.attrs["axis"] for op in operations(module, "tt.get_num_programs")} == {0, 1}
    assert [op.attrs["axis"] for op in operations(module, "tt.get_program_id")] == [2]
    assert [op.attrs["axis"] for op in operations(module, "tt.gather")] == [0]
    assert sorted(len(op.operands) for op in operations(module, "tt.histogram")) == [1, 2]
    (item,) = operations(module, "tt.unsplat")
    assert (item.operands[0].type.shape, item.result.type.shape) == ((1,), ())


def test_reductions_have_an_axis_and_a_region() -> None:
    module = read("reductions")
    pairs = [op for op in operations(module, "tt.reduce") if len(op.operands) == 2]
    block = pairs[0].regions[0].blocks[0]
    assert [str(a.type) for a in block.args] == ["f32", "i32", "f32", "i32"]
    assert block.ops[-1].name == "tt.reduce.return"
    assert {op.attrs["axis"] for op in operations(module, "tt.reduce")} >= {0, 1}
    assert {op.attrs["reverse"] for op in operations(module, "tt.scan")} == {True, False}


def test_products_say_how_precise_they_must_be() -> None:
    module = read("products")
    attrs = [op.attrs for op in operations(module, "tt.dot")]
    assert attrs[0] == {"inputPrecision": "ieee", "maxNumImpreciseAcc": 4}
    assert attrs[1]["inputPrecision"] == "tf32"
    assert attrs[1]["maxNumImpreciseAcc"] == 0
    both, right = operations(module, "tt.dot_scaled")
    assert (len(both.operands), both.attrs["lhs"], both.attrs["lhs_scale"]) == (5, "e4m3", True)
    assert (len(right.operands), right.attrs["lhs"], right.attrs["lhs_scale"]) == (4, "e5m2", False)


def test_prints_and_assertions_keep_their_text() -> None:
    module = read("talk")
    values, plain = operations(module, "tt.print")
    assert values.attrs == {"prefix": ' x "<y>\\"\n: ', "hex": True, "isSigned": [0, 1]}
    assert (plain.attrs["prefix"], plain.operands) == (" plain", [])
    (assertion,) = operations(module, "tt.assert")
    assert assertion.attrs["message"] == 'a "quoted\\" <message>'


def test_loops_have_bounds_and_carried_values() -> None:
    plain, wide, carrying = operations(read("control"), "scf.for")
    assert plain.attrs["tt.num_stages"] == 3
    assert plain.attrs["tt.disallow_acc_multi_buffer"] is True
    assert len(plain.operands) == 3
    assert plain.regions[0].blocks[0].ops[-1].name == "scf.yield"
    assert str(wide.regions[0].blocks[0].args[0].type) == "i64"
    assert [str(a.type) for a in carrying.regions[0].blocks[0].args] == ["i32", "f32"]
    assert len(carrying.operands) == 4


def test_while_has_two_regions() -> None:
    (loop,) = operations(read("control"), "scf.while")
    before, after = (region.blocks[0] for region in loop.regions)
    assert before.ops[-1].name == "scf.condition"
    assert after.ops[-1].name == "scf.yield"
    assert len(before.args) == len(after.args) == len(loop.operands)
    assert before.ops[-1].operands[1:] == before.args


def test_an_if_without_else_has_one_region_that_ends_in_a_yield() -> None:
    without = [op for op in operations(read("control"), "scf.if") if len(op.regions) == 1]
    assert without
    assert all(op.regions[0].blocks[-1].ops[-1].name == "scf.yield" for op in without)


def test_early_returns_become_branches_between_blocks() -> None:
    entry = read("control").entry
    blocks = entry.body.blocks
    assert len(blocks) > 3
    branches = [op for block in blocks for op in block.ops if op.name.startswith("cf.")]
    for branch in branches:
        for target, passed in branch.successors:
            assert target in blocks
            assert [v.type for v in passed] == [a.type for a in target.args]
    assert {len(b.successors) for b in branches if b.name == "cf.cond_br"} == {2}
    assert any(passed for branch in branches for _, passed in branch.successors)


def test_functions_that_are_not_inlined_are_called_by_name() -> None:
    module = read("control")
    (call,) = operations(module, "tt.call")
    (callee,) = [f for f in module.functions if f.name == call.attrs["callee"]]
    assert not callee.public
    assert [str(t) for t in callee.results] == ["i32"]
    assert module.entry.name == "control"


def test_literals_are_values_of_their_type() -> None:
    def values(elem: str) -> list[Any]:
        constants = operations(module, "arith.constant")
        return [op.attrs["value"] for op in constants if op.result.type.elem == elem]

    module = read("literals")
    assert values("f16") == [0.0999755859375]
    assert sorted(values("bf16")) == [0.10009765625, math.inf]
    assert values("f64") == [0.1]
    single = values("f32")
    assert {0.10000000149011612, -math.inf, 1.0} <= set(single)
    assert sum(math.isnan(v) for v in single) == 1
    assert values("f8E5M2") == [-1.5]
    assert values("i8") == [-128]
    assert values("i64") == [-1]
    assert all(type(v) is int and v in (0, 1) for v in values("i1"))


def test_a_location_is_the_users_line_even_inside_of_the_library() -> None:
    lines, first = inspect.getsourcelines(nested_library_call.fn)
    helper, helper_first = inspect.getsourcelines(helper_of_user.fn)
    at = {line.strip(): first + i for i, line in enumerate(lines)}
    module = read("nested_library_call")
    (reduce,) = operations(module, "tt.reduce")
    (add,) = operations(module, "arith.addf")
    assert reduce.loc == ir.Loc(__file__, at["total = tl.sum(x)"])
    assert add.loc == reduce.loc
    (multiply,) = operations(module, "arith.mulf")
    assert multiply.loc == ir.Loc(__file__, helper_first + len(helper) - 1)


@pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="this Triton has no atomic loads")
def test_atomic_loads_and_stores() -> None:
    module = read("waiting")
    (load,) = operations(module, "tt.atomic_load")
    assert load.attrs == {"sem": "acquire", "scope": "gpu"}
    (store,) = operations(module, "tt.atomic_store")
    assert (len(store.operands), store.attrs["sem"]) == (3, "relaxed")
    assert [len(op.operands) for op in operations(module, "tt.atomic_poll")] == [2, 3]


def function(body: str, arguments: str = "%a: i32, %b: i32, %p: !tt.ptr<f32>") -> ir.Function:
    text = f"module {{\n  tt.func public @f({arguments}) {{\n{body}\n    tt.return\n  }}\n}}\n"
    return ttir.parse(text).entry


def test_forms_that_triton_rarely_prints() -> None:
    ops = (
        function(
            """
        %sum, %carry = arith.addui_extended %a, %b : i32, i1
        %low, %high = arith.mulsi_extended %a, %b : i32
        %0 = arith.addi %a, %b overflow<nsw, nuw> : i32
        %1 = scf.execute_region -> i32 {
          scf.yield %0 : i32
        }
        scf.for unsigned %i = %a to %b step %0  : i32 {
        }
        %2 = ub.poison : tensor<4x!tt.ptr<f32>>
        %3:2 = "some.thing"(%a, %p) {flag, deep = [1, {x = "y"}]} : (i32, !tt.ptr<f32>) -> (i32, i1)
        gpu.barrier
        """
        )
        .body.blocks[0]
        .ops
    )
    extended, product, add, region, loop, poison, generic, barrier, end = ops
    assert [str(r.type) for r in extended.results] == ["i32", "i1"]
    assert [str(r.type) for r in product.results] == ["i32", "i32"]
    assert add.attrs == {"overflow": ["nsw", "nuw"]}
    assert [str(r.type) for r in region.results] == ["i32"]
    assert loop.attrs == {"unsigned": True}
    assert poison.result.type == ir.Type("ptr", (4,), ir.Type("f32"))
    assert generic.attrs == {"flag": True, "deep": [1, {"x": "y"}]}
    assert [r.name for r in generic.results] == ["3#0", "3#1"]
    assert (barrier.name, end.name) == ("gpu.barrier", "tt.return")


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("dense<[[1, -2], [3, 4]]> : tensor<2x2xi32>", [1, -2, 3, 4]),
        ("dense<[true, false]> : tensor<2xi1>", [1, 0]),
        ("dense<[1.5, 0xFF800000]> : tensor<2xf32>", [1.5, -math.inf]),
        ('dense<"0x01000000FEFFFFFF"> : tensor<2xi32>', [1, -2]),
        ('dense<"0x003C00C0"> : tensor<2xf16>', [1.0, -2.0]),
        ("0x7F : f8E4M3FN", math.nan),
        ("0x7C : f8E5M2", math.inf),
        ("5 : index", 5),
        ("true", 1),
    ],
)
def test_literals(literal: str, value: Any) -> None:
    found = function(f"%0 = arith.constant {literal}").body.blocks[0].ops[0].attrs["value"]
    assert found == value or (math.isnan(value) and math.isnan(found))


def test_a_value_may_be_used_in_a_block_before_the_one_that_defines_it() -> None:
    body = function(
        """
        cf.br ^bb2
      ^bb1:
        %1 = arith.addi %0, %a : i32
        tt.return
      ^bb2:
        %0 = arith.addi %a, %b : i32
        cf.br ^bb1
      ^bb3:
        """
    ).body
    assert body.blocks[1].ops[0].operands[0] is body.blocks[2].ops[0].result


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ('"k.py":7:3', "k.py:7"),
        ('"k.py":7:3 to :9', "k.py:7"),
        ('"name"("k.py":7:3)', "k.py:7"),
        ('callsite("/x/triton/language/core.py":1:1 at "k.py":7:3)', "k.py:7"),
        ('callsite("lib.py":2:1 at "k.py":7:3)', "lib.py:2"),
        ("callsite(unknown at #loc9)", "other.py:4"),
        ('fused<"inlined">["k.py":7:3, "m.py":1:1]', "k.py:7"),
        ("unknown", "unknown location"),
        ('"name"', "unknown location"),
    ],
)
def test_locations(location: str, expected: str) -> None:
    text = f"module {{\n  tt.func public @f() {{\n    tt.return loc({location})\n  }}\n}}\n"
    module = ttir.parse(f'{text}#loc8 = loc("other.py":4:2)\n#loc9 = loc("x"(#loc8))\n')
    assert str(module.entry.body.blocks[0].ops[0].loc) == expected


def test_types_without_a_word_for_them_keep_their_text() -> None:
    arguments = "%t: !ttg.async.token, %u: tensor<4xf32, #enc>, %v: !tt.tensordesc<tensor<4xf16>>"
    types = [a.type for a in function("", arguments).args]
    texts = ["!ttg.async.token", "tensor<4xf32, #enc>", "!tt.tensordesc<tensor<4xf16>>"]
    assert types == [ir.Type(text) for text in texts]


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("%0 = tt.new_thing %a, mode = [%b] : i32", "tt.new_thing"),
        ("%0 = tt.new_thing %a sideways : i32", "tt.new_thing"),
        ("%0 = tt.new_thing %a : i64", "tt.new_thing"),
        ("%0 = tt.new_thing %a, %b : i32, i32", "tt.new_thing"),
        ("%0 = arith.addi %a, %p : i32", "arith.addi"),
        ("%0 = arith.constant 5", "arith.constant"),
        ("tt.store %p, %a : !tt.ptr<f32>", "tt.store"),
        ("%0 = tt.load %p, %a : !tt.ptr<f32>", "tt.load"),
        ("tt.store %p : !tt.ptr<f32>", "tt.store"),
        ("%0 = arith.select %c, %a : i32", "arith.select"),
        ("%0, %1 = arith.addui_extended %a : i32, i1", "arith.addui_extended"),
        ("tt.return %a, %a : i32", "tt.return"),
        ("cf.br ^bb7", "tt.func @f"),
        ("%0 = arith.addi %a, %later : i32", "tt.func @f"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(line: str, operation: str) -> None:
    with pytest.raises(CompileError) as caught:
        function(line + ' loc("kernel.py":12:1)')
    assert caught.value.operation == operation


def test_a_location_that_does_not_end_is_refused_by_the_operations_name() -> None:
    with pytest.raises(CompileError, match=r"tt\.load.*its location does not end"):
        function('%0 = tt.load %p : !tt.ptr<f32> loc("kernel.py":12:1')


def test_a_refusal_names_the_users_line() -> None:
    with pytest.raises(CompileError, match=r"tt\.new_thing at kernel\.py:12"):
        function('%0 = tt.new_thing %a sideways : i32 loc("kernel.py":12:1)')


@pytest.mark.parametrize("text", ["", "module {", "module {\n}", "not mlir", "module {\n tt.func"])
def test_text_that_is_not_a_module_is_refused(text: str) -> None:
    with pytest.raises(CompileError):
        ttir.parse(text)
