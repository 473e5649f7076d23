"""Products with few rows: the large operand is read once, where it lies, and nothing is packed.

The *few* rows of one operand lie in a buffer. The *many* rows of the other stream by: each of its
vectors is loaded (and converted, dequantised, masked: whatever the kernel says) in registers and
used for all of the few rows at once. Which way the lanes run follows from how the many lie:

- *Inner*: contiguous along k, as the keys of attention or the weight of a linear layer. A block of
  few x many sums, each a vector along k; the lanes of a whole block are added up together.
- *Outer*: contiguous along the many, as the values of attention. A block of the result is in
  registers while some steps of k run, few enough that the lines they read stay in the cache for all
  blocks of the result.

A product that goes on with another's sums, as where the two halves of a byte are codes of their
own, is written with it: both in one pass over what they are made of.
"""

from __future__ import annotations

from tritune.cpu import ir
from tritune.cpu.lower.context import Buffer, Context
from tritune.cpu.lower.emit import nests
from tritune.cpu.lower.emit.evaluate import Assumptions
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.byte_codes import Codes
from tritune.cpu.lower.gemm.skinny_block import Block
from tritune.cpu.lower.gemm.skinny_inner import Inner
from tritune.cpu.lower.gemm.skinny_outer import Outer
from tritune.cpu.lower.gemm.skinny_roles import Thin
from tritune.cpu.lower.gemm.stream import Stream
from tritune.cpu.lower.schedule import nest as schedule

#: Bytes along k that are worth to be multiplied as bf16.
_LEAST_CODES = 16
#: For more rows than this, making one bf16 of a byte costs less than multiplying in two pieces.
_MOST_ROWS_IN_PIECES = 4


def emit_thin(ctx: Context, thin: Thin, following: Thin | None) -> bool:
    """Write the product, unless its large operand has to be in a buffer for others; and ask for
    what the following one begins with.
    """
    op = thin.op
    if not all(_readable(ctx, part, op) for part in thin.parts):
        return False
    codes = _codes(ctx, thin)
    in_pairs = bool(codes) or multiplies_pairs(ctx, thin)
    if in_pairs:
        few = [_packed(ctx, part, op) for part in thin.parts]
    else:
        fastest = thin.few_k_dim if thin.inner else None
        few = [nests.materialise(ctx, part.few, op, fastest=fastest) for part in thin.parts]
    values = [part.many for part in thin.parts if ctx.get(part.many) is None]
    nests.prepare(ctx, op, [*values, thin.c])
    read = [held.memory for held in few]
    read += [memory for part in thin.parts for memory in schedule.memories_read(ctx, part.many)]
    target = nests.product_target(ctx, op, thin.c, thin.many_dim, read)
    if thin.inner:
        kernel: Block = Inner(ctx, thin, few, target, in_pairs, codes)
    else:
        kernel = Outer(ctx, thin, few[0], target, in_pairs)
    kernel.begin()

    def emit(assumptions: Assumptions, careful: bool) -> None:
        kernel.run(assumptions)

    schedule.versioned(ctx, schedule.lazy_nodes(ctx, values), [], emit)
    kernel.end()
    if following is not None:
        later = Inner if following.inner else Outer
        lanes = min(ctx.lanes(), following.many.type.shape[following.many_lane_dim])
        stream = Stream(
            ctx, following.many, 1 - following.many_lane_dim, lanes, None, Assumptions()
        )
        stream.keep_ahead(later.ROWS_AT_ONCE)
        stream.ask_first()
    ctx.set(op.result, target)
    return True


def multiplies_pairs(ctx: Context, thin: Thin) -> bool:
    """Whether its products are of bf16, and can be added up two at a time."""
    if not _able(ctx) or thin.before or ctx.get(thin.many) is not None:
        return False
    along = thin.depth if thin.inner else thin.many_count
    narrow = all(pairs.narrow(value) is not None for value in (thin.few, thin.many))
    return narrow and along >= 2 * ctx.lanes() and thin.depth > 1


def _able(ctx: Context) -> bool:
    return ctx.kernel.multiplies_bf16 and ctx.lanes32 >= 16


def _codes(ctx: Context, thin: Thin) -> list[Codes]:
    """What the many of all parts are made of, if that is bytes that can be multiplied as bf16."""
    if not _able(ctx) or not thin.inner or thin.depth < _LEAST_CODES:
        return []
    found: list[Codes] = []
    for part in thin.parts:
        few, many = pairs.narrow(part.few), pairs.narrow(part.many)
        if few is None or many is None or ctx.get(part.many) is not None:
            return []
        codes = Codes.of(ctx, many)
        if codes is None or (codes.pieces > 1 and thin.few_count > _MOST_ROWS_IN_PIECES):
            return []
        found.append(codes)
    return found


def _packed(ctx: Context, thin: Thin, root: ir.Op) -> Buffer:
    """The few as bf16, pairs of them along k."""
    held, narrow = ctx.get(thin.few), pairs.narrow(thin.few)
    if isinstance(held, Buffer):
        return pairs.packed(ctx, held, thin.few_k_dim)
    assert narrow is not None
    copied = narrow.owner is not None and narrow.owner.name == "tt.load"
    lanes = 2 * ctx.lanes() if copied else None
    return nests.materialise(ctx, narrow, root, fastest=thin.few_k_dim, most_lanes=lanes)


def _readable(ctx: Context, thin: Thin, root: ir.Op) -> bool:
    """Whether the many can be read where they lie."""
    held = ctx.get(thin.many)
    if held is None:
        return not schedule.needed_after(ctx, thin.many, root, set())
    return isinstance(held, Buffer) and held.strides[thin.many_lane_dim] == 1
