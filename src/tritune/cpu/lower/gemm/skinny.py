"""Skinny GEMM: products with few rows, in which the large operand is read once, without packing.

The small operand is *stationary*: it lies in a buffer. The large one is *streamed*: each of its
vectors is loaded (and converted, dequantized, masked: whatever the kernel says) in registers and
multiplied with all rows of the stationary operand. The layout of the streamed operand decides
between two kernels:

- `InnerProduct`: contiguous along k, as the keys of attention or the weight of a linear layer. The
  accumulators are vectors along k; the lanes of a whole block are reduced together.
- `OuterProduct`: contiguous along n, as the values of attention. A block of the result stays in
  registers for a few steps of k, so few that the cache lines they read stay in the cache for all
  blocks of the result.

A product that continues the sums of another one is fused with it. So the two 4-bit codes of each
byte are multiplied in one pass over the bytes.
"""

from __future__ import annotations

from tritune.cpu import ir
from tritune.cpu.lower.context import Buffer, Context
from tritune.cpu.lower.emit import nests
from tritune.cpu.lower.emit.lazy_tensors import Assumptions
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.quantized_bytes import QuantizedBytes
from tritune.cpu.lower.gemm.skinny_inner import InnerProduct
from tritune.cpu.lower.gemm.skinny_kernel import SkinnyKernel
from tritune.cpu.lower.gemm.skinny_operands import SkinnyGemm
from tritune.cpu.lower.gemm.skinny_outer import OuterProduct
from tritune.cpu.lower.gemm.streamed_operand import StreamedOperand
from tritune.cpu.lower.schedule import nest as schedule

#: The smallest k for which bytes are multiplied as bf16.
_MIN_QUANTIZED_DEPTH = 16
#: For more rows than this, converting a byte costs less than multiplying it in two terms.
_MAX_ROWS_WITH_TWO_TERMS = 4


def emit_skinny(ctx: Context, gemm: SkinnyGemm, next_gemm: SkinnyGemm | None) -> bool:
    """Write a skinny GEMM and prefetch the first rows of the next one.

    Return False, and write nothing, if the streamed operand has to be in a buffer for other users.
    """
    op = gemm.op
    if not all(_can_stream(ctx, part, op) for part in gemm.parts):
        return False
    quantized = _quantized_operands(ctx, gemm)
    paired = bool(quantized) or uses_bf16_dot(ctx, gemm)
    if paired:
        stationary = [_pack_stationary(ctx, part, op) for part in gemm.parts]
    else:
        fastest = gemm.n_dim if gemm.inner else None
        stationary = [
            nests.materialise(ctx, part.stationary, op, fastest=fastest) for part in gemm.parts
        ]
    values = [part.streamed for part in gemm.parts if ctx.get(part.streamed) is None]
    nests.prepare(ctx, op, [*values, gemm.c])
    read = [held.memory for held in stationary]
    for part in gemm.parts:
        read += schedule.memories_read(ctx, part.streamed)
    target = nests.product_target(ctx, op, gemm.c, gemm.n_dim, read)
    kernel: SkinnyKernel
    if gemm.inner:
        kernel = InnerProduct(ctx, gemm, stationary, target, paired, quantized)
    else:
        kernel = OuterProduct(ctx, gemm, stationary[0], target, paired)
    kernel.begin()
    nodes = schedule.lazy_nodes(ctx, values)
    schedule.versioned(ctx, nodes, [], lambda assumptions, conservative: kernel.run(assumptions))
    kernel.end()
    if next_gemm is not None:
        _prefetch_first_rows(ctx, next_gemm)
    ctx.set(op.result, target)
    return True


def _prefetch_first_rows(ctx: Context, gemm: SkinnyGemm) -> None:
    lane_dim = gemm.streamed_lane_dim
    lanes = min(ctx.lanes(), gemm.streamed.type.shape[lane_dim])
    stream = StreamedOperand(ctx, gemm.streamed, 1 - lane_dim, lanes, None, Assumptions())
    kernel = InnerProduct if gemm.inner else OuterProduct
    stream.set_prefetch_distance(kernel.ROWS_PER_BLOCK)
    stream.prefetch_first_rows()


def uses_bf16_dot(ctx: Context, gemm: SkinnyGemm) -> bool:
    """Return whether a product is computed by the instruction that multiplies pairs of bf16."""
    if not _has_bf16_dot(ctx) or gemm.before or ctx.get(gemm.streamed) is not None:
        return False
    along = gemm.k if gemm.inner else gemm.n
    narrow = all(pairs.bf16_source(v) is not None for v in (gemm.stationary, gemm.streamed))
    return narrow and along >= 2 * ctx.lanes() and gemm.k > 1


def _has_bf16_dot(ctx: Context) -> bool:
    return ctx.kernel.multiplies_bf16 and ctx.lanes() >= 16


def _quantized_operands(ctx: Context, gemm: SkinnyGemm) -> list[QuantizedBytes]:
    """Return the bytes that the streamed operands are made of, if bf16 can hold them."""
    if not _has_bf16_dot(ctx) or not gemm.inner or gemm.k < _MIN_QUANTIZED_DEPTH:
        return []
    found: list[QuantizedBytes] = []
    for part in gemm.parts:
        stationary, streamed = pairs.bf16_source(part.stationary), pairs.bf16_source(part.streamed)
        if stationary is None or streamed is None or ctx.get(part.streamed) is not None:
            return []
        quantized = QuantizedBytes.of(ctx, streamed)
        if quantized is None or (quantized.terms > 1 and gemm.m > _MAX_ROWS_WITH_TWO_TERMS):
            return []
        found.append(quantized)
    return found


def _pack_stationary(ctx: Context, gemm: SkinnyGemm, root: ir.Op) -> Buffer:
    """Return the stationary operand as bf16, contiguous along k."""
    held, narrow = ctx.get(gemm.stationary), pairs.bf16_source(gemm.stationary)
    if isinstance(held, Buffer):
        return pairs.pack_bf16(ctx, held, gemm.n_dim)
    assert narrow is not None
    copied = narrow.owner is not None and narrow.owner.name == "tt.load"
    lanes = 2 * ctx.lanes() if copied else None
    return nests.materialise(ctx, narrow, root, fastest=gemm.n_dim, most_lanes=lanes)


def _can_stream(ctx: Context, gemm: SkinnyGemm, root: ir.Op) -> bool:
    """Return whether the streamed operand can be read where it lies."""
    held = ctx.get(gemm.streamed)
    if held is None:
        return not schedule.needed_after(ctx, gemm.streamed, root, set())
    return isinstance(held, Buffer) and held.strides[gemm.streamed_lane_dim] == 1
