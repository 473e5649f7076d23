"""Writes blocks, branches, loops and calls.

Scalars flow through phi nodes, tensors through buffers: every loop variable and every result of an
`if` has one, and its next value is computed into that buffer.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.faults import unexpected
from tritune.cpu.lower.analysis.shapes import origin
from tritune.cpu.lower.analysis.usage import is_eager, walk
from tritune.cpu.lower.context import ZERO, Buffer, Context, row_major
from tritune.cpu.lower.emit import effects, elementwise, nests, prefetch, reduce
from tritune.cpu.lower.emit.carried import LoopCarried
from tritune.cpu.lower.emit.lazy_tensors import Nest, can_evaluate, constant_value
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.dot import emit_dot, plan_dots
from tritune.cpu.lower.gemm.skinny import uses_bf16_dot
from tritune.cpu.lower.llvm import (
    I32,
    constant,
    global_constant,
    i64,
    memory_type,
    scalar_type,
)
from tritune.cpu.lower.schedule import nest as schedule
from tritune.errors import CompileError

_BROADCASTS = frozenset("tt.broadcast tt.expand_dims tt.splat".split())
_IGNORED = frozenset("ttg.barrier gpu.barrier llvm.intr.assume tt.assume ttg.async_wait".split())


class FunctionLowering:
    """Writes one function, operation by operation in program order."""

    def __init__(self, ctx: Context, function: ir.Function) -> None:
        self.ctx = ctx
        self.function = function
        self.products = plan_dots(ctx.usage, function, ctx.layout)
        self.blocks: dict[ir.Block, ll.Block] = {}
        self.phis: dict[ir.Value, ll.Instruction] = {}
        self._depth: dict[ir.Value, int] = {}
        self.rules: dict[str, Callable[[ir.Op], None]] = {
            "tt.store": lambda op: nests.emit_store(ctx, op),
            "tt.reduce": lambda op: reduce.emit_reduce(ctx, op),
            "tt.scan": lambda op: reduce.emit_scan(ctx, op),
            "tt.dot": lambda op: emit_dot(ctx, op, self.products[op]),
            "tt.atomic_rmw": lambda op: effects.emit_atomic(ctx, op),
            "tt.atomic_cas": lambda op: effects.emit_atomic(ctx, op),
            "tt.print": lambda op: effects.emit_print(ctx, op),
            "tt.assert": lambda op: effects.emit_assert(ctx, op),
            "tt.histogram": lambda op: effects.emit_histogram(ctx, op),
            "tt.gather": lambda op: effects.emit_gather(ctx, op),
            "tt.reshape": self._reshape,
            "tt.cat": self._cat,
            "tt.unsplat": self._unsplat,
            "tt.call": self._call,
            "tt.return": self._return,
            "scf.for": self._for,
            "scf.while": self._while,
            "scf.if": self._if,
            "cf.br": self._branch,
            "cf.cond_br": self._conditional_branch,
        }

    def run(self) -> None:
        blocks = self.function.body.blocks
        e = self.ctx.e
        for block in blocks[1:]:
            self.blocks[block] = e.function.append_basic_block("bb")
            for arg in block.args:
                if arg.type.rank:
                    self.ctx.set(arg, self.ctx.buffer_of(arg))
        self.block(blocks[0])
        for block in blocks[1:]:
            e.b.position_at_end(self.blocks[block])
            for arg in block.args:
                if not arg.type.rank:
                    self.ctx.set(arg, self.phis[arg])
            # A block that this one does not dominate must not use the buffers filled here.
            with self.ctx.scope():
                self.block(block)
                kept = {r: self.ctx.get(r) for op in block.ops for r in op.results}
            for value, held in kept.items():
                if held is not None:
                    self.ctx.set(value, held)
        self.ctx.release_heap()

    def block(self, block: ir.Block) -> None:
        for op in block.ops:
            if op.name in ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return"):
                return
            try:
                self.operation(op)
            except (CompileError, MemoryError):
                raise
            except Exception as error:
                raise unexpected(op.name, op.loc, error) from error

    def operation(self, op: ir.Op) -> None:
        ctx = self.ctx
        if op.name in _IGNORED:
            return
        if ctx.usage.writes(op) and op.name != "tt.store":
            nests.materialise_pending_loads(ctx, op)
        rule = self.rules.get(op.name)
        if rule is not None and (op.name != "tt.reshape" or is_eager(op)):
            rule(op)
        elif op.results and all(r.type.rank == 0 for r in op.results):
            self._scalar(op)
        elif op.results:
            self._lazy(op)
        else:
            raise CompileError(op.name, "the CPU backend has no lowering for it", str(op.loc))

    def _lazy(self, op: ir.Op) -> None:
        """Emit nothing, but refuse what could not be evaluated later."""
        ctx = self.ctx
        if not can_evaluate(op):
            raise CompileError(op.name, "the CPU backend has no lowering for it", str(op.loc))
        for result in op.results:
            if op.name == "tt.load":
                ctx.note_load(result)
            depths = [self._depth.get(o, 0) for o in op.operands if ctx.get(o) is None]
            self._depth[result] = depth = 1 + max(depths, default=0)
            if depth > schedule.LONGEST_CHAIN:
                nests.materialise(ctx, result, op)
                self._depth[result] = 0
        if op.name == "arith.constant" and isinstance(op.attrs["value"], list):
            elem, shape = op.result.type.elem, op.result.type.shape
            values = list(op.attrs["value"])
            place = global_constant(ctx.kernel.module, "table", memory_type(elem), values)
            ctx.set(op.result, Buffer(place, elem, shape, row_major(shape)))

    def _scalar(self, op: ir.Op) -> None:
        ctx, name = self.ctx, op.name
        if name == "arith.constant":
            ctx.set(op.result, constant_value(op))
        elif name == "tt.get_program_id":
            ctx.set(op.result, ctx.program.ids[op.attrs["axis"]])
        elif name == "tt.get_num_programs":
            ctx.set(op.result, ctx.program.counts[op.attrs["axis"]])
        elif name == "tt.load":
            ctx.set(op.result, nests.load_scalar(ctx, op))
        elif name == "ub.poison":
            ctx.set(op.result, constant(scalar_type(op.result.type.elem), 0))
        elif len(op.results) == 1 and all(o.type.rank == 0 for o in op.operands):
            args = [ctx.scalar(o) for o in op.operands]
            ctx.set(op.result, elementwise.emit(ctx.e, op, args))
        else:
            raise CompileError(name, "the CPU backend has no lowering for it", str(op.loc))

    def _reshape(self, op: ir.Op) -> None:
        """Show a tensor's row-major buffer in another shape."""
        ctx, source = self.ctx, op.operands[0]
        held = ctx.get(source)
        if not isinstance(held, Buffer) or not held.is_row_major:
            into = ctx.buffer_of(source)
            with ctx.scope():
                nests.materialise(ctx, source, op, into=into)
            held = into
            ctx.set(source, into)
        shape = op.result.type.shape
        ctx.set(op.result, Buffer(held.memory, held.elem, shape, row_major(shape)))

    def _cat(self, op: ir.Op) -> None:
        ctx, result = self.ctx, op.result
        whole = ctx.buffer_of(result)
        place = 0
        for part in op.operands:
            memory = ctx.b.gep(whole.memory, [i64(place)], source_etype=memory_type(whole.elem))
            into = Buffer(memory, whole.elem, part.type.shape, whole.strides)
            with ctx.scope():
                nests.materialise(ctx, part, op, into)
            place += part.type.shape[0] * whole.strides[0]
        ctx.set(result, whole)

    def _unsplat(self, op: ir.Op) -> None:
        first = (ZERO,) * op.operands[0].type.rank
        self.ctx.set(op.result, Nest(self.ctx, 1).at(op.operands[0], first).x)

    def _return(self, op: ir.Op) -> None:
        ctx = self.ctx
        if len(op.operands) <= 1:
            ctx.emit_return(*(ctx.scalar(value) for value in op.operands))
            return
        kind = ctx.e.function.function_type.return_type
        results: ll.Value = ll.Constant(kind, ll.Undefined)
        for place, value in enumerate(op.operands):
            results = ctx.b.insert_value(results, ctx.scalar(value), place)
        ctx.emit_return(results)

    def _call(self, op: ir.Op) -> None:
        ctx = self.ctx
        callee = op.attrs["callee"]
        program = [*ctx.program.ids, *ctx.program.counts, ctx.program.status]
        args = [*(ctx.scalar(o) for o in op.operands), *program]
        outcome = ctx.b.call(ctx.kernel.functions[callee], args)
        if callee in ctx.kernel.asserting:
            status = ctx.b.load(ctx.program.status, typ=I32)
            failed = ctx.b.icmp_unsigned("!=", status, ll.Constant(I32, 0))
            with ctx.b.if_then(failed, likely=False):
                effects.return_early(ctx)
        for place, result in enumerate(op.results):
            several = len(op.results) > 1
            ctx.set(result, ctx.b.extract_value(outcome, place) if several else outcome)

    def _leave_block(self, op: ir.Op, target: ir.Block, values: list[ir.Value]) -> None:
        """Pass values to the arguments of a block and branch to it."""
        ctx = self.ctx
        here = ctx.b.block
        for arg, value in zip(target.args, values, strict=True):
            buffer = ctx.get(arg) if arg.type.rank else None
            if isinstance(buffer, Buffer):
                with ctx.scope():
                    nests.materialise(ctx, value, op, into=buffer)
                here = ctx.b.block
        for arg, value in zip(target.args, values, strict=True):
            if not arg.type.rank:
                if arg not in self.phis:
                    builder = ll.IRBuilder(self.blocks[target])
                    builder.position_at_start(self.blocks[target])
                    self.phis[arg] = builder.phi(scalar_type(arg.type.elem))
                self.phis[arg].add_incoming(ctx.scalar(value), here)
        ctx.b.branch(self.blocks[target])

    def _branch(self, op: ir.Op) -> None:
        nests.materialise_pending_loads(self.ctx, op)
        self._leave_block(op, *op.successors[0])

    def _conditional_branch(self, op: ir.Op) -> None:
        ctx = self.ctx
        nests.materialise_pending_loads(ctx, op)
        condition = ctx.scalar(op.operands[0])
        edges = [ctx.e.function.append_basic_block("edge") for _ in op.successors]
        ctx.b.cbranch(condition, *edges)
        for edge, (target, values) in zip(edges, op.successors, strict=True):
            ctx.b.position_at_end(edge)
            self._leave_block(op, target, values)

    def _hoist(self, op: ir.Op) -> None:
        """Compute before a loop what its body would compute in every iteration."""
        ctx = self.ctx
        inside = [inner for region in op.regions for inner in walk(region)]
        for inner in inside:
            for value in inner.operands:
                if value.type.rank == 0 or ctx.get(value) is not None or value.owner is None:
                    continue
                if value.owner in inside or value not in self._depth:
                    continue
                value = self._as_multiplied(inner, value)
                if ctx.get(value) is not None:
                    continue
                # A broadcast costs nothing to evaluate: its operand should be computed once.
                value = origin(value, _BROADCASTS, stop=ctx.layout.__contains__)
                if value.type.rank == 0 or ctx.get(value) is not None:
                    continue
                weights = [schedule.weight(ctx, v) for v in schedule.lazy_nodes(ctx, [value])]
                if max(weights, default=0) >= 2 or sum(weights) > 4:
                    nests.materialise(ctx, value, op)

    def _as_multiplied(self, op: ir.Op, value: ir.Value) -> ir.Value:
        """Return what an operation reads: the bf16 behind an f32 operand if it multiplies those."""
        gemm = self.products[op].gemm if op in self.products else None
        if gemm is None or value is not gemm.stationary or not uses_bf16_dot(self.ctx, gemm):
            return value
        narrow = pairs.bf16_source(value)
        assert narrow is not None
        return narrow

    def _loop_blocks(self, name: str) -> tuple[ll.Block, ll.Block, ll.Block, ll.Block]:
        """Enter a new loop's head; return the blocks before it, its head, its body, its end."""
        b = self.ctx.b
        before = b.block
        head, body, end = (b.append_basic_block(f"{name}.{p}") for p in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        return before, head, body, end

    def _for(self, op: ir.Op) -> None:
        ctx, b = self.ctx, self.ctx.b
        self._hoist(op)
        body = op.regions[0].blocks[0]
        lower, upper, step = (ctx.scalar(o) for o in op.operands[:3])
        carried = LoopCarried(ctx, op, body.args[1:], op.operands[3:])
        before, head, inside, end = self._loop_blocks("for")
        index = b.phi(lower.type, "iv")
        index.add_incoming(lower, before)
        carried.enter(before)
        compare = b.icmp_unsigned if op.attrs.get("unsigned") else b.icmp_signed
        b.cbranch(compare("<", index, upper), inside, end)
        b.position_at_end(inside)
        with ctx.scope():
            is_first, remaining = b.icmp_unsigned("==", index, lower), b.sub(upper, index)
            outer = ctx.loop
            ctx.loop = prefetch.loop_info(op, is_first, step, remaining)
            ctx.set(body.args[0], index)
            carried.bind(body.args[1:])
            carried.compute_in_place(body)
            self.block(body)
            carried.advance(body.ops[-1], body.ops[-1].operands)
            index.add_incoming(b.add(index, step), b.block)
            carried.close(b.block)
            b.branch(head)
            ctx.loop = outer
        b.position_at_end(end)
        carried.bind(op.results)

    def _while(self, op: ir.Op) -> None:
        ctx, b = self.ctx, self.ctx.b
        self._hoist(op)
        before_block, after_block = (region.blocks[0] for region in op.regions)
        carried = LoopCarried(ctx, op, before_block.args, op.operands)
        start, head, inside, end = self._loop_blocks("while")
        carried.enter(start)
        with ctx.scope():
            carried.bind(before_block.args)
            self.block(before_block)
            condition = before_block.ops[-1]
            passed = [
                nests.materialise(ctx, value, condition) if value.type.rank else ctx.scalar(value)
                for value in condition.operands[1:]
            ]
            nests.materialise_pending_loads(ctx, condition)
            b.cbranch(ctx.scalar(condition.operands[0]), inside, end)
            b.position_at_end(inside)
            with ctx.scope():
                for arg, held in zip(after_block.args, passed, strict=True):
                    ctx.set(arg, held)
                self.block(after_block)
                carried.advance(after_block.ops[-1], after_block.ops[-1].operands)
                carried.close(b.block)
                b.branch(head)
        b.position_at_end(end)
        for result, held in zip(op.results, passed, strict=True):
            ctx.set(result, held)

    def _if(self, op: ir.Op) -> None:
        ctx, b = self.ctx, self.ctx.b
        buffers = {r: ctx.buffer_of(r, ctx.layout.get(r)) for r in op.results if r.type.rank}
        branches = [b.append_basic_block("then"), b.append_basic_block("else")]
        end = b.append_basic_block("if.end")
        b.cbranch(ctx.scalar(op.operands[0]), *branches)
        incoming: list[tuple[ll.Block, dict[ir.Value, ll.Value]]] = []
        for number, branch in enumerate(branches):
            b.position_at_end(branch)
            scalars: dict[ir.Value, ll.Value] = {}
            if number < len(op.regions) and op.regions[number].blocks:
                with ctx.scope():
                    block = op.regions[number].blocks[0]
                    self.block(block)
                    yielded = dict(zip(op.results, block.ops[-1].operands, strict=False))
                    for result, buffer in buffers.items():
                        nests.materialise(ctx, yielded[result], block.ops[-1], into=buffer)
                    scalars = {r: ctx.scalar(v) for r, v in yielded.items() if r not in buffers}
            incoming.append((b.block, scalars))
            b.branch(end)
        b.position_at_end(end)
        for result in op.results:
            if result in buffers:
                ctx.set(result, buffers[result])
                continue
            phi = b.phi(scalar_type(result.type.elem))
            for source, scalars in incoming:
                phi.add_incoming(scalars[result], source)
            ctx.set(result, phi)
