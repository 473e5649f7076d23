"""Lowers the backend's IR to LLVM IR. Nothing here depends on Triton or torch.

| stage | what it does |
|---|---|
| `rewrite.py` | changes the IR, to make the rest simpler |
| `analysis/` | collects facts: users, strides, affine ranges |
| `schedule/` | plans each loop nest |
| `emit/` | writes control flow, loop nests and the value of a lazy tensor at one point |
| `gemm/` | writes matrix products: the micro-kernel, and skinny GEMM |
| `math/` | writes `exp2`, `log` and other functions as vector code |
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
from tritune.cpu.lower.llvm import I1, I8, I32, PTR, Emitter, i64, memory_type, scalar_type
from tritune.cpu.lower.rewrite import rewrite
from tritune.errors import CompileError

_MAY_STOP = ("tt.call", "tt.assert")


def lower(module: ir.Module, options: Any, cpu: Cpu, metadata: dict[str, Any]) -> str:
    """Return the LLVM IR of a kernel: a function for one program, and `tritune_launch`, which runs
    all of them.
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
    """Record which helpers may stop at an assertion, directly or through another."""
    calls = {
        f.name: {op.attrs.get("callee") for op in walk(f.body) if op.name in _MAY_STOP}
        for f in module.functions
    }
    # An assertion has no callee.
    found = {name for name, callees in calls.items() if None in callees}
    while found - kernel.asserting:
        kernel.asserting |= found
        found = {name for name, callees in calls.items() if callees & kernel.asserting}


def _declare_helper(kernel: Kernel, function: ir.Function) -> ll.Function:
    if any(t.rank for t in [*function.results, *(a.type for a in function.args)]):
        raise CompileError(
            "tt.call",
            f"{function.name} is not inlined, and takes or returns tensors",
            str(function.loc),
        )
    results = [scalar_type(t.elem) for t in function.results] or [ll.VoidType()]
    result = results[0] if len(results) == 1 else ll.LiteralStructType(results)
    args = [scalar_type(a.type.elem) for a in function.args] + [I32] * 6 + [PTR]
    helper = ll.Function(kernel.module, ll.FunctionType(result, args), f"helper.{function.name}")
    helper.linkage = "internal"
    return helper


def _context(kernel: Kernel, function: ir.Function, code: ll.Function) -> Context:
    """Return the state of lowering a function; its last arguments describe the program."""
    *_, x, y, z, x_count, y_count, z_count, status = code.args
    program = Program((x, y, z), (x_count, y_count, z_count), status)
    return Context(kernel, Emitter(code), Usage(function), program)


def _lower_helper(kernel: Kernel, function: ir.Function) -> None:
    helper = kernel.functions[function.name]
    ctx = _context(kernel, function, helper)
    for arg, value in zip(function.args, helper.args, strict=False):
        ctx.set(arg, value)
    FunctionLowering(ctx, function).run()


def _lower_entry(kernel: Kernel, function: ir.Function) -> ll.Function:
    kind = ll.FunctionType(ll.VoidType(), [PTR] + [I32] * 6 + [PTR])
    program = ll.Function(kernel.module, kind, f"program.{function.name}")
    program.attributes.add("noinline")
    ctx = _context(kernel, function, program)
    b = ctx.b
    for number, arg in enumerate(function.args):
        place = b.gep(program.args[0], [i64(number * 8)], source_etype=I8)
        value = b.load(place, typ=memory_type(arg.type.elem), align=8)
        ctx.set(arg, b.trunc(value, I1) if arg.type.elem == "i1" else value)
    FunctionLowering(ctx, function).run()
    return program
