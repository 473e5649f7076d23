"""Lowers the backend's IR to LLVM IR. Nothing here knows Triton, torch or how the result is run.

| stage | what it does |
|---|---|
| `rewrite.py` | changes the IR, to make the rest simpler |
| `analysis/` | collects facts: users, strides, affine ranges |
| `schedule/` | decides how each loop nest is written |
| `emit/` | writes control flow, loop nests and the value of a lazy tensor at one point |
| `gemm/` | writes matrix products: the micro-kernel, and skinny GEMM |
| `math/` | writes `exp2`, `log` and their kin as vector code |
| `llvm.py`, `context.py` | LLVM types and building blocks; the state of a lowering |
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.features import Cpu
from tritune.cpu.launch.entry import emit_launch
from tritune.cpu.lower.analysis.usage import Usage, walk
from tritune.cpu.lower.context import Context, Kernel, Program
from tritune.cpu.lower.emit.control import FunctionLowering
from tritune.cpu.lower.llvm import I32, PTR, Emitter, i64, scalar_type
from tritune.cpu.lower.rewrite import rewrite
from tritune.errors import CompileError


def lower(module: ir.Module, options: Any, cpu: Cpu, metadata: dict[str, Any]) -> str:
    """LLVM IR of a kernel: one function that runs one program, and `tritune_launch`, which runs all
    of them.
    """
    target = ll.Module(module.entry.name)
    target.triple = cpu.triple
    kernel = Kernel(target, options, cpu, metadata)
    metadata.setdefault("asserts", [])
    for function in module.functions:
        rewrite(function, bool(options.enable_fp_fusion), kernel.multiplies_bf16)
        if not function.public:
            kernel.functions[function.name] = _declare_helper(kernel, function)
    _find_asserting(kernel, module)
    for function in module.functions:
        if not function.public:
            _lower_helper(kernel, function)
    program = _lower_entry(kernel, module.entry)
    emit_launch(target, program, kernel.uses_nontemporal)
    return str(target)


def _find_asserting(kernel: Kernel, module: ir.Module) -> None:
    """Which helpers may stop at an assertion, directly or through another."""
    calls = {
        f.name: [op for op in walk(f.body) if op.name in ("tt.call", "tt.assert")]
        for f in module.functions
    }
    changed = True
    while changed:
        changed = False
        for name, ops in calls.items():
            if name in kernel.asserting:
                continue
            if any(
                op.name == "tt.assert" or op.attrs.get("callee") in kernel.asserting for op in ops
            ):
                kernel.asserting.add(name)
                changed = True


def _declare_helper(kernel: Kernel, function: ir.Function) -> ll.Function:
    if any(t.rank for t in [*function.results, *(a.type for a in function.args)]):
        raise CompileError(
            "tt.call",
            f"{function.name} is not inlined, and takes or returns tensors",
            str(function.loc),
        )
    results = [scalar_type(t.elem) for t in function.results]
    kind = (
        ll.VoidType()
        if not results
        else results[0]
        if len(results) == 1
        else ll.LiteralStructType(results)
    )
    args = [scalar_type(a.type.elem) for a in function.args] + [I32] * 6 + [PTR]
    helper = ll.Function(kernel.module, ll.FunctionType(kind, args), f"helper.{function.name}")
    helper.linkage = "internal"
    return helper


def _lower_helper(kernel: Kernel, function: ir.Function) -> None:
    helper = kernel.functions[function.name]
    count = len(function.args)
    ids, counts, status = (
        helper.args[count : count + 3],
        helper.args[count + 3 : count + 6],
        helper.args[-1],
    )
    ctx = Context(
        kernel, Emitter(helper), Usage(function), Program(tuple(ids), tuple(counts), status)
    )
    for arg, value in zip(function.args, helper.args[:count], strict=True):
        ctx.set(arg, value)
    FunctionLowering(ctx, function).run()


def _lower_entry(kernel: Kernel, function: ir.Function) -> ll.Function:
    kind = ll.FunctionType(ll.VoidType(), [PTR] + [I32] * 6 + [PTR])
    program = ll.Function(kernel.module, kind, f"program.{function.name}")
    program.attributes.add("noinline")
    slots, *grid, status = program.args
    e = Emitter(program)
    ctx = Context(kernel, e, Usage(function), Program(tuple(grid[:3]), tuple(grid[3:]), status))
    for number, arg in enumerate(function.args):
        place = e.b.gep(slots, [i64(number * 8)], source_etype=ll.IntType(8))
        if arg.type.elem == "i1":
            raw = e.b.load(place, typ=ll.IntType(8), align=8)
            ctx.set(arg, e.b.trunc(raw, ll.IntType(1)))
        else:
            ctx.set(arg, e.b.load(place, typ=scalar_type(arg.type.elem), align=8))
    FunctionLowering(ctx, function).run()
    return program
