"""Device code that the attention kernels share: heads in parts, scores, and the running softmax.

Keys are visited a block at a time. Of those visited so far, a row keeps the highest score m, the
sum of exp2(score - m), and the sum of the values with these weights; a higher score shrinks both.
Scores are in units of log2, as exp(x) = exp2(x log2(e)).

A head that is no power of two wide is either padded to one, or split into parts that are
(80 = 64 + 16): products over the parts add up to the product over the head.
"""

import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))

#: Where a running maximum begins. Unlike -inf it can be subtracted from itself, so rows that have
#: seen no key need no care: their weights are exp2(-inf - LOWEST) = 0.
LOWEST = tl.constexpr(-3.4e38)


@triton.constexpr_function
def head_parts(size, split):
    """(first dim, width) of the tiles that a head is read in; a product needs a width of 16."""
    parts, first = [], 0
    while first < size:
        width = 16
        while 2 * width <= size - first or (not split and width < size):
            width *= 2
        parts.append((first, width))
        first += width
    return tuple(parts)


@triton.constexpr_function
def width_of(parts, part):
    return parts[part][1]


@triton.constexpr_function
def phase_order(windowed, peel, masked_first):
    """In which order the blocks of keys come that every row sees (whole), and those around them."""
    if not peel:
        return ("all",)
    order = ("after", "whole") if masked_first else ("whole", "after")
    return ("before", *order) if windowed else order


@triton.jit
def seen_keys(
    first_position, last_position, num_keys, window, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr
):
    """(first, whole_first, whole_end, end) for rows at positions from the first to the last.

    Some row sees the keys first..end, and every row those of whole_first..whole_end. All but the
    end are multiples of BLOCK_N.
    """
    first = 0
    end = num_keys
    whole_first = 0
    whole_end = num_keys
    if CAUSAL:
        end = tl.minimum(last_position + 1, num_keys)
        whole_end = tl.maximum(tl.minimum(first_position + 1, num_keys), 0)
    if window is not None:
        first = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
        whole_first = tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_N) * BLOCK_N
    whole_end = tl.maximum(whole_end // BLOCK_N * BLOCK_N, whole_first)
    return first, whole_first, whole_end, end


@triton.jit
def share_of(first, end, split, NUM_SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """The blocks of first..end that are a split's; the last splits may have none."""
    if NUM_SPLITS > 1:
        share = tl.cdiv(tl.cdiv(tl.maximum(end - first, 0), BLOCK_N), NUM_SPLITS) * BLOCK_N
        first += split * share
        end = tl.minimum(end, first + share)
    return first, end


@triton.jit
def keys_of_phase(
    PHASE: tl.constexpr, whole_first, whole_end, first, end, NUM_SPLITS: tl.constexpr
):
    """The keys of first..end, a split's share, that a phase visits."""
    begin, stop = first, end
    if PHASE == "before":
        stop = tl.minimum(whole_first, end)
    elif PHASE == "whole":
        begin, stop = whole_first, whole_end
        if NUM_SPLITS > 1:
            begin, stop = tl.maximum(begin, first), tl.minimum(stop, end)
    elif PHASE == "after":
        begin = tl.maximum(whole_end, first) if NUM_SPLITS > 1 else whole_end
    return begin, stop


@triton.jit
def load_rows(
    ptr, rows, inside, dim_stride,
    SIZE: tl.constexpr, PARTS: tl.constexpr, OFFSET: tl.constexpr, ROW_AXIS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The head's dims of each row, a tile for each part of it; `rows` are offsets from the pointer.

    Rows run along axis ROW_AXIS. MASKED: those that are not `inside` are zero, and are not read.
    """
    tiles = tl.tuple(())
    rows = tl.expand_dims(rows, 1 - ROW_AXIS)
    inside = tl.expand_dims(inside, 1 - ROW_AXIS)
    for part in tl.static_range(len(PARTS)):
        dims = tl.expand_dims(PARTS[part][0] + tl.arange(0, PARTS[part][1]), ROW_AXIS)
        places = ptr + rows + dims.to(OFFSET) * dim_stride
        if PARTS[part][0] + PARTS[part][1] > SIZE:
            mask = (dims < SIZE) & inside if MASKED else dims < SIZE
            tiles += (tl.load(places, mask=mask, other=0.0),)
        elif MASKED:
            tiles += (tl.load(places, mask=inside, other=0.0),)
        else:
            tiles += (tl.load(places),)
    return tiles


@triton.jit
def score_units(scale, softcap):
    """What makes scores of products: score = product * factor, or cap * tanh(product * factor)."""
    factor = scale.to(tl.float32)
    if softcap is not None:
        factor /= softcap.to(tl.float32)
        softcap = softcap.to(tl.float32) * LOG2_E
    else:
        factor *= LOG2_E
    return factor, softcap


@triton.jit
def score_keys(q, k, factor, cap, slopes, keys, positions):
    """The scores of rows (q) and keys (k, transposed), with ALiBi where there are slopes."""
    scores = tl.dot(q[0], k[0], input_precision="ieee")
    for part in tl.static_range(1, len(q)):
        scores = tl.dot(q[part], k[part], scores, input_precision="ieee")
    scores *= factor
    if cap is not None:
        scores = cap * libdevice.tanh(scores)
    if slopes is not None:
        scores += slopes[:, None] * (keys[None, :] - positions[:, None]).to(tl.float32)
    return scores


@triton.jit
def hide_keys(scores, exist, keys, positions, window, CAUSAL: tl.constexpr):
    """-inf for keys that do not exist, come after the row's position, or left its window."""
    visible = exist[None, :]
    if CAUSAL:
        visible = visible & (keys[None, :] <= positions[:, None])
    if window is not None:
        visible = visible & (keys[None, :] > positions[:, None] - window)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def no_values(ROWS: tl.constexpr, PARTS: tl.constexpr):
    acc = tl.tuple(())
    for part in tl.static_range(len(PARTS)):
        acc += (tl.zeros([ROWS, width_of(PARTS, part)], tl.float32),)
    return acc


@triton.jit
def begin_softmax(sinks_ptr, head, ROWS: tl.constexpr):
    """The highest score and the sum of weights before any key."""
    row_max = tl.full([ROWS], LOWEST, tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    if sinks_ptr is not None:
        # A sink is a key without a value: the softmax begins with it.
        sinks = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
        row_max = tl.maximum(row_max, sinks)
        row_sum = tl.exp2(sinks - row_max)
    return row_max, row_sum


@triton.jit
def fold_scores(scores, row_max, row_sum):
    """The weights of these keys, how much older ones shrink, and the new maximum and sum."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_max[:, None])
    shrink = tl.exp2(row_max - new_max)
    return weights, shrink, new_max, row_sum * shrink + tl.sum(weights, axis=1)


@triton.jit
def fold_values(acc, weights, shrink, v):
    """The sum of values, with those of these keys."""
    new_acc = tl.tuple(())
    for part in tl.static_range(len(acc)):
        shrunk = acc[part] * shrink[:, None]
        new_acc += (tl.dot(weights.to(v[part].dtype), v[part], shrunk, input_precision="ieee"),)
    return new_acc


@triton.jit
def store_rows(
    ptr, rows, inside, dim_stride, acc, row_sum, value_scale, SIZE: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The result, acc / row_sum; that of a row that saw nothing, with a sum of 0, is 0."""
    divisor = tl.where(row_sum > 0, row_sum, 1.0)
    for part in tl.static_range(len(PARTS)):
        dims = PARTS[part][0] + tl.arange(0, PARTS[part][1])
        out = acc[part] / divisor[:, None]
        if value_scale is not None:
            out *= value_scale
        mask = inside[:, None]
        if PARTS[part][0] + PARTS[part][1] > SIZE:
            mask = mask & (dims[None, :] < SIZE)
        places = ptr + rows[:, None] + dims[None, :].to(tl.int64) * dim_stride
        tl.store(places, out.to(ptr.dtype.element_ty), mask=mask)
