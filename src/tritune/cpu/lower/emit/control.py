"""Blocks, branches, loops and calls.

Scalars flow through phi nodes. Tensors that flow through control flow do so in buffers: every loop
variable, every result of an `if` has one, and whoever passes a value on computes it right into that
buffer.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.faults import unexpected
from tritune.cpu.lower.analysis.usage import is_eager, walk
from tritune.cpu.lower.context import Buffer, Context, row_major
from tritune.cpu.lower.emit import effects, elementwise, nests, prefetch, reduce
from tritune.cpu.lower.emit.carried import LoopCarried
from tritune.cpu.lower.emit.evaluate import EVALUATED, Nest, constant_value
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.dot import emit_dot, plan_dots
from tritune.cpu.lower.gemm.skinny import uses_bf16_dot
from tritune.cpu.lower.llvm import I32, PTR, constant, i64, memory_type, scalar_type
from tritune.cpu.lower.schedule import nest as schedule
from tritune.errors import CompileError

_BROADCASTS = frozenset("tt.broadcast tt.expand_dims tt.splat".split())
_IGNORED = frozenset("ttg.barrier gpu.barrier llvm.intr.assume tt.assume ttg.async_wait".split())


class FunctionLowering:
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
                    self.ctx.set(arg, self.ctx.new_buffer(arg.type.elem, arg.type.shape))
        self.block(blocks[0])
        for block in blocks[1:]:
            e.b.position_at_end(self.blocks[block])
            for arg in block.args:
                if not arg.type.rank:
                    self.ctx.set(arg, self.phis[arg])
            # What this block puts into buffers is not there for a block that is reached around it.
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
        """Nothing is emitted; refuse now what could not be evaluated later."""
        ctx = self.ctx
        if not _can_evaluate(op):
            raise CompileError(op.name, "the CPU backend has no lowering for it", str(op.loc))
        for result in op.results:
            if op.name == "tt.load":
                ctx.note_load(result)
            depth = 1 + max(
                (self._depth.get(o, 0) for o in op.operands if ctx.get(o) is None), default=0
            )
            self._depth[result] = depth
            if depth > schedule.LONGEST_CHAIN:
                nests.materialise(ctx, result, op)
                self._depth[result] = 0
        if op.name == "arith.constant" and isinstance(op.attrs["value"], list):
            self._constant_table(op)

    def _constant_table(self, op: ir.Op) -> None:
        ctx, result = self.ctx, op.result
        kind = scalar_type(result.type.elem) if result.type.elem != "i1" else ll.IntType(8)
        table = ll.ArrayType(kind, result.type.numel)
        place = ll.GlobalVariable(
            ctx.kernel.module, table, ctx.kernel.module.get_unique_name("table")
        )
        place.linkage, place.global_constant = "internal", True
        place.initializer = ll.Constant(table, list(op.attrs["value"]))
        shape = result.type.shape
        ctx.set(result, Buffer(place.bitcast(PTR), result.type.elem, shape, row_major(shape)))

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
        """Row-major tensors have the same elements in the same order whatever their shape."""
        ctx, source = self.ctx, op.operands[0]
        held = ctx.get(source)
        unroll_up_to = row_major(source.type.shape)
        if not isinstance(held, Buffer) or _differ(held.strides, unroll_up_to, source.type.shape):
            into = ctx.new_buffer(source.type.elem, source.type.shape)
            with ctx.scope():
                nests.materialise(ctx, source, op, into=into)
            held = into
            ctx.set(source, into)
        shape = op.result.type.shape
        ctx.set(op.result, held.viewed(shape, row_major(shape)))

    def _cat(self, op: ir.Op) -> None:
        ctx, result = self.ctx, op.result
        whole = ctx.new_buffer(result.type.elem, result.type.shape)
        place = 0
        for part in op.operands:
            memory = ctx.b.gep(whole.memory, [i64(place)], source_etype=memory_type(whole.elem))
            with ctx.scope():
                nests.materialise(
                    ctx, part, op, Buffer(memory, whole.elem, part.type.shape, whole.strides)
                )
            place += part.type.shape[0] * whole.strides[0]
        ctx.set(result, whole)

    def _unsplat(self, op: ir.Op) -> None:
        nest = Nest(self.ctx, 1)
        self.ctx.set(op.result, nest.at(op.operands[0], nests.element_zero(op.operands[0])).x)

    def _return(self, op: ir.Op) -> None:
        ctx = self.ctx
        if not op.operands:
            ctx.emit_return()
        elif len(op.operands) == 1:
            ctx.emit_return(ctx.scalar(op.operands[0]))
        else:
            kind = ctx.e.function.function_type.return_type
            pack: ll.Value = ll.Constant(kind, ll.Undefined)
            for place, value in enumerate(op.operands):
                pack = ctx.b.insert_value(pack, ctx.scalar(value), place)
            ctx.emit_return(pack)

    def _call(self, op: ir.Op) -> None:
        ctx = self.ctx
        callee = op.attrs["callee"]
        args = [ctx.scalar(o) for o in op.operands]
        outcome = ctx.b.call(ctx.kernel.functions[callee], [*args, *ctx.program.as_args])
        if callee in ctx.kernel.asserting:
            failed = ctx.b.icmp_unsigned(
                "!=", ctx.b.load(ctx.program.status, typ=I32), ll.Constant(I32, 0)
            )
            with ctx.b.if_then(failed, likely=False):
                effects.return_early(ctx)
                ctx.b.position_at_end(ctx.b.append_basic_block("unreachable"))
        if len(op.results) == 1:
            ctx.set(op.result, outcome)
        else:
            for place, result in enumerate(op.results):
                ctx.set(result, ctx.b.extract_value(outcome, place))

    def _leave_block(self, op: ir.Op, target: ir.Block, values: list[ir.Value]) -> None:
        """Pass values to the arguments of a block that is about to be entered."""
        ctx = self.ctx
        here = ctx.b.block
        for arg, value in zip(target.args, values, strict=True):
            if arg.type.rank:
                buffer = ctx.get(arg)
                assert isinstance(buffer, Buffer)
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

    def _branch(self, op: ir.Op) -> None:
        nests.materialise_pending_loads(self.ctx, op)
        target, values = op.successors[0]
        self._leave_block(op, target, values)
        self.ctx.b.branch(self.blocks[target])

    def _conditional_branch(self, op: ir.Op) -> None:
        ctx = self.ctx
        nests.materialise_pending_loads(ctx, op)
        condition = ctx.scalar(op.operands[0])
        edges = [ctx.e.function.append_basic_block("edge") for _ in op.successors]
        ctx.b.cbranch(condition, *edges)
        for edge, (target, values) in zip(edges, op.successors, strict=True):
            ctx.b.position_at_end(edge)
            self._leave_block(op, target, values)
            ctx.b.branch(self.blocks[target])

    def _hoist(self, op: ir.Op) -> None:
        """Before a loop: compute once what its body would compute in every iteration."""
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
                # A broadcast costs nothing to evaluate: what is spread out is what should be
                # computed once.
                while (
                    value not in ctx.layout
                    and value.owner is not None
                    and value.owner.name in _BROADCASTS
                ):
                    value = value.owner.operands[0]
                if value.type.rank == 0 or ctx.get(value) is not None:
                    continue
                nodes = schedule.lazy_nodes(ctx, [value])
                if (
                    any(schedule.weight(ctx, v) >= 2 for v in nodes)
                    or schedule.cost(ctx, value) > 4
                ):
                    nests.materialise(ctx, value, op)

    def _as_multiplied(self, op: ir.Op, value: ir.Value) -> ir.Value:
        """What an operation reads of an operand: of bf16 that it would multiply as such, these."""
        gemm = self.products[op].gemm if op in self.products else None
        if gemm is None or value is not gemm.stationary or not uses_bf16_dot(self.ctx, gemm):
            return value
        narrow = pairs.bf16_source(value)
        assert narrow is not None
        return narrow

    def _for(self, op: ir.Op) -> None:
        ctx, b = self.ctx, self.ctx.b
        self._hoist(op)
        body = op.regions[0].blocks[0]
        lower, upper, step = (ctx.scalar(o) for o in op.operands[:3])
        carried = LoopCarried(ctx, op, body.args[1:], op.operands[3:])
        before = b.block
        head = b.append_basic_block("for.head")
        inside = b.append_basic_block("for.body")
        end = b.append_basic_block("for.end")
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(lower.type, "iv")
        index.add_incoming(lower, before)
        carried.enter(before)
        compare = b.icmp_unsigned if op.attrs.get("unsigned") else b.icmp_signed
        b.cbranch(compare("<", index, upper), inside, end)
        b.position_at_end(inside)
        with ctx.scope():
            first, left = b.icmp_unsigned("==", index, lower), b.sub(upper, index)
            around = ctx.loop
            ctx.loop = prefetch.loop_info(op, _values_inside(op), first, step, left)
            ctx.set(body.args[0], index)
            carried.bind(body.args[1:])
            carried.compute_in_place(body)
            self.block(body)
            carried.advance(body.ops[-1], body.ops[-1].operands)
            following = b.add(index, step)
            index.add_incoming(following, b.block)
            carried.close(b.block)
            b.branch(head)
            ctx.loop = around
        b.position_at_end(end)
        carried.bind(op.results)

    def _while(self, op: ir.Op) -> None:
        ctx, b = self.ctx, self.ctx.b
        self._hoist(op)
        before_block, after_block = (region.blocks[0] for region in op.regions)
        carried = LoopCarried(ctx, op, before_block.args, op.operands)
        start = b.block
        head = b.append_basic_block("while.head")
        inside = b.append_basic_block("while.body")
        end = b.append_basic_block("while.end")
        b.branch(head)
        b.position_at_end(head)
        carried.enter(start)
        with ctx.scope():
            carried.bind(before_block.args)
            self.block(before_block)
            condition = before_block.ops[-1]
            passed = []
            for value in condition.operands[1:]:
                passed.append(
                    nests.materialise(ctx, value, condition)
                    if value.type.rank
                    else ctx.scalar(value)
                )
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
        targets = [
            ctx.new_buffer(r.type.elem, r.type.shape, ctx.layout.get(r)) if r.type.rank else None
            for r in op.results
        ]
        edges = [b.append_basic_block("then"), b.append_basic_block("else")]
        end = b.append_basic_block("if.end")
        b.cbranch(ctx.scalar(op.operands[0]), *edges)
        arrivals: list[tuple[ll.Block, list[ll.Value | None]]] = []
        for number, edge in enumerate(edges):
            b.position_at_end(edge)
            scalars: list[ll.Value | None] = []
            if number < len(op.regions) and op.regions[number].blocks:
                with ctx.scope():
                    block = op.regions[number].blocks[0]
                    self.block(block)
                    yielded = block.ops[-1]
                    for value, buffer in zip(
                        yielded.operands if op.results else [], targets, strict=True
                    ):
                        if buffer is not None:
                            nests.materialise(ctx, value, yielded, into=buffer)
                    scalars = [
                        ctx.scalar(v) if buffer is None else None
                        for v, buffer in zip(
                            yielded.operands if op.results else [], targets, strict=True
                        )
                    ]
            arrivals.append((b.block, scalars))
            b.branch(end)
        b.position_at_end(end)
        for place, (result, buffer) in enumerate(zip(op.results, targets, strict=True)):
            if buffer is not None:
                ctx.set(result, buffer)
                continue
            phi = b.phi(scalar_type(result.type.elem))
            for block, scalars in arrivals:
                phi.add_incoming(scalars[place], block)
            ctx.set(result, phi)


def _values_inside(loop: ir.Op) -> set[ir.Value]:
    ops = list(walk(loop.regions[0]))
    args = [a for op in [loop, *ops] for r in op.regions for block in r.blocks for a in block.args]
    return {r for op in ops for r in op.results} | set(args)


def _differ(strides: tuple[int, ...], other: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return any(n > 1 and s != t for s, t, n in zip(strides, other, shape, strict=True))


def _can_evaluate(op: ir.Op) -> bool:
    return op.name in EVALUATED or elementwise.supported(op.name)
