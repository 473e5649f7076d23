"""Writes loop-carried variables: phi nodes for scalars, buffers for tensors.

A tensor variable has one buffer for all iterations. At the end of an iteration every variable gets
its next value, and none may be overwritten while another one's next value is computed from it
(`a, b = b, a + b`).
"""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.context import Buffer, Context
from tritune.cpu.lower.emit import nests
from tritune.cpu.lower.llvm import scalar_type
from tritune.cpu.lower.schedule import nest as schedule


class LoopCarried:
    """The variables of a loop: phi nodes for scalars, buffers for tensors."""

    def __init__(
        self, ctx: Context, op: ir.Op, args: list[ir.Value], inits: list[ir.Value]
    ) -> None:
        self.ctx = ctx
        self.args = list(args)
        self.inits = [None if v.type.rank else self.ctx.scalar(v) for v in inits]
        self.held: list[ll.Value | Buffer | None] = []
        self.next_values: list[ll.Value | None] = []
        for arg, init in zip(self.args, inits, strict=True):
            if not arg.type.rank:
                self.held.append(None)
                continue
            buffer = self.ctx.buffer_of(arg, self._layout(arg, init))
            with self.ctx.scope():
                nests.materialise(self.ctx, init, op, into=buffer)
            self.held.append(buffer)

    def _layout(self, arg: ir.Value, init: ir.Value) -> int | None:
        held = self.ctx.get(init)
        dense = isinstance(held, Buffer) and 1 in held.strides
        return self.ctx.layout.get(arg, held.strides.index(1) if dense else None)  # type: ignore[union-attr]

    def enter(self, before: ll.Block) -> None:
        for place, arg in enumerate(self.args):
            if not arg.type.rank:
                phi = self.ctx.b.phi(scalar_type(arg.type.elem), arg.name)
                phi.add_incoming(self.inits[place], before)
                self.held[place] = phi

    def bind(self, values: list[ir.Value]) -> None:
        for value, held in zip(values, self.held, strict=True):
            assert held is not None
            self.ctx.set(value, held)

    def compute_in_place(self, body: ir.Block) -> None:
        """Let a product that is a variable's next value write into the variable's buffer, if
        nothing after it reads the old value.
        """
        ctx, terminator = self.ctx, body.ops[-1]
        for place, value in enumerate(terminator.operands):
            held = self.held[place]
            if not isinstance(held, Buffer) or value.owner is None or value.owner.name != "tt.dot":
                continue
            if value.owner not in body.ops or terminator.operands.count(value) != 1:
                continue
            old = body.args[1 + place]
            if schedule.needed_after(ctx, old, value.owner, set()):
                continue
            ctx.destination[value] = held

    def advance(self, terminator: ir.Op, values: list[ir.Value]) -> None:
        """Give every variable its next value; none is overwritten while another still needs it."""
        ctx = self.ctx
        buffers = {place: held for place, held in enumerate(self.held) if isinstance(held, Buffer)}
        waiting = {p: values[p] for p, held in buffers.items() if ctx.get(values[p]) is not held}
        while waiting:
            reads = {place: self._reads(value, buffers) for place, value in waiting.items()}
            free = [
                place
                for place, value in waiting.items()
                if not any(place in reads[other] for other in waiting if other != place)
                and schedule.reads_in_place(ctx, value, buffers[place])
            ]
            if free:
                place = free[0]
                with ctx.scope():
                    nests.materialise(ctx, waiting.pop(place), terminator, into=buffers[place])
                continue
            # They need each other's old values: copy one.
            value = next(v for place, v in waiting.items() if reads[place])
            nests.materialise(ctx, value, terminator, into=ctx.buffer_of(value))
        self.next_values = [None if v.type.rank else ctx.scalar(v) for v in values]

    def _reads(self, value: ir.Value, buffers: dict[int, Buffer]) -> set[int]:
        """Return the variables whose old value evaluating `value` reads."""
        memories = schedule.memories_read(self.ctx, value)
        return {place for place, buffer in buffers.items() if buffer.memory in memories}

    def close(self, block: ll.Block) -> None:
        for held, value in zip(self.held, self.next_values, strict=True):
            if not isinstance(held, Buffer):
                assert held is not None
                held.add_incoming(value, block)
